"""Kernels of all semantics, and calls of them with the keywords of ``flashsmith.forward``."""

from __future__ import annotations

import math
from typing import Any

import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig, KernelId, Variant
from flashsmith.lab.soak import truth_of
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.lab.soak.launches import compare_result
from flashsmith.reference import Packing, Semantics, lse_shape
from support import sm80_kernels, sm90_kernels
from support.problems import Tensors

SM80 = sm80_kernels.VARIED[1]  # (BF16, 64, 64, 32, 4)
SM90 = sm90_kernels.VARIED[3]  # (FP16, 96, 64, 48, 1), a queue of tiles
CLUSTER = sm90_kernels.VARIED[8]  # (FP16, 96, 64, 48, 1), two blocks
TWO_WARPGROUPS = sm90_kernels.VARIED[9]  # (BF16, 128, 128, 64, 2), a cluster that takes turns
CONFIGS = {"sm80": SM80, "sm90": SM90, "cluster": CLUSTER, "two warpgroups": TWO_WARPGROUPS}
FAMILIES = {"sm80": SM80, "sm90": SM90}

# Each feature is alone, or in its most usual combination.
BAND = Variant(causal=True, window=True)
SINGLE = (
    BAND,
    *map(
        Variant.from_name,
        ("softcap", "alibi", "bias", "sinks", "causal+varlen", "padded", "causal+dropout"),
    ),
)
KERNELS = [
    *(KernelId(cfg, variant) for cfg in FAMILIES.values() for variant in SINGLE),
    *(KernelId(cfg, variant) for cfg in (SM80, SM90, CLUSTER) for variant in MIXED_VARIANTS),
    *(KernelId(TWO_WARPGROUPS, variant) for variant in (BAND, MIXED_VARIANTS[0])),
    KernelId(CLUSTER, BAND),
]


def call(
    cfg: ForwardKernelConfig, qkv: Tensors, semantics: Semantics, packing: Packing | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o, in memory that was NaN, and the LSE."""
    q, _, v = qkv
    lengths = {} if packing is None else vars(packing)
    given = {name: t for name, t in lengths.items() if t is not None}
    o = torch.full((*q.shape[:-1], v.shape[-1]), math.nan, dtype=q.dtype)
    found: Any = flashsmith.forward(cfg, *qkv, o, **semantics.keywords, **given, return_lse=True)
    assert found[0].data_ptr() == o.data_ptr() and found[0].shape == o.shape
    assert found[1].shape == lse_shape(q)
    return o, found[1]


def assert_right(
    cfg: ForwardKernelConfig,
    qkv: Tensors,
    semantics: Semantics,
    packing: Packing | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs a call, and compares it with the truth; rows that no sequence uses must not change."""
    o, lse = call(cfg, qkv, semantics, packing)
    truth = truth_of(*qkv, semantics, packing or Packing())
    lse = lse.masked_fill(~truth.lse_used, math.nan)
    of_o, of_lse = compare_result(cfg, truth, o, lse)
    assert of_o.ok, f"{cfg} {semantics.keywords}: o {of_o}"
    assert of_lse.ok, f"{cfg} {semantics.keywords}: lse {of_lse}"
    return o, lse


def tensors_of(
    cfg: ForwardKernelConfig,
    n_q: int,
    n_k: int,
    *,
    batch: int = 2,
    heads: tuple[int, int] = (4, 2),
) -> Tensors:
    """Returns normal q, k, v; ``heads`` are those of q and of k."""
    dtype = cfg.dtype.to_torch_dtype()
    q = torch.randn(batch, n_q, heads[0], cfg.d_head).to(dtype)
    k = torch.randn(batch, n_k, heads[1], cfg.d_head).to(dtype)
    v = torch.randn(batch, n_k, heads[1], cfg.d_head).to(dtype)
    return q, k, v


def packed(
    cfg: ForwardKernelConfig,
    lengths_q: list[int],
    lengths_k: list[int],
    heads: tuple[int, int] = (4, 2),
) -> Tensors:
    """Returns packed q, k, v: the sequences one after the other."""
    q, k, v = tensors_of(cfg, sum(lengths_q), sum(lengths_k), batch=1, heads=heads)
    return q[0], k[0], v[0]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packing_of(lengths_q: list[int], lengths_k: list[int]) -> Packing:
    return Packing(offsets(lengths_q), offsets(lengths_k))
