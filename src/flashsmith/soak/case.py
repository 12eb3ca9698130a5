"""One problem for a kernel, as text that makes the same tensors again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from flashsmith.configs import DType, ForwardVariant
from flashsmith.soak.layout import LAYOUTS
from flashsmith.soak.values import NORMAL, Values


@dataclass(frozen=True)
class SoakCase:
    """Sizes, places in memory and values of q, k and v, and what is computed of them.

    Attributes:
        heads: Of q, a multiple of ``heads_kv``.
        seq_len_q, seq_len_k: 0 or more.
        softmax_scale: None: 1 / sqrt(d_head).
        layout: How the tensors lie in memory; a name of ``LAYOUTS``.
        seed: Of the random values. A GPU draws other numbers from it than a CPU.

    Raises:
        ValueError: A field has a value that no call can have; names the field.
    """

    dtype: DType
    d_head: int
    batch: int
    heads: int
    heads_kv: int
    seq_len_q: int
    seq_len_k: int
    causal: bool = False
    softmax_scale: float | None = None
    layout: str = "contiguous"
    values: Values = NORMAL
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d_head", "batch", "heads", "heads_kv"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("seq_len_q", "seq_len_k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        if self.heads % self.heads_kv != 0:
            raise ValueError(f"heads is {self.heads}, no multiple of heads_kv {self.heads_kv}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}; supported are {', '.join(LAYOUTS)}")
        if self.causal and self.values.reach_hidden_rows:
            raise ValueError(
                f"values is {self.values}, and causal: what is not finite in v reaches queries "
                "that do not see it, as 0 * NaN in the matrix product; choose other values"
            )

    def __str__(self) -> str:
        """`dtype=BF16 d_head=128 batch=4 ...`; what has its default is left out."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"{field.name}={int(value) if field.type == 'bool' else value}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> SoakCase:
        """The case whose ``str`` is ``text``, in any order.

        Raises:
            ValueError: A word is no field, a field is missing or has a value that it cannot have.
        """
        known = {field.name: str(field.type) for field in fields(cls)}
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
            return cls(**found)
        except TypeError as error:
            raise ValueError(f"case {text!r} is not whole: {error}") from None

    @property
    def variant(self) -> ForwardVariant:
        return ForwardVariant(self.causal)

    @property
    def plain(self) -> bool:
        """Whether k is shaped as q."""
        return (self.heads, self.seq_len_q) == (self.heads_kv, self.seq_len_k)

    @property
    def scale(self) -> float:
        return self.d_head**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_len_q, self.heads, self.d_head

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_len_k, self.heads_kv, self.d_head

    @property
    def n_scores(self) -> int:
        return self.batch * self.heads * self.seq_len_q * self.seq_len_k


def _read_bool(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


_READERS: dict[str, Callable[[str], object]] = {
    "DType": DType.from_string,
    "int": int,
    "bool": _read_bool,
    "float | None": float,
    "str": str,
    "Values": Values.parse,
}
