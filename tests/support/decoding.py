"""Requests for decode kernels, KV caches that hold their keys, and the check of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId, parse_kernel_name_into_config
from flashsmith.configs.decode import rows_of_kernels
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import D_HEADS, DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.jit import Target
from flashsmith.lab.soak import truth_of
from flashsmith.lab.soak.prepared import extras_of
from flashsmith.reference import Packing, Semantics
from flashsmith.runtime import (
    CallArgs,
    DecodeKernel,
    DecodeTensors,
    Splitting,
    emulation,
    find_decode,
)
from flashsmith.runtime.plan import Plan

# These are lengths around a slice of keys, and around a round of all warps.
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 130, 300)
WILD = -(1 << 30)  # a page or slot that does not exist

_DTYPES = dict(zip(D_HEADS, (DType.BF16, DType.FP16) * 3, strict=False))
_SM80, _SM90 = DECODE.families
HEURISTICS = [_SM80.heuristic(DecodeWorkload(dtype, d_head)) for d_head, dtype in _DTYPES.items()]
# The sm90 family's choices use one warpgroup or two.
WGMMA = [
    _SM90.heuristic(DecodeWorkload(dtype, d_head, rows))
    for d_head, dtype in _DTYPES.items()
    for rows in rows_of_kernels([_SM90])
]
# No heuristic chooses these: longer slices, other numbers of warps, stages and blocks.
VARIED = [
    parse_kernel_name_into_config(name)
    for name in (
        "(BF16, 64, 16, 32, 4): decode+stages_2+blocks_1",
        "(FP16, 64, 16, 32, 2): decode+stages_3+blocks_4",
        "(FP16, 96, 16, 16, 8): decode+stages_2+blocks_1",
        "(BF16, 128, 16, 16, 2): decode+stages_8+blocks_1",
    )
]
# These take 32 or 64 rows: the heuristic's, Q in shared memory, one team alone, and many teams.
TEAMS: list[DecodeKernelConfig] = [
    _SM80.heuristic(DecodeWorkload(DType.BF16, 64, rows=64)),
    _SM80.heuristic(DecodeWorkload(DType.FP16, 64, rows=32)),
    _SM80.heuristic(DecodeWorkload(DType.FP16, 192, rows=64)),
    *map(
        parse_kernel_name_into_config,
        (
            "(BF16, 64, 64, 64, 4): decode+stages_3+blocks_1",
            "(FP16, 96, 32, 16, 2): decode+stages_5+blocks_2",
        ),
    ),
]
CONFIGS: list[DecodeKernelConfig] = [*HEURISTICS, *VARIED]
PLAIN = HEURISTICS[0]


Scales = tuple[torch.Tensor | None, torch.Tensor | None]  # of k and v


@dataclass(frozen=True, eq=False)
class Requests:
    """Queries, and each request's keys and values in a slot; rows behind a request are NaN."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: tuple[int, ...]

    @property
    def seqlens(self) -> torch.Tensor:
        return torch.tensor(self.lengths, dtype=torch.int32)

    def part(self, requests: Sequence[int]) -> Requests:
        """Returns some of the requests."""
        index = torch.tensor(requests)
        lengths = tuple(self.lengths[i] for i in requests)
        return Requests(self.q[index], self.k[index], self.v[index], lengths)


@dataclass(frozen=True, eq=False)
class Placed:
    """A KV cache, and the tensors that say where requests are in it."""

    k: torch.Tensor
    v: torch.Tensor
    seqlens: torch.Tensor | None
    block_table: torch.Tensor | None = None
    batch_idx: torch.Tensor | None = None
    leftpad: torch.Tensor | None = None


def requests(
    cfg: DecodeKernelConfig,
    lengths: Sequence[int] = LENGTHS,
    n_q: int = 1,
    heads: tuple[int, int] = (4, 2),
    *,
    d_head: int | None = None,
    d_v: int | None = None,
    behind: int = 5,
) -> Requests:
    """Returns requests of normal tensors; ``heads`` are those of q and of k."""
    dtype, batch, d_head = cfg.dtype.to_torch_dtype(), len(lengths), d_head or cfg.d_head
    rows = max(lengths, default=0) + behind
    q = torch.randn(batch, n_q, heads[0], d_head).to(dtype)
    k = torch.randn(batch, rows, heads[1], d_head).to(dtype)
    v = torch.randn(batch, rows, heads[1], d_v or d_head).to(dtype)
    for request, length in enumerate(lengths):
        k[request, length:] = v[request, length:] = math.nan
    return Requests(q, k, v, tuple(lengths))


def in_slots(asked: Requests) -> Placed:
    return Placed(asked.k, asked.v, asked.seqlens)


def in_pages(asked: Requests, page_size: int, seed: int = 0) -> Placed:
    """Returns requests in pages of any order; unused pages are NaN, and the page table is wild
    there."""
    needed = [-(-length // page_size) for length in asked.lengths]
    n_pages, spare = sum(needed), 3
    order = torch.randperm(n_pages + spare, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(needed), max(needed, default=0) + 1), WILD, dtype=torch.int32)
    shape = (n_pages + spare, page_size, asked.k.shape[2])
    k = asked.k.new_full((*shape, asked.k.shape[3]), math.nan)
    v = asked.v.new_full((*shape, asked.v.shape[3]), math.nan)
    for request, pages in enumerate(needed):
        for place in range(pages):
            page = table[request, place] = order.pop()
            first = place * page_size
            rows = min(page_size, asked.k.shape[1] - first)
            k[page, :rows] = asked.k[request, first : first + rows]
            v[page, :rows] = asked.v[request, first : first + rows]
    return Placed(k, v, asked.seqlens, table)


def kernel_of(cfg: DecodeKernelConfig, q: torch.Tensor, v: torch.Tensor, extras: CallArgs) -> Any:
    """Returns the kernel of a configuration that computes this call."""
    padded = {q.shape[-1], v.shape[-1]} != {cfg.d_head}
    return KernelId(cfg, replace(extras.variant, varlen=False, padded=padded))


def launch(
    kernel: DecodeKernel,
    q: torch.Tensor,
    placed: Placed,
    semantics: Semantics,
    splits: int = 0,
    scales: Scales = (None, None),
    **emulated: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o and lse of one call, in memory that was NaN, with a workspace that was NaN.

    scales: The scales of FP8 keys and values.
    emulated: Options of ``emulation``.
    """
    batch, n_q, n_heads, _ = q.shape
    o = q.new_full((batch, n_q, n_heads, placed.v.shape[-1]), math.nan)
    lse = torch.full((batch, n_heads, n_q), math.nan)
    where = placed.block_table, placed.batch_idx, placed.leftpad
    tensors = DecodeTensors(q, placed.k, placed.v, o, lse, *where, *scales)
    extras = extras_of(semantics, Packing(seqused_k=placed.seqlens), (n_q, 0))
    scale = semantics.softmax_scale or q.shape[-1] ** -0.5
    how = Splitting(splits)
    workspace = counters = None
    with emulation(kernel, count=False, **emulated):
        plan = kernel.plan(tensors, how=how, extras=extras)
        if plan.workspace_bytes:
            workspace = torch.full((plan.workspace_bytes,), 255, dtype=torch.uint8)
            counters = torch.zeros(plan.counter_bytes, dtype=torch.uint8)
        kernel(tensors, scale, how=how, counters=counters, workspace=workspace, extras=extras)
    assert counters is None or not counters.any(), "the launch left its counters dirty"
    return o, lse


def run(
    cfg: DecodeKernelConfig,
    asked: Requests,
    semantics: Semantics | None = None,
    placed: Placed | None = None,
    splits: int = 0,
    **emulated: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o and lse; the kernel is built if it is missing."""
    return launch_on(cfg, asked.q, placed or in_slots(asked), semantics, splits, **emulated)


def call_of(
    cfg: DecodeKernelConfig, asked: Requests, *, full: bool = False
) -> tuple[DecodeKernel, DecodeTensors, CallArgs]:
    """Returns what a call over slots takes; the kernel is built if it is missing.

    full: Whether requests have no lengths.
    """
    kernel = find_decode(KernelId(cfg), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    return kernel, tensors, CallArgs(seqused_k=None if full else asked.seqlens)


def plan_of(
    cfg: DecodeKernelConfig,
    asked: Requests,
    splits: int = 0,
    *,
    full: bool = False,
    num_sms: int = 0,
) -> Plan:
    """Returns the plan of a call over slots; the kernel is built if it is missing.

    full: Whether requests have no lengths.
    num_sms: Of the emulated GPU; 0: as many as usual.
    """
    kernel, tensors, extras = call_of(cfg, asked, full=full)
    with emulation(kernel, num_sms=num_sms):
        return kernel.plan(tensors, how=Splitting(splits), extras=extras)


def launch_on(
    cfg: DecodeKernelConfig,
    q: torch.Tensor,
    placed: Placed,
    semantics: Semantics | None = None,
    splits: int = 0,
    **how: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o and lse of queries over a KV cache. how: Options of ``launch``."""
    semantics = semantics or Semantics()
    extras = extras_of(semantics, Packing(seqused_k=placed.seqlens), (q.shape[1], 0))
    kernel = find_decode(kernel_of(cfg, q, placed.v, extras), Target.emulator())
    return launch(kernel, q, placed, semantics, splits, **how)


def assert_near_truth(
    found: tuple[torch.Tensor, torch.Tensor], asked: Requests, semantics: Semantics | None = None
) -> None:
    truth = truth_of(
        asked.q, asked.k, asked.v, semantics or Semantics(), Packing(seqused_k=asked.seqlens)
    )
    of_o, of_lse = truth.compare(*found)
    assert of_o.ok, f"o {of_o}"
    assert of_lse.ok, f"lse {of_lse}"


def assert_right(
    cfg: DecodeKernelConfig,
    asked: Requests,
    semantics: Semantics | None = None,
    placed: Placed | None = None,
    splits: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs requests, and compares o and lse with the truth."""
    found = run(cfg, asked, semantics, placed, splits)
    assert_near_truth(found, asked, semantics)
    return found


def assert_same_bits(
    found: tuple[torch.Tensor, torch.Tensor], others: tuple[torch.Tensor, torch.Tensor]
) -> None:
    for one, other in zip(found, others, strict=True):
        assert torch.equal(one, other)


def assert_wild_page_is_not_followed(cfg: DecodeKernelConfig) -> None:
    """Checks that keys and values on a wild page read as zeros."""
    asked = requests(cfg, (70,), n_q=20)
    placed = in_pages(asked, 16)
    assert placed.block_table is not None
    placed.block_table[0, 1] = WILD
    asked.k[0, 16:32] = asked.v[0, 16:32] = 0
    assert_same_bits(run(cfg, asked, placed=placed), run(cfg, asked))


def assert_bits_are_of_each_request(cfg: DecodeKernelConfig, asked: Requests, splits: int) -> None:
    """Asserts that results do not depend on other requests, nor on the order of warps."""
    together = run(cfg, asked, splits=splits)
    for seed in range(3):
        again = run(cfg, asked, splits=splits, seed=seed, workers=1 + seed % 2)
        assert_same_bits(together, again)
    for i in range(len(asked.lengths)):
        alone = run(cfg, asked.part([i]), splits=splits)
        assert_same_bits(alone, (together[0][i : i + 1], together[1][i : i + 1]))
