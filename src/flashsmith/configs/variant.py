"""What a kernel computes, apart from how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class ForwardVariant:
    """The semantics of a forward kernel; the default is plain full attention.

    causal: bottom-right aligned mask, query i sees keys up to i + seq_len_k - seq_len_q.
    """

    causal: bool = False

    def __post_init__(self) -> None:
        if type(self.causal) is not bool:
            raise TypeError(f"causal: expected a bool, got {self.causal!r}")

    @property
    def name(self) -> str:
        return "causal" if self.causal else "full"

    @classmethod
    def from_name(cls, name: str) -> ForwardVariant:
        """The variant called `name`. Raises ValueError that lists the names."""
        for variant in FORWARD_VARIANTS:
            if name == variant.name:
                return variant
        valid = ", ".join(variant.name for variant in FORWARD_VARIANTS)
        raise ValueError(f"variant {name!r} is not known; supported: {valid}")

    def to_cpp_struct(self) -> str:
        """The C++ literal, `ForwardVariant{false}`."""
        return f"ForwardVariant{{{str(self.causal).lower()}}}"


FULL = ForwardVariant()
CAUSAL = ForwardVariant(causal=True)
FORWARD_VARIANTS = (FULL, CAUSAL)
