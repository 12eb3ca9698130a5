"""The variant of a kernel: what it computes, apart from how."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flashsmith.configs.features import (
    Feature,
    flag,
    formerly,
    hashed,
    read_features,
    write_features,
)
from flashsmith.problem import Problem

# The parts of a variant's name, joined by +; the name without parts is "full".
FEATURES: tuple[Feature, ...] = (
    *(flag(name, name) for name in ("causal", "window", "softcap", "alibi", "bias", "sinks")),
    flag("varlen", "varlen", former="ragged"),
    flag("padded", "padded"),
    flag("dropout", "dropout"),
    flag("paged", "paged"),
    hashed("score", "score"),
)
_NO_FEATURE = "full"


@formerly(ragged="varlen")
@dataclass(frozen=True, order=True)
class Variant:
    """The semantics of a kernel; the default is full attention.

    Bounds, caps, slopes and lengths are arguments of a call: a variant says which of them exist.

    causal: a query sees no keys beyond a bound ahead of its diagonal.
    window: a query sees no keys beyond a bound behind its diagonal.
    softcap: scores pass through cap * tanh(score / cap).
    alibi: slope * distance is subtracted from scores.
    bias: a tensor is added to the scores.
    sinks: each head has an additional logit without a value.
    varlen: sequences have different lengths, which are on the device.
    padded: rows of q, k, v or o are shorter than the configuration's d_head.
    score: the hash of the caller's score_mod and mask_mod, as a number; 0: none.
    dropout: random weights are dropped.
    paged: keys and values are in pages, which a page table lists; this implies varlen.
    """

    causal: bool = False
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    bias: bool = False
    sinks: bool = False
    varlen: bool = False
    padded: bool = False
    score: int = 0
    dropout: bool = False
    paged: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(field.default):
                raise TypeError(f"{field.name}: expected a {field.type}, got {value!r}")

    @property
    def name(self) -> str:
        return write_features(self, FEATURES) or _NO_FEATURE

    @classmethod
    def from_name(cls, name: str) -> Variant:
        """Returns the variant called `name`. Raises ValueError that lists the features."""
        if name == _NO_FEATURE:
            return cls()
        try:
            return cls(**read_features(name.split("+"), FEATURES))
        except ValueError:
            known = ", ".join([_NO_FEATURE, *(feature.name for feature in FEATURES)])
            raise ValueError(f"variant {name!r} is not known; supported: {known}") from None

    @property
    def knows_positions(self) -> bool:
        """Whether work on a score depends on its position, which takes registers."""
        return self.alibi or self.bias or self.score != 0

    def flop(self, problem: Problem) -> int:
        """Returns the operations of the two matrix products, 2 (d_head + d_v) for each visible
        score.

        Published TFLOP/s of attention are based on this number: a causal mask leaves half of the
        square of scores that ends at the last query and key, and all scores to the left of the
        square.
        """
        n_q, n_k = problem.seq_len_q, problem.seq_len_k
        twice_the_scores = 2 * n_q * n_k
        if self.causal:
            twice_the_scores = min(n_q, n_k) ** 2 + 2 * max(n_k - n_q, 0) * n_q
        d = problem.d_head + problem.d_v
        return d * problem.batch * problem.heads * twice_the_scores

    def tuning_key(self) -> str:
        """Returns the key of the variant in tuned tables: variants with the same key share their
        best configuration."""
        return CAUSAL.name if self.causal else FULL.name

    def to_cpp_struct(self) -> str:
        """Returns the C++ literal, `Variant{.causal = false}`."""
        texts = (f".{field.name} = {_cpp(getattr(self, field.name))}" for field in fields(self))
        return f"Variant{{{', '.join(texts)}}}"

    def demangled(self, with_types: bool) -> str:
        """Returns the literal as c++filt prints it, `Variant{false, 0l}`; with types as profilers
        do, `{(bool)0, (long)0}`."""
        values = ((field.type, getattr(self, field.name)) for field in fields(self))
        texts = (_demangled(str(kind), value, with_types) for kind, value in values)
        return f"Variant{{{', '.join(texts)}}}"


def _cpp(value: object) -> str:
    return str(value).lower()


def _demangled(kind: str, value: int, with_types: bool) -> str:
    """Returns the text of a bool or a 64-bit integer."""
    if with_types:
        return f"({kind if kind == 'bool' else 'long'}){int(value)}"
    return _cpp(value) if kind == "bool" else f"{value}l"


FULL = Variant()
CAUSAL = Variant(causal=True)
VARIANTS = (FULL, CAUSAL)
PAGED = Variant(varlen=True, paged=True)
PAGE_ROWS = 16  # the rows of a page must be a multiple of this for bulk copies

# A regular expression that matches every name.
_PART = "|".join(feature.pattern.pattern for feature in FEATURES)
NAME_PATTERN = rf"{_NO_FEATURE}|(?:{_PART})(?:\+(?:{_PART}))*"
