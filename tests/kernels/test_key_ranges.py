"""The ranges of keys that a block mask leaves, with blocks that do not divide a kernel's tiles."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.mods.registry import remember
from flashsmith.mods.trace import trace
from flashsmith.runtime import CallArgs, find_kernel, load_kernels
from flashsmith.runtime.workspace import workspace_for
from support.seen import band, telling, wrong_rows
from support.semantics import CONFIGS, FAMILIES

BY_FAMILY = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())
EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
TABLE = torch.ones(2, 2, dtype=torch.bool)  # each call fills it anew
SCORE = remember(trace(None, lambda b, h, q, k: TABLE[q, k]).expression)
ALL, CAUSAL, BAND = CallArgs(), CallArgs(window_right=0), CallArgs(window_left=40, window_right=9)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    variants = [extras._replace(score=SCORE).variant for extras in (ALL, CAUSAL, BAND)]
    load_kernels([KernelId(c, v) for c in CONFIGS.values() for v in variants], Target.emulator())


def wrong(
    cfg: ForwardKernelConfig, seen: torch.Tensor, ranges: torch.Tensor, rows: int, among: CallArgs
) -> list[int]:
    """Returns the rows that do not see exactly the keys of ``seen`` within the window of ``among``;
    the kernel gets one range of keys for every ``rows`` rows."""
    n_q, n_k = seen.shape
    visible = seen & band(n_q, n_k, among.window_left, among.window_right)
    extras = among._replace(
        score=SCORE,
        mod_tensors=[seen],
        key_ranges=ranges[None, None].int().contiguous(),
        rows_per_range=rows,
    )
    kernel = find_kernel(KernelId(cfg, extras.variant), Target.emulator())
    q, k, v = telling(cfg, (1, n_q, 1), (1, n_k, 1))
    o, lse = torch.full_like(q, math.nan), torch.full((1, 1, n_q), math.nan)
    workspace = workspace_for(kernel.plan(q, k, v, o, lse=lse, extras=extras), o.device)
    kernel(q, k, v, o, 1.0, lse=lse, workspace=workspace, extras=extras)
    return wrong_rows(o[0, :, 0], lse[0, 0], visible)


def seen_in(ranges: torch.Tensor, n_q: int, n_k: int, rows: int) -> torch.Tensor:
    """Returns whether a key lies in the range of a row, as (n_q, n_k)."""
    begin, end = ranges.repeat_interleave(rows, 0)[:n_q].unbind(-1)
    keys = torch.arange(n_k)
    return (keys >= begin[:, None]) & (keys < end[:, None])


@pytest.mark.parametrize("place", ["first", "last"])
@EACH
def test_every_entry_of_a_tile_counts(cfg: ForwardKernelConfig, place: str) -> None:
    """In each tile only the range of the first row, or of the last row, covers more keys."""
    n_q, n_k = cfg.B_r + 70, 3 * cfg.B_c
    for rows in range(1, cfg.B_r + 6, 1 if cfg in FAMILIES.values() else 5):
        ranges = torch.tensor([cfg.B_c, cfg.B_c + 2]).repeat(-(-n_q // rows), 1)
        first = torch.arange(0, n_q, cfg.B_r)
        row = first if place == "first" else (first + cfg.B_r - 1).clamp(max=n_q - 1)
        ranges[row // rows] = torch.tensor([0, n_k])
        assert not wrong(cfg, seen_in(ranges, n_q, n_k, rows), ranges, rows, ALL), rows


@pytest.mark.parametrize("among", [ALL, CAUSAL, BAND], ids=["all", "causal", "window"])
@EACH
def test_any_ranges(cfg: ForwardKernelConfig, among: CallArgs) -> None:
    """Some ranges have hidden keys between their ends, and some are empty."""
    rng = Random(str(cfg))
    for _ in range(25):
        n_q, n_k = rng.randint(1, 2 * cfg.B_r + 3), rng.randint(1, 4 * cfg.B_c)
        rows = rng.choice((1, 7, 21, 48, 80, rng.randint(1, n_q)))
        widest = rng.choice((3, cfg.B_c, n_k))
        middle = torch.randint(-20, n_k + 20, (-(-n_q // rows), 1))
        ends = torch.randint(0, widest + 1, (len(middle), 2)) * torch.tensor([-1, 1])
        ranges = (middle + ends).clamp(min=0)
        seen = seen_in(ranges, n_q, n_k, rows)
        if rng.random() < 0.5:
            seen &= torch.rand(n_q, n_k) < 0.5
        assert not wrong(cfg, seen, ranges, rows, among), (n_q, n_k, rows)


def staircase(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k >= q // 5 * 2 - 30) & (k <= q // 3 * 2)


@BY_FAMILY
def test_masks_of_such_blocks(cfg: ForwardKernelConfig) -> None:
    for n_q, n_k in ((63, 63), (65, 100), (150, 90)):
        mask = flashsmith.create_block_mask(staircase, 1, 1, n_q, n_k, "cpu", BLOCK_SIZE=(7, 21))
        q, k, v = telling(cfg, (1, n_q, 1), (1, n_k, 1))
        o, lse = flashsmith.attention(q, k, v, block_mask=mask, config=cfg, return_lse=True)
        seen = staircase(0, 0, torch.arange(n_q)[:, None], torch.arange(n_k))
        assert not wrong_rows(o[0, :, 0], lse[0, 0], seen), (n_q, n_k)
