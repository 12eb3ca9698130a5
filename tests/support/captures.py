"""Functions of scores and masks: what they may capture, and how the captured may change."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

import flashsmith

# A change replaces NUMBER by OTHER_NUMBER. All captures of a number give the same two expressions.
NUMBER, OTHER_NUMBER = 0.25, -1.5
LENGTH, HEADS, BLOCK = 40, 2, 16

slope_of_the_module = NUMBER


@dataclass
class Captured:
    """Functions, and the changes of what they capture.

    keywords: Keywords of ``attention``.
    tensors: The captured tensors, each with other values that may be written into it.
    values: Changes of everything else.
    """

    keywords: dict[str, Any]
    tensors: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    values: dict[str, Callable[[], object]] = field(default_factory=dict)


def two(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape), torch.randn(shape)


def falling(slope: Any, score: Any, q: Any, kv: Any) -> Any:
    return score + slope * (q - kv)


# ---- numbers ----


def loop() -> Captured:
    functions = []
    for slope in (OTHER_NUMBER, NUMBER):
        functions.append(lambda s, b, h, q, kv: falling(slope, s, q, kv))  # noqa: B023

    def go_on() -> None:
        functions[0].__closure__[-1].cell_contents = OTHER_NUMBER

    return Captured({"score_mod": functions[1]}, values={"the loop goes on": go_on})


def nonlocal_number() -> Captured:
    slope = NUMBER

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return falling(slope, s, q, kv)

    def rebind() -> None:
        nonlocal slope
        slope = OTHER_NUMBER

    return Captured({"score_mod": score_mod}, values={"rebound": rebind})


def global_number() -> Captured:
    globals()["slope_of_the_module"] = NUMBER

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return falling(slope_of_the_module, s, q, kv)

    def rebind() -> None:
        globals()["slope_of_the_module"] = OTHER_NUMBER

    return Captured({"score_mod": score_mod}, values={"the global": rebind})


def mutable(
    container: Any, read: Callable[[Any], float], write: Callable[[Any], object]
) -> Captured:
    """Captures a number in an object that is changed in place."""

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return falling(read(container), s, q, kv)

    return Captured({"score_mod": score_mod}, values={"its item": lambda: write(container)})


def a_list() -> Captured:
    return mutable([NUMBER], lambda c: c[0], lambda c: c.__setitem__(0, OTHER_NUMBER))


def a_growing_list() -> Captured:
    return mutable([NUMBER], lambda c: c[-1], lambda c: c.append(OTHER_NUMBER))


def a_dict() -> Captured:
    return mutable({"s": NUMBER}, lambda c: c["s"], lambda c: c.update(s=OTHER_NUMBER))


def an_attribute() -> Captured:
    place = types.SimpleNamespace(slope=NUMBER)
    return mutable(place, lambda c: c.slope, lambda c: setattr(c, "slope", OTHER_NUMBER))


def a_module_attribute() -> Captured:
    place = torch.nn.Linear(2, 2)
    place.slope = NUMBER  # type: ignore[assignment]
    return mutable(place, lambda c: c.slope, lambda c: setattr(c, "slope", OTHER_NUMBER))


def a_generator() -> Captured:
    """Captures numbers that differ each time: a second call of the function would see the next."""
    numbers = iter([NUMBER, *[OTHER_NUMBER] * 100])
    return mutable(numbers, next, lambda c: None)


def a_whole_number_of_torch() -> Captured:
    """Captures an integer tensor on the CPU, which becomes a constant."""
    t = torch.tensor(3)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return falling(t, s, q, kv)

    return Captured({"score_mod": score_mod}, {"t": (t, torch.tensor(-2))})


def a_default_argument() -> Captured:
    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any, slope: float = NUMBER) -> Any:
        return falling(slope, s, q, kv)

    def change() -> None:
        score_mod.__defaults__ = (OTHER_NUMBER,)

    return Captured({"score_mod": score_mod}, values={"its default": change})


def a_partial() -> Captured:
    def general(s: Any, b: Any, h: Any, q: Any, kv: Any, *, slope: float) -> Any:
        return falling(slope, s, q, kv)

    score_mod = functools.partial(general, slope=NUMBER)
    change = {"slope": lambda: score_mod.keywords.update(slope=OTHER_NUMBER)}
    return Captured({"score_mod": score_mod}, values=change)


def a_callable_object() -> Captured:
    class Falling:
        def __init__(self) -> None:
            self.slope = NUMBER

        def __call__(self, s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return falling(self.slope, s, q, kv)

    function = Falling()
    change = {"slope": lambda: setattr(function, "slope", OTHER_NUMBER)}
    return Captured({"score_mod": function}, values=change)


def its_own_code() -> Captured:
    """Replaces the code of a function by another function's."""

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + 0.25 * (q - kv)

    def other(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + -1.5 * (q - kv)

    def replace() -> None:
        score_mod.__code__ = other.__code__

    return Captured({"score_mod": score_mod}, values={"code": replace})


def a_mask_of_a_number() -> Captured:
    width = [3]

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q - kv < width[0]

    return Captured({"mask_mod": mask_mod}, values={"width": lambda: width.__setitem__(0, 30)})


# ---- tensors ----


def a_table() -> Captured:
    table, other = two(LENGTH)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + table[kv]

    def rebind() -> None:
        nonlocal table
        table = other

    return Captured({"score_mod": score_mod}, {"table": (table, other)}, {"table": rebind})


def a_square_table() -> Captured:
    table, other = two(LENGTH, LENGTH)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + table[q, kv]

    return Captured({"score_mod": score_mod}, {"table": (table, other)})


def a_row_of_a_table() -> Captured:
    """Captures a view that each trace makes anew; the whole table changes."""
    table, other = two(HEADS, LENGTH)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + table[1][kv]

    return Captured({"score_mod": score_mod}, {"table": (table, other)})


def a_number_of_torch() -> Captured:
    t, other = torch.tensor(0.5), torch.tensor(-3.0)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + t * (q - kv)

    return Captured({"score_mod": score_mod}, {"t": (t, other)})


class Table(torch.nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def score_mod(self, s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + self.table[kv]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flashsmith.attention(q, k, v, score_mod=self.score_mod, return_lse=True)


def a_buffer() -> Captured:
    table, other = two(LENGTH)
    module = Table(table)
    values = {
        "buffer": lambda: setattr(module, "table", other),
        "dtype": lambda: module.to(torch.bfloat16),
        "apply": lambda: module._apply(lambda t: t + 1),
    }
    return Captured({"score_mod": module.score_mod}, {"table": (table, other)}, values)


def a_cache_of_tables() -> Captured:
    """Captures a table that is made once and then looked up, as rotary embeddings often are."""
    tables = {"now": torch.randn(LENGTH)}
    other = torch.randn(LENGTH)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + tables["now"][kv]

    values: dict[str, Callable[[], object]] = {
        "item": lambda: tables.__setitem__("now", other),
        "nothing": tables.clear,
    }
    return Captured({"score_mod": score_mod}, {"table": (tables["now"], other)}, values)


def documents() -> Captured:
    ids = torch.arange(LENGTH, dtype=torch.int32) // 13
    other = torch.arange(LENGTH, dtype=torch.int32) // 7

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return ids[q] == ids[kv]

    return Captured({"mask_mod": mask_mod}, {"ids": (ids, other)})


def both_functions() -> Captured:
    scores, mask = a_table(), documents()
    tensors = scores.tensors | mask.tensors
    return Captured(scores.keywords | mask.keywords, tensors, scores.values)


# ---- blocks ----

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def _lists_of(block_mask: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns the lists of a block mask, each with other blocks of three."""
    others = {"kv_num_blocks": lambda t: t * 0, "full_kv_num_blocks": lambda t: 1 - t}
    found = {}
    for name in LISTS:
        t = getattr(block_mask, name)
        found[name] = t, others.get(name, lambda t: (t + 1) % 3)(t)
    return found


def a_block_mask() -> Captured:
    ahead = [0]
    mask = flashsmith.create_block_mask(
        lambda b, h, q, kv: q + ahead[0] >= kv, None, None, LENGTH, LENGTH, "cpu", BLOCK
    )
    values = {"mask_mod": lambda: ahead.__setitem__(0, -4)}
    return Captured({"block_mask": mask}, _lists_of(mask), values)


def a_block_mask_of_torch() -> Captured:
    mask = torch_flex.create_block_mask(
        lambda b, h, q, kv: q >= kv, None, None, LENGTH, LENGTH, "cpu", BLOCK
    )
    tensors = _lists_of(mask)
    values: dict[str, Callable[[], object]] = {
        "mask_mod": lambda: setattr(mask, "mask_mod", lambda b, h, q, kv: q >= kv + 4)
    }
    for name, (_, other) in tensors.items():
        values[name] = functools.partial(setattr, mask, name, other)
    return Captured({"block_mask": mask}, tensors, values)


KINDS: dict[str, Callable[[], Captured]] = {
    function.__name__: function
    for function in (
        loop, nonlocal_number, global_number, a_list, a_growing_list, a_dict, an_attribute,
        a_module_attribute, a_generator, a_whole_number_of_torch, a_default_argument, a_partial,
        a_callable_object, its_own_code, a_mask_of_a_number, a_table, a_square_table,
        a_row_of_a_table, a_number_of_torch, a_buffer, a_cache_of_tables, documents,
        both_functions, a_block_mask, a_block_mask_of_torch,
    )
}  # fmt: skip
