"""Heads of any size, in rows of any layout: copies what kernels cannot read directly."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

from flashsmith.configs import AttentionKernelConfig
from flashsmith.ops.attention import attend, attention
from flashsmith.ops.decode import run_decode
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_calls import run_as_before
from flashsmith.ops.spec import AttentionSpec

_STEP = 8


def attend_any_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    out: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``attention`` of q, k and v with any strides; d_head and d_v need not be multiples
    of 8."""
    d_head, d_v = q.shape[-1], v.shape[-1]
    if not d_head % _STEP and not d_v % _STEP:
        q, k, v = readable(q), readable(k), readable(v)
        return attention(q, k, v, softmax_scale=softmax_scale, out=out, **keywords)
    _refuse_out(out, d_head, d_v)
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    result = attention(_padded(q), _padded(k), _padded(v), softmax_scale=scale, **keywords)
    return _cut(result, d_v)


def attend_spec_of_any_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None,
    config: AttentionKernelConfig | None,
    return_lse: bool,
    deterministic: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``attend_any_head`` of a specification, at a lower cost on the host."""
    d_head, d_v = q.shape[-1], v.shape[-1]
    if not d_head % _STEP and not d_v % _STEP:
        if not _are_contiguous(q, k, v):
            q, k, v = readable(q), readable(k), readable(v)
        return attend(q, k, v, spec, out, config, return_lse, deterministic)
    _refuse_out(out, d_head, d_v)
    if spec.softmax_scale is None:
        spec = spec._replace(softmax_scale=d_head**-0.5)
    q, k, v = map(_padded, (q, k, v))
    return _cut(attend(q, k, v, spec, None, config, return_lse, deterministic), d_v)


def decode_any_head(
    asked: DecodeOptions, call: DecodeCall
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``decode`` of q, k_new and v_new with any strides; d_head and d_v need not be
    multiples of 8. If they are not, the whole cache is copied, and copied back after an append."""
    q, cache, new = call.q, call.cache, call.new
    d_head, d_v = q.shape[-1], cache.v.shape[-1]
    if not d_head % _STEP and not d_v % _STEP:
        taken = readable(q)
        if new is not None:
            call = call._replace(new=new._replace(k=_padded(new.k), v=_padded(new.v)))
        return _decoded(asked, call if taken is q else call._replace(q=taken))
    if asked.softmax_scale is None:
        asked = asked._replace(softmax_scale=d_head**-0.5)
    k, v = _padded(cache.k), _padded(cache.v)
    if new is not None:
        new = new._replace(k=_padded(new.k), v=_padded(new.v))
    call = call._replace(q=_padded(q), cache=cache._replace(k=k, v=v), new=new)
    result = _decoded(asked, call)
    if new is not None:
        cache.k.copy_(k[..., :d_head])
        cache.v.copy_(v[..., :d_v])
    return _cut(result, d_v)


def _decoded(
    asked: DecodeOptions, call: DecodeCall
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    found = run_as_before(*call.told(asked))  # repeats a known call without its checks
    o, lse, _ = run_decode(asked, call) if found is None else found
    return o if lse is None else (o, lse)


def _refuse_out(out: torch.Tensor | None, d_head: int, d_v: int) -> None:
    if out is not None:
        raise ValueError(
            f"out is given, and the heads have {d_head} and {d_v} elements; writing into a tensor "
            f"needs multiples of {_STEP}"
        )


def _cut(result: Any, d_v: int) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Removes the padding of o; the log-sum-exp has none."""
    if isinstance(result, tuple):
        return result[0][..., :d_v], result[1]
    o: torch.Tensor = result[..., :d_v]
    return o


def _padded(t: torch.Tensor) -> torch.Tensor:
    missing = -t.shape[-1] % _STEP
    return readable(F.pad(t, (0, missing)) if missing else t)


def _are_contiguous(*tensors: torch.Tensor) -> bool:
    """Returns whether ``readable`` has nothing to copy, as in nearly all calls. One check serves
    all tensors, because three calls of ``readable`` take a tenth of the host's time for a packed
    call."""
    if is_compiling():
        return False
    for t in tensors:  # noqa: SIM110 - all() takes twice as long
        if not t.is_contiguous() or t.storage_offset() % _STEP:
            return False
    return True


def readable(t: torch.Tensor) -> torch.Tensor:
    """Returns t, or a copy if kernels cannot read it in chunks of 16 bytes: its rows have gaps
    between elements, or begin at no multiple of 8 elements. A graph cannot know the offset of a
    tensor in its memory."""
    if t.is_contiguous() and (is_compiling() or not t.storage_offset() % _STEP):
        return t
    strides = t.stride()
    if len(strides) not in (3, 4):  # its reader refuses it
        return t
    first, second, before_last = strides[0], strides[1], strides[-2]
    if (
        strides[-1] == 1
        and not (first % _STEP or second % _STEP or before_last % _STEP)
        and (is_compiling() or not t.storage_offset() % _STEP)
    ):
        return t
    return t.clone(memory_format=torch.contiguous_format)
