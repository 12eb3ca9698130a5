"""Functions of scores and masks that refer in many ways to values that change between calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from flashsmith import BlockMask, create_block_mask
from support.repeated_calls import World

_FACTORS = (0.5, 2.0)
_WINDOWS = (20, 50)
_module_factor = 0.0


def _closure() -> tuple[Callable[..., Any], Callable[[float], None]]:
    factor = 0.0

    def change(value: float) -> None:
        nonlocal factor
        factor = value

    return lambda score, b, h, q, kv: score * factor, change


def _default() -> tuple[Callable[..., Any], Callable[[float], None]]:
    def function(score: Any, b: Any, h: Any, q: Any, kv: Any, factor: float = 0.0) -> Any:
        return score * factor

    return function, lambda value: setattr(function, "__defaults__", (value,))


def _attribute() -> tuple[Callable[..., Any], Callable[[float], None]]:
    class Module:
        factor = 0.0

        def __call__(self, score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score * self.factor

    module = Module()
    return module, lambda value: setattr(module, "factor", value)


def _list() -> tuple[Callable[..., Any], Callable[[float], None]]:
    factors = [0.0]
    return lambda score, b, h, q, kv: score * factors[0], lambda v: factors.__setitem__(0, v)


def _namespace() -> tuple[Callable[..., Any], Callable[[float], None]]:
    held = SimpleNamespace(factor=0.0)
    return lambda score, b, h, q, kv: score * held.factor, lambda v: setattr(held, "factor", v)


def _global() -> tuple[Callable[..., Any], Callable[[float], None]]:
    def change(value: float) -> None:
        global _module_factor
        _module_factor = value

    return lambda score, b, h, q, kv: score * _module_factor, change


_NUMBERS = {
    "closure": _closure, "default": _default, "attribute": _attribute, "list": _list,
    "namespace": _namespace, "global": _global,
}  # fmt: skip

# These are (where a number is, which of two); a tensor's contents and strides; masks; block masks.
SCORES = (
    None, *((name, n) for name in _NUMBERS for n in range(2)), ("tensor", 0), ("tensor", 1),
    ("tensor, strided", 1), ("tensor of another call", 0), ("int tensor on the CPU", 0),
    ("int tensor on the CPU", 1),
)  # fmt: skip
MASKS = (
    None, ("mask", 0), ("mask", 1), ("mask of a tensor", 0), ("mask of a tensor", 1),
    ("blocks", 0), ("blocks", 1), ("blocks of others", 0),
    ("filled blocks", 0), ("filled blocks", 1),
)  # fmt: skip


def score_mod(
    world: World, chosen: tuple[str, int] | None, heads: int
) -> Callable[..., Any] | None:
    """Returns the chosen function; if memory is kept, the same object as before, changed."""
    if chosen is None:
        return None
    kind, number = chosen
    if kind in _NUMBERS:
        function, change = world.kept(f"score_mod {kind}", _NUMBERS[kind])
        change(_FACTORS[number])
        return function  # type: ignore[no-any-return]
    if kind == "int tensor on the CPU":
        count = world.place("count", torch.tensor([number + 1], dtype=torch.int32))[0]
        return lambda score, b, h, q, kv: score * count
    layout = "odd rows" if "strided" in kind else "contiguous"
    name = "other table" if "another" in kind else "table"
    table = world.normal(name, (heads, 1), torch.float32, number, layout)
    function = f"score_mod of {heads} heads in {name}, {layout}"
    return world.kept(function, lambda: lambda score, b, h, q, kv: score + table[h, 0])  # type: ignore[no-any-return]


def masks(world: World, chosen: tuple[str, int] | None, n_q: int, n_k: int) -> dict[str, Any]:
    """Returns the keywords of the chosen mask."""
    if chosen is None:
        return {}
    kind, number = chosen
    width = _WINDOWS[number]
    if kind == "mask":
        return {"mask_mod": lambda b, h, q, kv: q - kv < width}
    widths = world.place("width", torch.tensor([width], dtype=torch.float32))
    if kind == "mask of a tensor":
        return {"mask_mod": lambda b, h, q, kv: q - kv < widths[0]}
    if kind == "blocks of others":
        return {"block_mask": _blocks(width, n_q, n_k, 64)}
    if kind == "blocks":
        return {"block_mask": _blocks(width, n_q, n_k, 32)}
    made = _blocks(width, n_q, n_k, 32)
    kept: BlockMask = world.kept(f"block mask of {n_q} and {n_k}", lambda: made)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        getattr(kept, name).copy_(getattr(made, name))
    return {"block_mask": kept}


def _blocks(width: int, n_q: int, n_k: int, size: int) -> BlockMask:
    """Returns a mask of whole blocks along a diagonal, so that only its lists make a difference."""

    def visible(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q // size - kv // size) * size < width

    made = create_block_mask(visible, None, None, n_q, n_k, "cpu", size)
    return BlockMask(
        made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices,
        made.block_size, made.seq_lengths, _all,
    )  # fmt: skip


def _all(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv >= 0
