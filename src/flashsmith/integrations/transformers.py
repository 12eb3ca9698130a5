"""An attention implementation of Hugging Face's transformers.

name = flashsmith.integrations.transformers.register()
model = AutoModel.from_pretrained(..., attn_implementation=name)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from flashsmith.integrations.arguments import float32
from flashsmith.integrations.lazy_mask import LazyMask, added
from flashsmith.integrations.transformers_calls import (
    attend,
    attend_packed,
    attend_with_bias,
    attend_with_padding,
    has_gaps,
    numbered_lengths,
    packed_lengths,
)
from flashsmith.integrations.transformers_masks import attention_mask
from flashsmith.ops.layout import with_dense_rows
from flashsmith.reference.dropout import check_dropout

NAME = "smith"

# Arguments of models that would change the result and are not supported.
_REFUSED = {
    "cache": "a paged cache is",
    "block_indices": "attention to chosen blocks of keys is",
}
# The names under which transformers passes packed sequences.
_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def register(name: str = NAME) -> str:
    """Registers flashsmith's attention and masks with transformers under a name.

    Args:
        name: The name for ``attn_implementation``. It must not contain "flash", because
            transformers would look for a FlashAttention package and fail.

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
    attention_mask: torch.Tensor | LazyMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Computes the attention of one layer.

    A mask of ``transformers_masks`` says whether attention is causal, and its window. The layer's
    attributes count only with a padding mask. Without a mask every query sees every key, as in
    eager attention, whatever the layer's attributes are; unless ``is_causal`` is True and the
    model's configuration does not say otherwise.

    Args:
        query: (batch, heads, seq_len_q, d_head); the heads and length of key and value may differ.
        attention_mask: A mask of ``transformers_masks``; or a caller's mask that broadcasts to
            (batch, heads, seq_len_q, seq_len_k), bool or added to the scores, which alone counts;
            or a padding mask (batch, seq_len_k) of bool or integers, not 0 for a token.
        dropout: The share of weights that are dropped, below 1.
        sliding_window: The number of keys up to its diagonal that a query sees; without causality
            as many after the diagonal, too. It is read only with a padding mask, or if attention is
            causal without a mask.
        is_causal: None: with a padding mask, the module's attribute ``is_causal`` decides.
        s_aux: (heads,): the logits of sinks.
        position_bias: (batch or 1, heads, seq_len_q, seq_len_k): added to the scores.
        sinks: (batch, heads, seq_len_q, 1): the logits of sinks of each query.
        indices: (batch, seq_len_q, any): the indices of the only keys that a query may see.
        keywords: cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k of packed sequences.

    Returns:
        (batch, seq_len_q, heads, d_v), and None in place of the weights.
    """
    check_dropout(dropout, "dropout")
    for name, what in _REFUSED.items():
        if keywords.get(name) is not None:
            raise NotImplementedError(f"{name} is given; {what} not supported yet, only None")
    semantics: dict[str, Any] = {
        "softmax_scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": float32("s_aux", s_aux),
        "dropout_p": dropout,
    }
    value = with_dense_rows(value)
    query, key = (with_dense_rows(_as_value(t, value)) for t in (query, key))
    mask: Any = attention_mask
    if mask is None or _is_padding(mask):
        mask = _mask_of_layer(module, query, key, mask, is_causal, sliding_window)
    if indices is not None:
        mask = _without_other_keys(mask, indices, key)
    if isinstance(mask, LazyMask) and not _can_be_said(mask, query, key, position_bias):
        mask = mask.whole()
    if sinks is not None:
        mask = mask.whole() if isinstance(mask, LazyMask) else mask
        mask, key, value = _with_key_of_sinks(mask, position_bias, sinks, key, value)
        position_bias = None
    if isinstance(mask, torch.Tensor):
        return attend_with_bias(query, key, value, mask, position_bias, **semantics), None
    semantics |= {
        "causal": mask.ahead == 0,
        "window_size": tuple(-1 if n is None else n for n in (mask.behind, mask.ahead)),
    }
    if mask.seen != key.shape[2]:  # slicing takes time, even if it keeps all keys
        key, value = key[:, :, : mask.seen], value[:, :, : mask.seen]
    if position_bias is not None:
        return attend_with_bias(query, key, value, None, position_bias, **semantics), None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if mask.tokens is not None:
        return attend_with_padding(q, k, v, mask, **semantics), None
    if all(keywords.get(name) is not None for name in _PACKING):
        lengths = packed_lengths(*(keywords[name] for name in _PACKING))
        return attend_packed(q, k, v, **lengths, **semantics), None
    if mask.sequences is not None:
        return attend_packed(q, k, v, **numbered_lengths(mask), **semantics), None
    return attend(q, k, v, **semantics), None


def _as_value(t: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns t in value's dtype: rotary embeddings and norms of some models return float32 beside
    16-bit values."""
    dtype = value.dtype
    return t if t.dtype == dtype or dtype == torch.float32 else t.to(dtype)


def _is_padding(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.ndim == 2 and not mask.is_floating_point()


def _mask_of_layer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    padding: torch.Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> LazyMask:
    """Returns the mask of a layer without a mask of transformers; the last query's diagonal is the
    last key."""
    batch, _, q_length, _ = query.shape
    kv_length = key.shape[2]
    config = getattr(module, "config", None)
    causal, behind = bool(is_causal) and getattr(config, "is_causal", True), None
    if padding is not None:
        if padding.shape != (batch, kv_length):
            raise ValueError(
                f"attention_mask has shape {tuple(padding.shape)}; expected {(batch, kv_length)}: "
                "(batch, seq_len_k)"
            )
        if is_causal is None and not hasattr(module, "is_causal"):
            raise ValueError(
                f"is_causal is None, and {type(module).__name__} has no attribute is_causal; "
                "expected one of them beside an attention_mask of padding"
            )
        causal = bool(module.is_causal if is_causal is None else is_causal)
    if sliding_window is not None and (causal or padding is not None):
        if sliding_window < 1:
            raise ValueError(f"sliding_window is {sliding_window}; expected at least 1, or None")
        behind = sliding_window - 1
    return LazyMask(
        batch,
        q_length,
        kv_length,
        offset=kv_length - q_length,
        behind=behind,
        ahead=0 if causal else behind,
        tokens=None if padding is None else padding.bool(),
        dtype=query.dtype,
        device=query.device,
    )


def _without_other_keys(mask: Any, indices: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns the mask without all keys but those of ``indices``, (batch, seq_len_q, any)."""
    mask = mask.whole() if isinstance(mask, LazyMask) else mask
    chosen = indices.new_zeros((*indices.shape[:2], key.shape[2]), dtype=torch.bool)
    chosen = chosen.scatter(-1, indices.long(), True)[:, None]
    if mask.dtype == torch.bool:
        both: torch.Tensor = mask & chosen
        return both
    return torch.where(chosen, mask, -torch.inf)


def _with_key_of_sinks(
    mask: torch.Tensor,
    position_bias: torch.Tensor | None,
    sinks: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns bias, keys and values with an additional key, whose score is the sink's logit and
    whose value is 0."""
    bias = added(mask, key.dtype) if mask.dtype == torch.bool else mask
    bias = bias if position_bias is None else bias + position_bias
    bias = bias.to(key.dtype).expand(*sinks.shape[:3], -1)
    bias = torch.cat([bias, sinks.to(key.dtype)], -1)
    return bias, F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))


def _can_be_said(
    mask: LazyMask, query: torch.Tensor, key: torch.Tensor, position_bias: torch.Tensor | None
) -> bool:
    """Returns whether kernel arguments can express the mask; else its elements are added to the
    scores."""
    varlen = mask.tokens is not None or mask.sequences is not None
    if mask.is_banded:
        lengths = (query.shape[2], key.shape[2])
        aligned = mask.offset + mask.q_length == mask.seen
        if lengths != (mask.q_length, mask.kv_length) or not aligned:
            return False
    if not varlen:
        return True
    if position_bias is not None or torch.compiler.is_compiling():
        return False
    if (query.shape[0], key.shape[2]) != (mask.batch, mask.kv_length):
        return False
    if mask.tokens is None:
        return True
    # Packing drops the padding between tokens, which a window would count.
    return mask.sequences is None and not (mask.has_window and has_gaps(mask))
