"""What a kernel's result is compared with, and how much it may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch


def reference_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """softmax(q k^T * scale) v in plain torch, computed and returned in ``compute``.

    Args:
        q: (batch, seq_len_q, n_heads, d_head).
        k, v: (batch, seq_len_k, n_heads_kv, d_head); neighbouring heads of q share one of theirs.
        causal: Query i sees keys up to i + seq_len_k - seq_len_q; one that sees none gives 0.
        compute: float64 or float32 for the truth; the tensors' own dtype for what the same
            computation loses in low precision.
    """
    s = _scores(q, k, causal, softmax_scale, compute)
    p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0)
    return (p @ _shared_heads(v, q).to(compute)).transpose(1, 2)


def reference_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The logarithm of the sum of the exponentials, (batch, n_heads, seq_len_q).

    Args: as ``reference_attention``; -inf where a query sees no key.
    """
    return _scores(q, k, causal, softmax_scale, compute).logsumexp(-1)


def _scores(
    q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float | None, compute: torch.dtype
) -> torch.Tensor:
    """(batch, n_heads, seq_len_q, seq_len_k), -inf where masked."""
    keys = _shared_heads(k, q).to(compute).transpose(-1, -2)
    s = q.transpose(1, 2).to(compute) @ keys * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seq_len_q, seq_len_k = s.shape[-2:]
        visible = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device)
        s = s.masked_fill(~visible.tril(seq_len_k - seq_len_q), -math.inf)
    return s


def _shared_heads(t: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """k or v with as many heads as q has, heads before sequence."""
    return t.repeat_interleave(q.shape[2] // t.shape[2], dim=2).transpose(1, 2)


def reference_by_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """As ``reference_attention``, a head at a time: all scores at once may not fit in memory."""
    o = torch.empty(q.shape, dtype=compute, device=q.device)
    sharing = q.shape[2] // k.shape[2]
    for batch, head in product(range(q.shape[0]), range(q.shape[2])):
        part, shared = _head(batch, head), _head(batch, head // sharing)
        o[part] = reference_attention(q[part], k[shared], v[shared], causal=causal, compute=compute)
    return o


def _head(batch: int, head: int) -> tuple[slice, slice, slice]:
    return slice(batch, batch + 1), slice(None), slice(head, head + 1)


@dataclass(frozen=True)
class Comparison:
    """A result against the reference."""

    error: float  # largest absolute difference
    tolerance: float
    worst: str  # where, and both values

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


def compare(o: torch.Tensor, exact: torch.Tensor, low_precision: torch.Tensor) -> Comparison:
    """Compares o with the reference, by the rule of the FlashAttention test suites.

    The largest error may be twice that of the same computation in plain low-precision torch, plus
    what rounding the exact result to o's dtype costs. NaN anywhere is infinite error.

    Args:
        o: The kernel's result, float16 or bfloat16.
        exact: ``reference_attention`` in float64 or float32.
        low_precision: ``reference_attention`` in o's dtype.
    """
    difference = (o.to(exact.dtype) - exact).abs().nan_to_num(nan=math.inf)
    rounding = (exact.to(o.dtype).to(exact.dtype) - exact).abs().max().item()
    allowed = (low_precision.to(exact.dtype) - exact).abs().max().item()
    flat = int(difference.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), o.shape))
    return Comparison(
        error=difference.max().item(),
        tolerance=2 * allowed + 2 * rounding,
        worst=f"at {index}: got {o[index].item():.6g}, expected {exact[index].item():.6g}",
    )
