"""What a kernel computes, apart from how."""

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

# What the parts of a variant's name tell; they are joined by +. The name of none is "full".
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
    """The semantics of a forward kernel; the default is plain full attention.

    How far bounds lie, caps, slopes and lengths are arguments of a call: a variant says which of
    them there are.

    causal: a query sees no keys ahead of a bound, which moves with it along the keys.
    window: nor behind another.
    softcap: scores pass through cap * tanh(score / cap).
    alibi: scores lose slope * distance.
    bias: a tensor is added to the scores.
    sinks: each head has one more logit, which has no value.
    varlen: sequences have lengths of their own, on the device.
    padded: rows of q, k, v or o are shorter than the configuration's d_head.
    score: the hash of what the caller's score_mod and mask_mod compute, as a number; 0: none.
    dropout: some weights are dropped, at random.
    paged: keys and values lie in pages, which a table lists; sequences are varlen then.
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
        """Whether what is done to a score depends on its place, which takes registers."""
        return self.alibi or self.bias or self.score != 0

    def flop(self, problem: Problem) -> int:
        """Operations of the two matrix products, 2 (d_head + d_v) for each score the mask leaves.

        What published TFLOP/s of attention are based on: a causal mask leaves half of the square of
        scores that ends at the last query and key, and all that is left of it.
        """
        n_q, n_k = problem.seq_len_q, problem.seq_len_k
        twice_the_scores = 2 * n_q * n_k
        if self.causal:
            twice_the_scores = min(n_q, n_k) ** 2 + 2 * max(n_k - n_q, 0) * n_q
        d = problem.d_head + problem.d_v
        return d * problem.batch * problem.heads * twice_the_scores

    def tuning_key(self) -> str:
        """Returns what entries of tuned tables are told apart by: variants that share it share
        their best configuration."""
        return CAUSAL.name if self.causal else FULL.name

    def to_cpp_struct(self) -> str:
        """Returns the C++ literal, `Variant{.causal = false}`."""
        texts = (f".{field.name} = {_cpp(getattr(self, field.name))}" for field in fields(self))
        return f"Variant{{{', '.join(texts)}}}"

    def demangled(self, with_types: bool) -> str:
        """As c++filt prints it, `Variant{false, 0l}`; with types as profilers do,
        `{(bool)0, (long)0}`."""
        values = ((field.type, getattr(self, field.name)) for field in fields(self))
        texts = (_demangled(str(kind), value, with_types) for kind, value in values)
        return f"Variant{{{', '.join(texts)}}}"


def _cpp(value: object) -> str:
    return str(value).lower()


def _demangled(kind: str, value: int, with_types: bool) -> str:
    """Returns a bool, or a 64-bit integer."""
    if with_types:
        return f"({kind if kind == 'bool' else 'long'}){int(value)}"
    return _cpp(value) if kind == "bool" else f"{value}l"


FULL = Variant()
CAUSAL = Variant(causal=True)
VARIANTS = (FULL, CAUSAL)
PAGED = Variant(varlen=True, paged=True)
PAGE_ROWS = 16  # of what pages have a multiple where bulk copies bring them

# A regular expression for every name.
_PART = "|".join(feature.pattern for feature in FEATURES)
NAME_PATTERN = rf"{_NO_FEATURE}|(?:{_PART})(?:\+(?:{_PART}))*"
