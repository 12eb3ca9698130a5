"""An attention implementation of Hugging Face's transformers.

name = flashsmith.integrations.transformers.register()
model = AutoModel.from_pretrained(..., attn_implementation=name)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface

from flashsmith.integrations.arguments import float32, with_dense_rows
from flashsmith.integrations.heads import attend_any_head
from flashsmith.integrations.packing import Packing, unpack
from flashsmith.integrations.sdpa import bias_of
from flashsmith.integrations.transformers_masks import attention_mask
from flashsmith.reference.dropout import check_dropout

NAME = "smith"

# Of a mask or bias of its own for each query and key.
_DIMENSIONS = 4
# How transformers passes packed sequences.
_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def register(name: str = NAME) -> str:
    """Has transformers know flashsmith's attention, and its masks, by a name.

    Args:
        name: For ``attn_implementation``; without "flash" in it: transformers takes such a name for
            one of FlashAttention's packages, looks for that, and fails.

    Returns:
        name.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; expected a str")
    if "flash" in name:
        raise ValueError(
            f"name is {name!r}; expected one without 'flash': transformers would look for a "
            "package of FlashAttention"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer.

    Args:
        query: (batch, heads, seq_len_q, d_head); key and value with their own heads and length.
        attention_mask: As ``transformers_masks`` makes it; or a caller's own of 4 dimensions.
        dropout: The share of weights that are dropped, below 1.
        sliding_window: A query sees this many keys up to its own; without ``is_causal``, after its
            own, too.
        s_aux: (heads,): the logits of sinks.
        position_bias: (batch or 1, heads, seq_len_q, seq_len_k): added to the scores.
        keywords: Of packed sequences cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k.

    Returns:
        (batch, seq_len_q, heads, d_v), and None in place of the weights.
    """
    check_dropout(dropout, "dropout")
    if keywords.get("cache") is not None:
        raise NotImplementedError("cache is given; a paged cache is not supported yet, only None")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    semantics: dict[str, Any] = {
        "causal": causal,
        "softmax_scale": scaling,
        "softcap": softcap or 0.0,
        "window_size": (-1, -1) if sliding_window is None else (sliding_window - 1,) * 2,
        "sinks": float32("s_aux", s_aux),
        "dropout_p": dropout,
    }
    query, key = _as_value(query, value), _as_value(key, value)
    mask = attention_mask
    if position_bias is not None or (mask is not None and mask.ndim == _DIMENSIONS):
        return _attend_with_bias(query, key, value, mask, position_bias, **semantics), None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if mask is not None and mask.dtype == torch.bool:
        return _attend_with_padding(q, k, v, mask, **semantics), None
    if all(keywords.get(name) is not None for name in _PACKING):
        packed = _packed(*(keywords[name] for name in _PACKING))
        return _attend_packed(q, k, v, **packed, **semantics), None
    if mask is not None:
        return _attend_packed(q, k, v, **_packed_by_numbers(mask), **semantics), None
    return _attend(q, k, v, **semantics), None


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **semantics: Any) -> torch.Tensor:
    o = attend_any_head(q, k, v, **semantics)
    assert isinstance(o, torch.Tensor)
    return o


def _attend_with_bias(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    **semantics: Any,
) -> torch.Tensor:
    """With a number for each query and key; of tensors (batch, heads, seq_len, d_head)."""
    keys = key.shape[2] if mask is None else mask.shape[-1]
    key, value = key[:, :, :keys], value[:, :, :keys]
    bias = None
    if mask is not None and mask.ndim == _DIMENSIONS:
        bias = bias_of(mask, query, key)
        semantics |= {"causal": False, "window_size": (-1, -1)}
    elif mask is not None and mask.dtype == torch.bool:
        bias = bias_of(mask[:, None, None], query, key)
    elif mask is not None:
        bias = bias_of(mask[:, None, :, None] == mask[:, None, None], query, key)
    if position_bias is not None:
        position_bias = position_bias[..., :keys].to(query.dtype)
        bias = with_dense_rows(position_bias if bias is None else position_bias + bias)
    return _attend(*(t.transpose(1, 2) for t in (query, key, value)), bias=bias, **semantics)


def _attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **semantics: Any
) -> torch.Tensor:
    """Of tensors (batch, seq_len, heads, d_head) whose tokens are all there."""
    o = _attend(*(t.flatten(0, 1) for t in (q, k, v)), **semantics)
    return o.view(*q.shape[:2], *o.shape[1:])


def _attend_with_padding(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, **semantics: Any
) -> torch.Tensor:
    """Of the keys that are there, one behind the other.

    The queries of causal and of window attention are those of the last keys, so that their padding
    is known: it is left out, and gives 0. Other queries may be of another sequence.
    """
    batch, seq_len = q.shape[:2]
    keys = mask.shape[1]
    of_k = _packing_of(mask, keys)
    packed = {"cu_seqlens_k": of_k.cu_seqlens, "max_seqlen_k": of_k.max_seqlen}
    packed_k, packed_v = of_k.pack(k[:, :keys]), of_k.pack(v[:, :keys])
    if not semantics["causal"] and semantics["window_size"] == (-1, -1):
        begins = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * seq_len
        packed |= {"cu_seqlens_q": begins, "max_seqlen_q": seq_len}
        o = _attend(q.flatten(0, 1), packed_k, packed_v, **packed, **semantics)
        return o.view(batch, seq_len, *o.shape[1:])
    of_q = _packing_of(mask, seq_len)
    packed |= {"cu_seqlens_q": of_q.cu_seqlens, "max_seqlen_q": of_q.max_seqlen}
    o = _attend(of_q.pack(q), packed_k, packed_v, **packed, **semantics)
    return unpack(o, of_q.indices, batch, seq_len)


# What all layers ask of one mask, found out once: it waits for the device.
_asked: Any = WeakTensorKeyDictionary()


def _packing_of(mask: torch.Tensor, columns: int) -> Packing:
    """That of the last so many columns."""
    packings: dict[int, Packing] = _asked.setdefault(mask, {})
    if columns not in packings:
        packings[columns] = Packing.of(mask[:, mask.shape[1] - columns :])
    return packings[columns]


def _packed_by_numbers(numbers: torch.Tensor) -> dict[str, Any]:
    """The keywords of sequences that have these numbers, (batch, seq_len)."""
    if numbers not in _asked:
        begins = F.pad(numbers.diff(dim=-1) != 0, (1, 0), value=True).flatten().nonzero().flatten()
        cu_seqlens = F.pad(begins, (0, 1), value=numbers.numel()).int()
        longest = int(cu_seqlens.diff().max())
        _asked[numbers] = _packed(cu_seqlens, cu_seqlens, longest, longest)
    return dict(_asked[numbers])


def _packed(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> dict[str, Any]:
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }


def _as_value(t: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings and norms of some models give float32, beside values of 16 bits."""
    return t if value.dtype == torch.float32 else t.to(value.dtype)
