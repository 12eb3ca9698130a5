"""The masks of transformers' layers, without materialising queries times keys if possible.

A mask is made once for all layers and passed to each layer's attention. A ``LazyMask`` describes
what the mask functions compute: causality, window, padding and sequences. Attributes of layers are
ignored, because many contradict their model's masks. A mask that kernel arguments cannot express,
or that a model works on itself, becomes a tensor (batch, 1, seq_len_q, seq_len_k) that is added to
the scores: every model supports this form, as in eager attention, but not all support a bool mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import masking_utils
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    packed_sequence_mask_function,
    sdpa_mask,
    sliding_window_overlay,
)
from transformers.utils.versions import require_version

from flashsmith.integrations.lazy_mask import LazyMask, added

require_version("transformers>=5.4", "Before it, masks are made from other arguments.")

MaskFunction = Callable[..., torch.Tensor]


def _code(function: MaskFunction) -> object:
    return getattr(function, "__code__", None)


def _made_by(maker: Callable[..., MaskFunction], *arguments: object) -> object:
    """Returns an object that identifies the functions that ``maker`` returns."""
    return _code(maker(*arguments))


def _remapped() -> object:
    """Identifies the wrapper that newer versions of transformers have around packed-sequence
    masks."""
    maker = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
    return _made_by(maker, causal_mask_function, None) if maker else object()


# Types of layers whose attention gets the mask unchanged, or none.
_PLAIN = frozenset(
    (
        *("full_attention", "sliding_attention", "chunked_attention", "window_attention"),
        *("linear_attention", "conv", "moe", "hybrid", "hybrid_sliding", "attention", "mamba"),
    )
)

_AND = _made_by(and_masks)
_REMAPPED = _remapped()
_PACKED = _made_by(packed_sequence_mask_function, None)
_CAUSAL = _code(causal_mask_function)
_BIDIRECTIONAL = _code(bidirectional_mask_function)
_WINDOW = _made_by(sliding_window_overlay, 0)
_WINDOW_AROUND = _made_by(masking_utils.sliding_window_bidirectional_overlay, 0)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: torch.Tensor | LazyMask | None = None,
    **keywords: Any,
) -> torch.Tensor | LazyMask | None:
    """Returns a mask in the form above, or None if every query sees every key; implements
    ``AttentionMaskInterface``.

    Args:
        q_length, kv_length: The lengths of attention's tensors.
        q_offset, kv_offset: The positions of the first query and key.
        mask_function: The function of positions that says whether a query sees a key.
        attention_mask: (batch, length): which positions are tokens; or an earlier result of this
            function, from a caller that makes masks ahead.
        keywords: Arguments of other implementations. If ``allow_is_causal_skip`` or
            ``allow_is_bidirectional_skip`` is False, the model may work on the mask.
    """
    if isinstance(attention_mask, LazyMask):
        return attention_mask
    dtype = keywords.get("dtype", torch.float32)
    traced = torch.compiler.is_compiling()
    words = (_words_in_graph if traced else _words)(mask_function, keywords)
    # A graph has no branches on values, and no sizes that depend on them.
    unknown = traced and (attention_mask is not None or isinstance(q_offset, torch.Tensor))
    if words is None or unknown or _is_asked_for(words, q_length, keywords):
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        lengths = (batch_size, q_length, kv_length, q_offset, kv_offset)
        whole = sdpa_mask(*lengths, mask_function, attention_mask, **keywords | skips)
        assert whole is not None
        return added(whole, dtype)
    offset: Any = (q_offset if traced else int(q_offset)) - kv_offset
    kind = {"dtype": dtype, "device": keywords.get("device", "cpu")}
    mask = LazyMask(batch_size, q_length, kv_length, offset=offset, **words, **kind)
    if attention_mask is not None:
        tokens = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        if not tokens[:, : mask.seen].all() or tokens.shape[1] < mask.seen:
            mask.tokens = F.pad(tokens, (0, kv_length - tokens.shape[1]))
    if keywords.get("allow_is_bidirectional_skip") and mask.hides_nothing:
        return None
    return mask


def _is_asked_for(words: dict[str, Any], q_length: int, keywords: dict[str, Any]) -> bool:
    """Returns whether a model needs a tensor. transformers requests one also for packed sequences
    and for one query beside a static cache; kernels handle these. Layers of unknown types may add
    keys of their own to the mask."""
    if not _PLAIN.issuperset(getattr(keywords.get("config"), "layer_types", None) or ()):
        return True
    if "allow_is_bidirectional_skip" in keywords:
        return not keywords["allow_is_bidirectional_skip"]
    if "sequences" in words or q_length == 1:
        return False
    return not keywords.get("allow_is_causal_skip", True)


# ---- what mask functions say, as LazyMask has it ----


def _words(mask_function: MaskFunction, keywords: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the LazyMask arguments of a mask function; None if a part of it is unknown, or its
    window is empty."""
    behind, ahead, sequences = [], [], {}
    remapped = False  # to positions in each sequence, which keep distances between rows
    for part in _parts(mask_function):
        code = _code(part)
        if code is _CAUSAL:
            ahead.append(0)
        elif code is _WINDOW:
            behind.append(_captured(part, "sliding_window") - 1)
        elif code is _WINDOW_AROUND:
            behind.append(_captured(part, "sliding_window"))
            ahead.append(behind[-1])
        elif code is _PACKED:
            sequences = {"sequences": _captured(part, "packed_sequence_mask").long()}
        elif code is _REMAPPED:
            remapped = True
        elif code is not _BIDIRECTIONAL:
            return None
    if any(bound < 0 for bound in behind) or (remapped and not sequences):
        return None
    return {"behind": min(behind, default=None), "ahead": min(ahead, default=None)} | sequences


def _words_in_graph(mask_function: MaskFunction, keywords: dict[str, Any]) -> dict[str, Any] | None:
    """Returns ``_words`` in a graph, where dynamo shows no captured variables: ``local_size`` is
    the window of joined functions, if they are the only ones and it is not a chunk size."""
    code = _code(mask_function)
    if code is _CAUSAL or code is _BIDIRECTIONAL:
        return {"behind": None, "ahead": 0 if code is _CAUSAL else None}
    around = keywords.get("allow_is_bidirectional_skip", False)
    window = keywords.get("local_size")
    chunks = getattr(keywords.get("config"), "attention_chunk_size", None)
    alone = around or keywords.get("allow_is_causal_skip", True)
    if code is not _AND or not alone or chunks is not None or window is None or window < 1:
        return None
    return {"behind": window, "ahead": window} if around else {"behind": window - 1, "ahead": 0}


def _parts(mask_function: MaskFunction) -> Iterator[MaskFunction]:
    """Yields the functions that all must agree, and wrappers around them that change positions."""
    if _code(mask_function) is _AND:
        for each in _captured(mask_function, "mask_functions"):
            yield from _parts(each)
    elif _code(mask_function) is _REMAPPED:
        yield mask_function
        yield from _parts(_captured(mask_function, "mask_function"))
    else:
        yield mask_function


def _captured(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents
