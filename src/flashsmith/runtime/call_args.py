"""What a call may have beside q, k, v, o and a scale, in the order in which libraries take it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from flashsmith.configs import Variant


class CallArgs(NamedTuple):
    """Tensors that speak DLPack, and numbers; those that a kernel's variant has, and no others.

    alibi_slopes: (n_heads,) or (batch, n_heads), float32.
    bias: (batch, n_heads, seq_len_q, seq_len_k), of the kernel's dtype; a size but the last may be
        1 in place of that.
    sinks: (n_heads,), float32.
    cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32: where sequences begin and end in tensors of
        shape (total, n_heads, d_head).
    seqused_q, seqused_k: (batch,), int32: how many rows of each sequence there are.
    key_ranges: (batch or 1, n_heads or 1, entries, 2), int32: from and before which key
        mask_mod shows any, for every rows_per_range queries; None: not known.
    rng_state: (2,), int64: the seed and offset of what is dropped; None: nothing is.
    mod_tensors: What the caller's score_mod and mask_mod read, a list; None: nothing.
    softcap: 0: none.
    window_left, window_right: How many keys a query sees behind and ahead of its diagonal; -1: all.
    top_left: A query's diagonal is the key of its own index; else they are counted from the ends.
    max_seqlen_q: No sequence has more queries; -1: as many as the tensor's rows.
    score: The hash of what the caller's functions compute, as a number; 0: there are none.
    rows_per_range: How many queries share an entry of key_ranges.
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
    score: int = 0
    rows_per_range: int = 1
    dropout_p: float = 0.0

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Its fields that are numbers, in order: those behind the tensors."""
        return self[_FIRST_NUMBER:]

    @property
    def variant(self) -> Variant:
        """What computes them, for rows that are not padded."""
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
        """Whether sequences have lengths of their own."""
        return not (
            self.cu_seqlens_q is self.cu_seqlens_k is self.seqused_q is self.seqused_k is None
        )


# One object for each: to make one takes a tenth of a packed call.
_variant = functools.lru_cache(1024)(Variant)
_FIRST_NUMBER = CallArgs._fields.index("softcap")


class Scales(NamedTuple):
    """What numbers of float8_e4m3fn are multiplied with; None: 1.

    q_scale, k_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32.
    v_scale: Likewise, float32.
    """

    q_scale: Any = None
    k_scale: Any = None
    v_scale: Any = None


FULL_EXTRAS = CallArgs()
NO_SCALES = Scales()
CAUSAL_EXTRAS = CallArgs(window_right=0)
