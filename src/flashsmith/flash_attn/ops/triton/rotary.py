"""FlashAttention's rotary embedding under the name of its Triton kernel, in plain torch."""

from __future__ import annotations

import torch

from flashsmith.integrations.arguments import check_dimensions, check_types
from flashsmith.ops.checks import check_flags

_PADDED, _PACKED = ("batch", "seqlen", "nheads", "headdim"), ("total", "nheads", "headdim")
_POSITIONS = (torch.int32, torch.int64)


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """Computes ``flash_attn.layers.rotary.apply_rotary_emb``, with arguments in another order.

    Args:
        conjugate: Whether rows are rotated by the negative angles, which undoes the rotation.
    """
    check_flags(interleaved=interleaved, inplace=inplace, conjugate=conjugate)
    _check_rows(x, cos, sin, cu_seqlens, max_seqlen)
    positions = _positions(x, seqlen_offsets, cu_seqlens)
    _check_reach(cos, x, seqlen_offsets, cu_seqlens, max_seqlen)
    known = ((positions >= 0) & (positions < cos.shape[0]))[..., None, None]
    at = positions.clamp(0, cos.shape[0] - 1)
    c = torch.where(known, cos.detach().float()[at].unsqueeze(-2), 1.0)
    s = torch.where(known, sin.detach().float()[at].unsqueeze(-2), 0.0)
    turned = _turned(x[..., : 2 * cos.shape[1]].float(), c, -s if conjugate else s, interleaved)
    if inplace:
        x[..., : 2 * cos.shape[1]].copy_(turned)
        return x
    return torch.cat([turned.to(x.dtype), x[..., 2 * cos.shape[1] :]], -1)


def _turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Returns pairs (a, b) as (a cos - b sin, a sin + b cos), in float32."""
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = a * cos - b * sin, a * sin + b * cos
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def _positions(
    x: torch.Tensor, seqlen_offsets: int | torch.Tensor, cu_seqlens: torch.Tensor | None
) -> torch.Tensor:
    """Returns each row's position, (batch or 1, seqlen) or packed (total,); -1 outside all
    sequences."""
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    offsets = _offsets(seqlen_offsets, batch, x.device)
    if cu_seqlens is None:
        return torch.arange(x.shape[1], device=x.device) + offsets[:, None]
    rows = torch.arange(x.shape[0], device=x.device, dtype=cu_seqlens.dtype)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), rows, right=True)
    is_used = (sequence < batch) & (rows >= cu_seqlens[0])
    sequence = sequence.clamp(max=batch - 1)
    own = rows - cu_seqlens[sequence] + offsets.expand(batch)[sequence]
    return torch.where(is_used, own, -1)


def _offsets(seqlen_offsets: int | torch.Tensor, batch: int, device: torch.device) -> torch.Tensor:
    """Returns the offsets, (batch,), or (1,) for all. Raises TypeError or ValueError if invalid."""
    if not isinstance(seqlen_offsets, torch.Tensor):
        if type(seqlen_offsets) is not int:
            kind = type(seqlen_offsets).__name__
            raise TypeError(f"seqlen_offsets is a {kind}; expected an int or a torch.Tensor")
        return torch.tensor([seqlen_offsets], device=device)
    if seqlen_offsets.dtype not in _POSITIONS:
        raise TypeError(
            f"seqlen_offsets has dtype {seqlen_offsets.dtype}; supported are int32 and int64"
        )
    if seqlen_offsets.shape != (batch,):
        raise ValueError(
            f"seqlen_offsets has shape {tuple(seqlen_offsets.shape)}; expected (batch,) = "
            f"({batch},), or an int"
        )
    return seqlen_offsets.to(device)


def _check_rows(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    max_seqlen: int | None,
) -> None:
    check_dimensions(_PADDED if cu_seqlens is None else _PACKED, x=x)
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}; expected a dtype of floating point")
    check_dimensions(("seqlen_ro", "rotary_dim / 2"), cos=cos, sin=sin)
    if cos.shape != sin.shape:
        raise ValueError(
            f"sin has shape {tuple(sin.shape)}, but cos {tuple(cos.shape)}; they must be equal"
        )
    if not 0 < 2 * cos.shape[1] <= x.shape[-1]:
        raise ValueError(
            f"cos has shape {tuple(cos.shape)}, so rotary_dim is {2 * cos.shape[1]}; supported are "
            f"2 to {x.shape[-1]}, the elements of x's rows"
        )
    if cu_seqlens is not None:
        check_types(cu_seqlens=cu_seqlens)
        if cu_seqlens.dtype not in _POSITIONS or cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
            raise ValueError(
                f"cu_seqlens has dtype {cu_seqlens.dtype} and shape {tuple(cu_seqlens.shape)}; "
                "expected int32, (batch + 1,)"
            )
        if type(max_seqlen) is not int:
            raise ValueError(f"max_seqlen is {max_seqlen!r}; with cu_seqlens it must be an int")


def _check_reach(
    cos: torch.Tensor,
    x: torch.Tensor,
    seqlen_offsets: int | torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    max_seqlen: int | None,
) -> None:
    """Raises ValueError for positions beyond cos that are known without reading device memory."""
    longest = x.shape[1] if cu_seqlens is None else max_seqlen or 0
    if isinstance(seqlen_offsets, int):
        longest += seqlen_offsets
    if cos.shape[0] < longest:
        raise ValueError(
            f"cos has {cos.shape[0]} rows, but positions reach {longest}; it needs as many"
        )
