"""One case for a kernel, as text that makes the same tensors again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from flashsmith.configs import FULL, DType, Variant
from flashsmith.problem import Problem
from flashsmith.soak.layout import LAYOUTS
from flashsmith.soak.values import NORMAL, Values


@dataclass(frozen=True)
class SoakCase:
    """A problem, what is computed of it, and places in memory and values of q, k and v.

    Attributes:
        softmax_scale: None: 1 / sqrt(d_head).
        layout: How the tensors lie in memory; a name of ``LAYOUTS``.
        seed: Of the random values. A GPU draws other numbers from it than a CPU.

    Raises:
        ValueError: A field has a value that no call can have; names the field.
    """

    problem: Problem
    variant: Variant = FULL
    softmax_scale: float | None = None
    layout: str = "contiguous"
    values: Values = NORMAL
    seed: int = 0

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}; supported are {', '.join(LAYOUTS)}")
        if self.variant.causal and self.values.reach_hidden_rows:
            raise ValueError(
                f"values is {self.values}, and causal: what is not finite in v reaches queries "
                "that do not see it, as 0 * NaN in the matrix product; choose other values"
            )

    def __str__(self) -> str:
        """`dtype=BF16 d_head=128 batch=4 ...`; what has its default is left out."""
        words = [f"{each.name}={getattr(self.problem, each.name)}" for each in fields(Problem)]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value != each.default:
                words.append(f"{each.name}={value.name if each.name == 'variant' else value}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> SoakCase:
        """The case whose ``str`` is ``text``, in any order.

        Raises:
            ValueError: A word is no field, a field is missing or has a value that it cannot have.
        """
        sizes = {each.name: str(each.type) for each in fields(Problem)}
        known = sizes | {each.name: str(each.type) for each in fields(cls)[1:]}
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
            problem = Problem(**{name: found.pop(name) for name in sizes if name in found})
            return cls(problem, **found)
        except TypeError as error:
            raise ValueError(f"case {text!r} is not whole: {error}") from None

    @property
    def scale(self) -> float:
        return self.problem.d_head**-0.5 if self.softmax_scale is None else self.softmax_scale


_READERS: dict[str, Callable[[str], object]] = {
    "DType": DType.from_string,
    "int": int,
    "Variant": Variant.from_name,
    "float | None": float,
    "str": str,
    "Values": Values.parse,
}
