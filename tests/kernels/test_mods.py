"""The caller's score_mod and mask_mod in the kernels of every family."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

import flashsmith
from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.mods.block_mask import BlockMask
from flashsmith.ops.launch import kernel_for
from flashsmith.ops.spec import resolve, spec_of
from flashsmith.reference import compare
from flashsmith.runtime import load_kernels
from flashsmith.runtime.emulation import emulation

# Each family has one configuration, with few keys a block, so that there are several blocks.
CONFIGS = [
    parse_kernel_name_into_config(name)
    for name in (
        "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "(BF16, 64, 64, 32, 1): wgmma+stages_2+overlap+persistent+queue+lazy_4+tma_store",
    )
]
EACH = pytest.mark.parametrize("config", CONFIGS, ids=["sm80", "sm90"])

BATCH, HEADS, N_Q, N_K = 2, 2, 75, 101
SLOPES = torch.tensor([0.5, 0.0625])
RELATIVE = torch.randn(HEADS, N_Q + N_K)
DOCUMENTS = torch.tensor([[0] * 30 + [1] * 50 + [2] * 21, [0] * 101], dtype=torch.int32)
PREFIX = torch.tensor([40, 7], dtype=torch.int32)
CAP = 2.0


@dataclass(frozen=True)
class Mod:
    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None


MODS = {
    "causal": Mod(mask=lambda b, h, q, k: q + (N_K - N_Q) >= k),
    "sliding window": Mod(mask=lambda b, h, q, k: (q - k).abs() <= 20),
    "alibi": Mod(lambda s, b, h, q, k: s - SLOPES[h] * (q - k).abs()),
    "relative bias": Mod(lambda s, b, h, q, k: s + RELATIVE[h, q - k + N_K - 1]),
    "documents": Mod(mask=lambda b, h, q, k: DOCUMENTS[b, q] == DOCUMENTS[b, k]),
    "prefix": Mod(mask=lambda b, h, q, k: (k < PREFIX[b]) | (q >= k)),
    "softcap": Mod(lambda s, b, h, q, k: CAP * torch.tanh(s / CAP)),
    "both, and rows that see nothing": Mod(
        lambda s, b, h, q, k: torch.where(k % 3 == h, -math.inf, s * 0.5 + b),
        lambda b, h, q, k: (q > 10) & (q >= k),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Builds all kernels at once, with one list of kernels and one link."""
    q, k = torch.zeros(BATCH, N_Q, HEADS, 64).half(), torch.zeros(BATCH, N_K, 1, 64).half()
    functions = [{"score_mod": mod.score, "mask_mod": mod.mask} for mod in MODS.values()]
    variants = [resolve(spec_of(q, k, each), q, k).variant for each in functions]
    kernels = [KernelId(config, variant) for config in CONFIGS for variant in variants]
    load_kernels(kernels, Target.emulator())


def tensors(config: ForwardKernelConfig, heads_kv: int = 1) -> list[torch.Tensor]:
    shapes = [(BATCH, N_Q, HEADS, 64), *[(BATCH, N_K, heads_kv, 64)] * 2]
    return [torch.randn(shape).to(config.dtype.to_torch_dtype()) for shape in shapes]


def scores(q: torch.Tensor, k: torch.Tensor, compute: torch.dtype, mod: Mod) -> torch.Tensor:
    keys = k.repeat_interleave(HEADS // k.shape[2], 2).transpose(1, 2).to(compute)
    s = q.transpose(1, 2).to(compute) @ keys.transpose(-1, -2) / 8
    places = [torch.arange(n, dtype=torch.int32) for n in s.shape]
    at = torch.meshgrid(*places, indexing="ij")
    if mod.score is not None:
        s = mod.score(s, *at).to(compute)
    return s if mod.mask is None else s.masked_fill(~mod.mask(*at), -math.inf)


def reference(
    qkv: list[torch.Tensor], mod: Mod, compute: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = qkv
    s = scores(q, k, compute, mod)
    p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0)
    values = v.repeat_interleave(HEADS // v.shape[2], 2).transpose(1, 2).to(compute)
    return (p @ values).transpose(1, 2), s.logsumexp(-1)


def assert_correct(
    found: tuple[torch.Tensor, torch.Tensor], qkv: list[torch.Tensor], mod: Mod
) -> None:
    exact, lse = reference(qkv, mod, torch.float64)
    low, _ = reference(qkv, mod, found[0].dtype)
    result = compare(found[0], exact, low)
    assert result.ok, result
    torch.testing.assert_close(found[1], lse.float(), atol=2e-4, rtol=1e-5)


@EACH
@pytest.mark.parametrize("name", MODS)
def test_scores_and_masks_are_those_of_the_functions(
    config: ForwardKernelConfig, name: str
) -> None:
    qkv, mod = tensors(config), MODS[name]
    found = flashsmith.attention(
        *qkv, config=config, score_mod=mod.score, mask_mod=mod.mask, return_lse=True
    )
    assert_correct(found, qkv, mod)


# The blocks of the mask are larger than the kernels' blocks.
N, BLOCK = 260, 64
BANDS = torch.tensor([70, 140], dtype=torch.int32)


def band(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Lets each head see a window of its own width, far from the diagonal."""
    return (k >= q - BANDS[h]) & (k <= q - 30)


def long_tensors(config: ForwardKernelConfig) -> list[torch.Tensor]:
    return [torch.randn(BATCH, N, HEADS, 64).to(config.dtype.to_torch_dtype()) for _ in range(3)]


def masked(
    config: ForwardKernelConfig, qkv: list[torch.Tensor], block_mask: Any
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns o, lse, and the number of mma or wgmma that the kernel executed."""
    spec = spec_of(*qkv[:2], {"block_mask": block_mask})
    variant: Variant = resolve(spec, *qkv[:2]).variant
    with emulation(kernel_for(config, variant, qkv[0].device)) as emulator:
        o, lse = flashsmith.attention(*qkv, config=config, block_mask=block_mask, return_lse=True)
        counters = emulator.counters()
    return o, lse, counters["mma"] + counters["wgmma"]


@EACH
def test_blocks_of_a_mask_are_visited_alone(config: ForwardKernelConfig) -> None:
    """Some rows see no key, and the block mask may be torch's."""
    qkv, mod = long_tensors(config), Mod(mask=band)
    at = (1, HEADS, N, N)
    ours = flashsmith.create_block_mask(band, *at, device="cpu", BLOCK_SIZE=BLOCK)
    theirs = flex_attention.create_block_mask(band, *at, device="cpu", BLOCK_SIZE=BLOCK)
    o, lse, products = masked(config, qkv, ours)
    assert_correct((o, lse), qkv, mod)
    again, _, _ = masked(config, qkv, theirs)
    assert again.equal(o)

    every_block = BlockMask(
        torch.full_like(ours.kv_num_blocks, 5),
        torch.arange(5, dtype=torch.int32).expand_as(ours.kv_indices),
        torch.zeros_like(ours.full_kv_num_blocks),
        ours.full_kv_indices,
        (BLOCK, BLOCK),
        (N, N),
        band,
    )
    o, _, all_products = masked(config, qkv, every_block)
    assert o.equal(again)
    # The rows of the first head see at most 2 of 5 blocks of keys, those of the second at most 3.
    assert products < all_products * 0.6


@EACH
def test_a_block_that_is_not_listed_is_not_seen_and_a_full_one_is_seen_whole(
    config: ForwardKernelConfig,
) -> None:
    qkv = long_tensors(config)
    mask = flashsmith.create_block_mask(band, 1, HEADS, N, N, device="cpu", BLOCK_SIZE=BLOCK)
    listed = torch.tensor([[1, 3, 0, 2, 4]], dtype=torch.int32).expand(1, HEADS, 5, 5)
    full = torch.tensor([0, 1, 0, 2, 1], dtype=torch.int32).expand(1, HEADS, 5)
    changed = BlockMask(
        mask.kv_num_blocks.clamp(max=1),
        mask.kv_indices,
        full,
        listed,
        (BLOCK, BLOCK),
        (N, N),
        band,
    )

    def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
        row, column = q // BLOCK, k // BLOCK
        in_part = (mask.kv_num_blocks[0][h, row] > 0) & (mask.kv_indices[0][h, row, 0] == column)
        whole = ((column == 1) & (full[0][h, row] > 0)) | ((column == 3) & (full[0][h, row] > 1))
        return whole | (in_part & band(b, h, q, k))

    o, lse, _ = masked(config, qkv, changed)
    assert_correct((o, lse), qkv, Mod(mask=visible))


@EACH
def test_functions_go_with_bounds_and_lengths(config: ForwardKernelConfig) -> None:
    """The index that a function gets is relative to its sequence."""
    lengths = [33, 0, 42]
    places = torch.tensor([0, 33, 33, 75], dtype=torch.int32)
    q, k, v = (torch.randn(75, HEADS, 64).to(config.dtype.to_torch_dtype()) for _ in range(3))
    mod = MODS["both, and rows that see nothing"]
    o = flashsmith.attention(
        q, k, v, config=config, cu_seqlens_q=places, cu_seqlens_k=places, causal=True,
        score_mod=mod.score, mask_mod=mod.mask,
    )  # fmt: skip
    for b, (start, length) in enumerate(zip(places.tolist(), lengths, strict=False)):
        rows = [t[None, start : start + length] for t in (q, k, v)]
        own = Mod(lambda s, _, h, q, k, b=b: mod.score(s, b, h, q, k), mod.mask)
        exact, _ = reference(rows, own, torch.float64)
        low, _ = reference(rows, own, q.dtype)
        assert compare(o[None, start : start + length], exact, low).ok
