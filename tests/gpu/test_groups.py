"""`attention` of grouped heads on a GPU gives PyTorch's results and gradients in FP32, at sizes at
which it packs heads, and its backward clears sums of dQ while it works on others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

import flashsmith
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.selection.select import select_config

pytestmark = pytest.mark.gpu

GROUPS = ((14, 2), (8, 2), (12, 6), (9, 3), (16, 2))
SEEDS = 12
TOLERANCE = 0.02  # of the largest element: BF16 keeps 8 bits of each product and sum


def lengths(seed: int) -> list[int]:
    drawn = random.Random(seed)
    longest = drawn.randint(300, 4000)
    return [longest, *(drawn.randint(1, longest) for _ in range(drawn.randint(0, 7)))]


def truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Returns causal attention of one sequence, (rows, heads, d_head), in FP32."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    q, k, v = (t.transpose(0, 1).float() for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)


def is_near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    error = (found.float() - expected.float()).abs().max()
    return bool(error <= TOLERANCE * expected.abs().max())


def drawn(seed: int, device: str = "cuda") -> tuple[list[int], list[torch.Tensor]]:
    """Returns the sequences' lengths, and packed q, k, v and the gradient of o."""
    torch.manual_seed(seed)
    found = lengths(seed)
    heads, heads_kv = GROUPS[seed % len(GROUPS)]
    d_head = (64, 128, 128, 96)[seed % 4]
    shapes = [(sum(found), n, d_head) for n in (heads, heads_kv, heads_kv, heads)]
    tensors = [torch.randn(shape, device=device).bfloat16() for shape in shapes]
    return found, [*(t.requires_grad_() for t in tensors[:3]), tensors[3]]


def slices(found: list[int]) -> Iterator[slice]:
    end = 0
    for length in found:
        end += length
        yield slice(end - length, end)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_packed_sequences_of_grouped_heads(seed: int) -> None:
    found, (q, k, v, do) = drawn(seed)
    offsets = torch.tensor([0, *(s.stop for s in slices(found))], dtype=torch.int32, device="cuda")
    o = flashsmith.attention(
        *(q, k, v),
        causal=True,
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=max(found),
        max_seqlen_k=max(found),
    )
    expected = torch.cat([truth(q[s], k[s], v[s]) for s in slices(found)])
    assert is_near(o, expected)
    wanted = torch.autograd.grad(expected, (q, k, v), do.float())
    for _ in range(3):  # the order of additions differs from run to run
        gradients = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
        assert all(map(is_near, gradients, wanted))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_batches_of_grouped_heads(seed: int) -> None:
    (length, *others), (q, k, v, do) = drawn(seed)
    batch = len(others) // 2 + 1
    q, k, v, do = (t.detach()[:length].repeat(batch, 1, 1, 1) for t in (q, k, v, do))
    q, k, v = (t.flip(1).requires_grad_() for t in (q, k, v))
    o, lse = flashsmith.attention(q, k, v, causal=True, return_lse=True)
    expected = torch.stack([truth(*each) for each in zip(q, k, v, strict=True)])
    assert is_near(o, expected)
    scores = q[0, :, -1].float() @ k[0, :, -1].float().mT / q.shape[-1] ** 0.5
    seen = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(lse[0, -1], seen.logsumexp(-1), atol=2e-3, rtol=1e-3)
    wanted = torch.autograd.grad(expected, (q, k, v), do.float())
    gradients = torch.autograd.grad(o, (q, k, v), do)
    assert all(map(is_near, gradients, wanted))


def test_these_shapes_have_packed_kernels() -> None:
    packed = 0
    for seed in range(SEEDS):
        (length, *_), (q, k, _, _) = drawn(seed, "meta")
        q, k = (t[None, :length] for t in (q, k))
        config = select_config(q, causal=True, device=torch.device("cuda"), k=k)
        packed += isinstance(config, Sm90ForwardKernelConfig) and config.packed_heads
    assert packed > SEEDS / 2
