"""The calls of attention that a layer of transformers becomes: dense, with a bias, packed, over
padding, or a step of decode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from flashsmith.integrations.heads import attend_any_head, decode_any_head, readable
from flashsmith.integrations.lazy_mask import LazyMask
from flashsmith.integrations.packing import Packing, unpack
from flashsmith.integrations.sdpa import bias_of
from flashsmith.ops.checks import needs_gradient
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.dispatch import MIN_FORWARD_ROWS
from flashsmith.ops.kv_cache import KVCache
from flashsmith.ops.layout import with_dense_rows


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **semantics: Any) -> torch.Tensor:
    o = attend_any_head(q, k, v, **semantics)
    assert isinstance(o, torch.Tensor)
    return o


def attend_with_bias(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    **semantics: Any,
) -> torch.Tensor:
    """Computes attention with a bias for each query and key, of (batch, heads, seq_len, d_head)."""
    keys = key.shape[2]
    bias = None
    if mask is not None:
        mask = mask.to(query.dtype) if mask.is_floating_point() else mask
        bias = bias_of(mask[..., :keys], query, key)
    if position_bias is not None:
        position_bias = position_bias[..., :keys].to(query.dtype)
        bias = with_dense_rows(position_bias if bias is None else position_bias + bias)
    return attend(*(t.transpose(1, 2) for t in (query, key, value)), bias=bias, **semantics)


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **semantics: Any
) -> torch.Tensor:
    """Computes attention of (batch, seq_len, heads, d_head) without padding as packed sequences."""
    o = attend(*(t.flatten(0, 1) for t in (q, k, v)), **semantics)
    return o.view(*q.shape[:2], *o.shape[1:])


def attend_with_padding(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: LazyMask, **semantics: Any
) -> torch.Tensor:
    """Computes attention over packed keys, without padding.

    In causal and window attention, the queries belong to the last keys, so their padding is known:
    padded queries are left out and give 0. Other queries may belong to another sequence.
    """
    batch, seq_len = q.shape[:2]
    keys = k.shape[1]
    if _is_a_step(q, k, v, mask, semantics) and (pads := _left_padding(mask, keys)) is not None:
        return _decode(q, k, v, pads, **semantics)
    of_k = _packing_of(mask, 0, keys)
    packed = {"cu_seqlens_k": of_k.cu_seqlens, "max_seqlen_k": of_k.max_seqlen}
    packed_k, packed_v = of_k.pack(k), of_k.pack(v)
    if not mask.is_banded:
        begins = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * seq_len
        packed |= {"cu_seqlens_q": begins, "max_seqlen_q": seq_len}
        o = attend(q.flatten(0, 1), packed_k, packed_v, **packed, **semantics)
        return o.view(batch, seq_len, *o.shape[1:])
    of_q = _packing_of(mask, keys - seq_len, keys)
    packed |= {"cu_seqlens_q": of_q.cu_seqlens, "max_seqlen_q": of_q.max_seqlen}
    o = attend(of_q.pack(q), packed_k, packed_v, **packed, **semantics)
    return unpack(o, of_q.indices, batch, seq_len)


def _is_a_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: LazyMask,
    semantics: dict[str, Any],
) -> bool:
    """Returns whether the queries are the next few of sequences in a KV cache, and ``decode``
    supports all options of the call."""
    seq_len, keys = q.shape[1], k.shape[1]
    rows = seq_len * (q.shape[2] // max(k.shape[2], 1))
    if not mask.is_banded or seq_len == keys or rows > MIN_FORWARD_ROWS or semantics["dropout_p"]:
        return False
    return not needs_gradient(q, k, v, semantics["sinks"])


def _left_padding(mask: LazyMask, keys: int) -> torch.Tensor | None:
    """Returns the number of keys before each sequence's first token, int32 (batch,); None if there
    is padding behind a token, too. Waits for the device, once for all layers."""
    tokens: Any = mask.tokens

    def find() -> torch.Tensor | None:
        seen = tokens[:, :keys]
        pads = keys - seen.sum(-1, dtype=torch.int32)
        is_left = (torch.arange(keys, device=seen.device) >= pads[:, None]) == seen
        return pads if bool(is_left.all()) else None

    pads: torch.Tensor | None = mask.once(("left", keys), find)
    return pads


def _decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pads: torch.Tensor,
    *,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    softmax_scale: float | None,
    sinks: torch.Tensor | None,
    dropout_p: float,
) -> torch.Tensor:
    """Computes the queries by ``decode``, which reads keys and values in place, behind their
    padding."""
    asked = DecodeOptions(None, causal, window_size, softcap, 0, softmax_scale)
    cache = KVCache(readable(k), readable(v), leftpad=pads)
    o = decode_any_head(asked, DecodeCall(q, cache, None, None, False, None, sinks))
    assert isinstance(o, torch.Tensor)
    return o


def _packing_of(mask: LazyMask, begin: int, end: int) -> Packing:
    """Returns the packing of some columns of the padding mask."""
    tokens: Any = mask.tokens
    packing: Packing = mask.once((begin, end), lambda: Packing.of(tokens[:, begin:end]))
    return packing


def has_gaps(mask: LazyMask) -> bool:
    """Returns whether there is padding between two tokens."""
    tokens: Any = mask.tokens
    begins = (tokens[:, 1:] > tokens[:, :-1]).sum(-1) + tokens[:, 0]
    gaps: bool = mask.once("gaps", lambda: bool((begins > 1).any()))
    return gaps


def numbered_lengths(mask: LazyMask) -> dict[str, Any]:
    """Returns ``packed_lengths`` for a mask that numbers its sequences."""
    numbers: Any = mask.sequences

    def find() -> dict[str, Any]:
        begins = F.pad(numbers.diff(dim=-1) != 0, (1, 0), value=True).flatten().nonzero().flatten()
        cu_seqlens = F.pad(begins, (0, 1), value=numbers.numel()).int()
        longest = int(cu_seqlens.diff().max())
        return packed_lengths(cu_seqlens, cu_seqlens, longest, longest)

    return dict(mask.once("packed", find))


def packed_lengths(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> dict[str, Any]:
    """Returns the lengths of packed sequences as keywords of ``attention``."""
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }
