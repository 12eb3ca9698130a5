"""A case for a kernel, with a text form that reproduces the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from flashsmith.configs import DType, KernelConfig, KernelId, Variant
from flashsmith.lab.soak.layout import LAYOUTS
from flashsmith.lab.soak.meaning import DENSE, PLAIN, Meaning, Varlen, weighs_keys
from flashsmith.lab.soak.values import NORMAL, Values
from flashsmith.problem import Problem

_PARTS = {"problem": Problem, "meaning": Meaning, "varlen": Varlen}


@dataclass(frozen=True)
class SoakCase:
    """A problem, what is computed of it, and the layout and values of q, k and v.

    Attributes:
        softmax_scale: None: 1 / sqrt(d_head).
        layout: The tensors' layout in memory; a name of ``LAYOUTS``.
        seed: The seed of the random values. A GPU draws other numbers from it than a CPU.
        varlen: The lengths of varlen sequences.

    Raises:
        ValueError: A field has a value that no call can have; the message names the field.
    """

    problem: Problem
    meaning: Meaning = PLAIN
    softmax_scale: float | None = None
    layout: str = "contiguous"
    values: Values = NORMAL
    seed: int = 0
    varlen: Varlen = DENSE

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}; supported are {', '.join(LAYOUTS)}")
        if weighs_keys(self.variant) and self.values.reach_hidden_rows:
            raise ValueError(
                f"values is {self.values}, but the weight of a key may be 0: NaN and inf in v "
                "reach queries that do not see them, as 0 * NaN in the matrix product; choose "
                "other values"
            )
        self.varlen.check(self.problem)

    def __str__(self) -> str:
        """Returns text like `dtype=BF16 d_head=128 batch=4 ...`, without default values."""
        words = []
        for owner, each in _fields_of(self):
            value = getattr(owner, each.name)
            default = self.problem.d_head if each.name == "d_v" else each.default
            if value != default:
                written = ",".join(map(str, value)) if isinstance(value, tuple) else value
                words.append(f"{each.name}={written}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> SoakCase:
        """Returns the case whose ``str`` is ``text``, with its words in any order.

        Raises:
            ValueError: A word is not a field, or a field is missing or has an impossible value.
        """
        known = {each.name: str(each.type) for _, each in _fields_of(cls)}
        found: dict[str, Any] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            if name not in known:
                raise ValueError(f"case {text!r}: {name!r} is no field; fields: {', '.join(known)}")
            try:
                found[name] = _READERS[known[name]](value)
            except ValueError as error:
                raise ValueError(f"case {text!r}: {name} is {value!r}: {error}") from None
        try:
            for name, part in _PARTS.items():
                own = [each.name for each in fields(part) if each.name in found]
                found[name] = part(**{each: found.pop(each) for each in own})
            return cls(**found)
        except TypeError as error:
            raise ValueError(f"case {text!r} is incomplete: {error}") from None

    @property
    def scale(self) -> float:
        return self.problem.d_head**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def variant(self) -> Variant:
        """The variant of a kernel whose d_head is the problem's."""
        return replace(self.meaning.variant, varlen=bool(self.varlen))

    def kernel(self, config: KernelConfig) -> KernelId:
        """Returns the kernel of a configuration that computes the case."""
        whole = self.problem.d_head == self.problem.d_v == config.d_head
        return KernelId(config, replace(self.variant, padded=not whole))


def _fields_of(case: SoakCase | type[SoakCase]) -> Iterator[tuple[Any, Field[Any]]]:
    """Yields the fields of the parts and of the case itself, each with its owner."""
    for each in fields(case):
        if each.name in _PARTS:
            part = _PARTS[each.name]
            owner = part if isinstance(case, type) else getattr(case, each.name)
            yield from ((owner, field) for field in fields(part))
        else:
            yield case, each


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _bool(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError("expected True or False")
    return text == "True"


_READERS: dict[str, Callable[[str], object]] = {
    "DType": DType.from_string,
    "int": int,
    "bool": _bool,
    "float": float,
    "float | None": float,
    "str": str,
    "Values": Values.parse,
    "Window": _ints,
    "Lengths | None": _ints,
}
