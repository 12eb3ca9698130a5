"""Optional arguments beside q, k, v, o and a scale, in the order in which libraries take them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from flashsmith.configs import Variant


class CallArgs(NamedTuple):
    """The DLPack tensors and numbers of a kernel's variant; all other fields keep their defaults.

    alibi_slopes: (n_heads,) or (batch, n_heads), float32.
    bias: (batch, n_heads, seq_len_q, seq_len_k), of the kernel's dtype; each size but the last may
        be 1 instead.
    sinks: (n_heads,), float32.
    cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32: the offsets of sequences in tensors of shape
        (total, n_heads, d_head).
    seqused_q, seqused_k: (batch,), int32: the rows in use of each sequence.
    key_ranges: (batch or 1, n_heads or 1, ranges, 2), int32: the first key that mask_mod shows to
        some of rows_per_range queries, and one past the last; None: not known.
    rng_state: (2,), int64: the seed and offset of dropout; None: no dropout.
    mod_tensors: The list of tensors that the caller's score_mod and mask_mod read; None: none.
    softcap: 0: none.
    window_left, window_right: How many keys a query sees behind and ahead of its diagonal; -1: all.
    top_left: Whether a query's diagonal is the key of the same index; else both count from the end.
    max_seqlen_q, max_seqlen_k: Upper bounds of each sequence's queries and keys; -1: the tensor's
        rows.
    score: The hash of the caller's functions, as a number; 0: there are none.
    rows_per_range: The number of queries that share a range of key_ranges.
    dropout_p: The share of weights that are dropped, below 1; 0: none.
    """

    alibi_slopes: Any = None
    bias: Any = None
    sinks: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    seqused_q: Any = None
    seqused_k: Any = None
    key_ranges: Any = None
    rng_state: Any = None
    mod_tensors: Any = None
    softcap: float = 0.0
    window_left: int = -1
    window_right: int = -1
    top_left: bool = False
    max_seqlen_q: int = -1
    max_seqlen_k: int = -1
    score: int = 0
    rows_per_range: int = 1
    dropout_p: float = 0.0

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The fields that are numbers, in order; they follow the tensors."""
        return self[_FIRST_NUMBER:]

    @property
    def variant(self) -> Variant:
        """The variant that these extras need, with rows that are not padded."""
        return _variant(
            causal=self.window_right >= 0,
            window=self.window_left >= 0,
            softcap=self.softcap > 0,
            alibi=self.alibi_slopes is not None,
            bias=self.bias is not None,
            sinks=self.sinks is not None,
            varlen=self.is_varlen,
            dropout=self.rng_state is not None,
            score=self.score,
        )

    @property
    def is_varlen(self) -> bool:
        """Whether the call is varlen: sequences have different lengths."""
        return not (
            self.cu_seqlens_q is self.cu_seqlens_k is self.seqused_q is self.seqused_k is None
        )


# Equal variants share one object, because making one takes a tenth of a packed call.
_variant = functools.lru_cache(1024)(Variant)
_FIRST_NUMBER = CallArgs._fields.index("softcap")


class Scales(NamedTuple):
    """The factors of float8_e4m3fn tensors; None: 1.

    q_scale, k_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32.
    v_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32.
    """

    q_scale: Any = None
    k_scale: Any = None
    v_scale: Any = None


FULL_EXTRAS = CallArgs()
NO_SCALES = Scales()
CAUSAL_EXTRAS = CallArgs(window_right=0)
