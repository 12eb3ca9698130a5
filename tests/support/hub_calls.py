"""Calls the functions of a kernel of the Hugging Face Hub, in a process that has not imported
flashsmith::

    python -m support.hub_calls FOLDER

It prints JSON: for each function the error of its result and that of torch at the same precision,
both against float64, and which package computed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

# A machine with torch, tvm-ffi and the package `kernels` need not have these.
NOT_NEEDED = ("ninja", "rich", "typer", "jinja2")


def exact(*qkv: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Returns attention of (batch, seq_len, heads, d_head), aligned at the bottom right."""
    q, k, v = (t.transpose(1, 2) for t in qkv)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        mask = mask.tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)


def with_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Returns attention with a logit for each head that has no value."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    sinks = s[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def calls(kernel: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields a name, our result, torch's at the same precision, and the exact one."""

    def both(of: Any, *tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return of(*tensors, **options), of(*(t.double() for t in tensors), **options)

    q, k, v = (torch.randn(2, 9, 4, 64).half() for _ in range(3))
    dense = both(exact, q, k, v, causal=True)
    yield "flash_attn_func", kernel.flash_attn_func(q, k, v, causal=True), *dense
    yield "attention", kernel.attention(q, k, v, causal=True), *dense

    offsets = torch.tensor([0, 9, 18], dtype=torch.int32)
    q_, k_, v_ = (t.flatten(0, 1) for t in (q, k, v))
    packed = kernel.flash_attn_varlen_func(q_, k_, v_, offsets, offsets, 9, 9, causal=True)
    yield "flash_attn_varlen_func", packed.view_as(q), *dense

    sinks = torch.tensor([0.5, -1.0, 2.0, 4.0]).half()
    found = kernel.flash_attn_func(q, k, v, s_aux=sinks)
    yield "s_aux", found, *both(with_sink, q, k, v, sinks)

    one = q[:, :1].contiguous()
    step = both(exact, one, k, v)
    lengths = torch.full((2,), 9, dtype=torch.int32)
    found = kernel.flash_attn_with_kvcache(one, k, v, cache_seqlens=lengths)
    yield "flash_attn_with_kvcache", found, *step
    yield "decode", kernel.decode(None, one, k, v, cache_seqlens=lengths), *step
    found = kernel.flash_attn_with_kvcache(one, k, v, cache_seqlens=lengths, s_aux=sinks)
    yield "s_aux of decode", found, *both(with_sink, one, k, v, sinks)


def main(folder: str) -> None:
    for name in NOT_NEEDED:
        sys.modules[name] = None  # type: ignore[assignment]  # imports raise
    from kernels import get_local_kernel

    kernel = get_local_kernel(Path(folder))
    import flashsmith

    torch.manual_seed(0)
    errors = {
        name: [float((each - right).abs().max()) for each in (ours, torchs)]
        for name, ours, torchs, right in calls(kernel)
    }
    print(json.dumps({"package": flashsmith.__file__, "id": kernel.__name__, "errors": errors}))


if __name__ == "__main__":
    main(sys.argv[1])
