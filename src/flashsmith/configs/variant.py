"""What a kernel computes, apart from how."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flashsmith.configs.features import Feature, flag, read_features, write_features
from flashsmith.problem import Problem

# What the parts of a variant's name tell; they are joined by +. The name of none is "full".
FEATURES: tuple[Feature, ...] = (flag("causal", "causal"),)
_NO_FEATURE = "full"


@dataclass(frozen=True, order=True)
class Variant:
    """The semantics of a forward kernel; the default is plain full attention.

    causal: bottom-right aligned mask, query i sees keys up to i + seq_len_k - seq_len_q.
    """

    causal: bool = False

    def __post_init__(self) -> None:
        if type(self.causal) is not bool:
            raise TypeError(f"causal: expected a bool, got {self.causal!r}")

    @property
    def name(self) -> str:
        return write_features(self, FEATURES) or _NO_FEATURE

    @classmethod
    def from_name(cls, name: str) -> Variant:
        """The variant called `name`. Raises ValueError that lists the features."""
        if name == _NO_FEATURE:
            return cls()
        try:
            return cls(**read_features(name.split("+"), FEATURES))
        except ValueError:
            known = ", ".join([_NO_FEATURE, *(feature.name for feature in FEATURES)])
            raise ValueError(f"variant {name!r} is not known; supported: {known}") from None

    def flop(self, problem: Problem) -> int:
        """Operations of the two matrix products, 4 * d_head for each score that the mask leaves.

        What published TFLOP/s of attention are based on: a causal mask leaves half of the square of
        scores that ends at the last query and key, and all that is left of it.
        """
        n_q, n_k = problem.seq_len_q, problem.seq_len_k
        twice_the_scores = 2 * n_q * n_k
        if self.causal:
            twice_the_scores = min(n_q, n_k) ** 2 + 2 * max(n_k - n_q, 0) * n_q
        return 2 * problem.d_head * problem.batch * problem.heads * twice_the_scores

    def tuning_key(self) -> str:
        """What entries of tuned tables are told apart by: variants that share it share their best
        configuration."""
        return self.name

    def to_cpp_struct(self) -> str:
        """The C++ literal, `Variant{.causal = false}`."""
        texts = (f".{field.name} = {_cpp(getattr(self, field.name))}" for field in fields(self))
        return f"Variant{{{', '.join(texts)}}}"

    def demangled(self, with_types: bool) -> str:
        """As c++filt prints it, `Variant{false}`; with types as profilers do, `{(bool)0}`."""
        values = ((field.type, getattr(self, field.name)) for field in fields(self))
        texts = (f"({t}){int(value)}" if with_types else _cpp(value) for t, value in values)
        return f"Variant{{{', '.join(texts)}}}"


def _cpp(value: object) -> str:
    return str(value).lower()


FULL = Variant()
CAUSAL = Variant(causal=True)
VARIANTS = (FULL, CAUSAL)

# A regular expression for every name.
_PART = "|".join(feature.pattern for feature in FEATURES)
NAME_PATTERN = rf"{_NO_FEATURE}|(?:{_PART})(?:\+(?:{_PART}))*"
