"""What the masks of transformers tell the kernels, with no mask of queries times keys if it can be.

A mask is made once for all layers, and given to the attention of each. It is one of

- None: causal or not, and the window, as the layer says itself;
- bool (batch, seq_len_k): beside that, where there is a token;
- int64 (batch, seq_len): beside that, the number of the sequence that a token is of;
- bool (batch, 1, seq_len_q, seq_len_k): which query sees which key, and all of it.
"""

from __future__ import annotations

import inspect
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

require_version("transformers>=5.4", "Before it, masks are made from other arguments.")

MaskFunction = Callable[..., torch.Tensor]


def _code(function: MaskFunction) -> object:
    return getattr(function, "__code__", None)


def _made_by(maker: Callable[..., MaskFunction], *arguments: object) -> object:
    """What tells the functions that ``maker`` returns from others."""
    return _code(maker(*arguments))


def _remapped() -> object:
    """Of what newer versions of transformers have around the numbers of packed sequences."""
    maker = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
    return _made_by(maker, causal_mask_function, None) if maker else object()


_AND = _made_by(and_masks)
_REMAPPED = _remapped()
_PACKED = _made_by(packed_sequence_mask_function, None)
_CAUSAL = _code(causal_mask_function)
# What a layer does by itself: it knows whether it is causal, and its window.
_OF_LAYER = (
    _CAUSAL,
    _code(bidirectional_mask_function),
    _made_by(sliding_window_overlay, 0),
    _made_by(masking_utils.sliding_window_bidirectional_overlay, 0),
)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor | None:
    """A mask in the form above; registered as an ``AttentionMaskInterface``.

    Args:
        q_length, kv_length: Of the tensors that attention gets.
        q_offset, kv_offset: Positions of the first query and key.
        mask_function: Whether a query sees a key, by their positions.
        attention_mask: (batch, length): where there is a token, by position.
        keywords: Of other implementations.
    """
    lengths = (batch_size, q_length, kv_length, q_offset, kv_offset)
    if torch.compiler.is_compiling():
        return _traced(*lengths, mask_function, attention_mask, **keywords)
    parts = {_code(part): part for part in _parts(mask_function)}
    if not parts.keys() <= {*_OF_LAYER, _PACKED}:
        keywords |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return _whole(*lengths, mask_function, attention_mask, **keywords)
    if _PACKED in parts:
        numbers: torch.Tensor = _captured(parts[_PACKED], "packed_sequence_mask")
        return numbers.long()
    if attention_mask is not None:
        attention_mask = attention_mask[:, kv_offset : kv_offset + kv_length]
        attention_mask = F.pad(attention_mask, (0, kv_length - attention_mask.shape[1]))
    # A static cache has keys behind those of the last query, which nobody has written yet.
    written = int(q_offset) + q_length - kv_offset if _CAUSAL in parts else kv_length
    if written < kv_length:
        if attention_mask is None:
            return torch.ones(batch_size, written, dtype=torch.bool, device=keywords.get("device"))
        return attention_mask[:, :written].bool()
    if attention_mask is None or attention_mask.all():
        return None
    return attention_mask.bool()


def _traced(*arguments: Any, **keywords: Any) -> torch.Tensor | None:
    """None, or a mask of queries times keys: a graph has no branches on values, nor sizes that come
    from values.

    ``sdpa_mask`` knows when none is needed, but for windows: ``local_size`` is one, if it is not
    the size of chunks. Layers have their window themselves.
    """
    if getattr(keywords.get("config"), "attention_chunk_size", None) is None:
        keywords["local_size"] = None
    return _whole(*arguments, **keywords)


def _whole(*arguments: Any, **keywords: Any) -> torch.Tensor | None:
    mask: torch.Tensor | None = sdpa_mask(*arguments, **keywords)
    return mask


def _parts(mask_function: MaskFunction) -> Iterator[MaskFunction]:
    """The functions all of which must agree."""
    if _code(mask_function) is _AND:
        for each in _captured(mask_function, "mask_functions"):
            yield from _parts(each)
    elif _code(mask_function) is _REMAPPED:
        yield from _parts(_captured(mask_function, "mask_function"))
    else:
        yield mask_function


def _captured(function: MaskFunction, name: str) -> Any:
    return inspect.getclosurevars(function).nonlocals[name]
