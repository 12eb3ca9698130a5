"""Lengths on the device that no host checks: whatever they are, only the tensors are touched."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashsmith.configs import KernelId, Variant
from flashsmith.jit import Target
from flashsmith.runtime import CallArgs, find_kernel, load_kernels
from support.semantics import FAMILIES, offsets, tensors_of

ROWS, GUARD = 200, 7.0
VARLEN = Variant.from_name("causal+varlen")
BY_FAMILY = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())
FAR = 2**31 - 1
WILD = {
    "falling": [0, 200, 0, 200, 0, 200, 0, 200, 0, 200],
    "beyond the end": [0, 100, 300, 1000, FAR],
    "below 0": [-FAR - 1, -5, 40, 30, 200],
    "all at the end": [200, 200, 200, 200],
    "backwards": [200, 150, 100, 50, 0],
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(cfg, VARLEN) for cfg in FAMILIES.values()], Target.emulator())


def launch(cfg: Any, **extras: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o and lse, after a check that the guards around them and the workspace are
    unchanged."""
    kernel = find_kernel(KernelId(cfg, VARLEN), Target.emulator())
    q, k, v = (t[0] for t in tensors_of(cfg, ROWS, ROWS, batch=1, heads=(2, 1)))
    whole_o = torch.full((ROWS + 2, 2, cfg.d_head), GUARD, dtype=q.dtype)
    whole_lse = torch.full((2 * ROWS + 8,), GUARD)
    o, lse = whole_o[1:-1], whole_lse[4:-4].view(2, ROWS)
    o.fill_(math.nan)
    lse.fill_(math.nan)
    given = CallArgs(**extras, window_right=0)
    n_bytes = kernel.plan(q, k, v, o, lse=lse, extras=given).workspace_bytes
    memory = torch.zeros(n_bytes + 4096, dtype=torch.uint8)
    memory[n_bytes:] = 77
    kernel(q, k, v, o, 0.1, lse=lse, workspace=memory[:n_bytes] if n_bytes else None, extras=given)
    assert (memory[n_bytes:] == 77).all(), "behind the workspace"
    assert (whole_o[[0, -1]] == GUARD).all() and (
        whole_lse[[*range(4), *range(-4, 0)]] == GUARD
    ).all()
    return o, lse


@pytest.mark.parametrize("name", WILD)
@BY_FAMILY
def test_places_that_cannot_be(cfg: Any, name: str) -> None:
    wild, good = torch.tensor(WILD[name]).int(), offsets([0] * (len(WILD[name]) - 2) + [ROWS])
    for q, k in ((wild, good), (good, wild), (wild, wild)):
        launch(cfg, cu_seqlens_q=q, cu_seqlens_k=k)


@pytest.mark.parametrize("used", [[-1, 5], [FAR, FAR], [201, -FAR - 1]], ids=str)
@BY_FAMILY
def test_used_lengths_that_cannot_be(cfg: Any, used: list[int]) -> None:
    cu_seqlens = offsets([150, 50])
    for side in "qk":
        launch(cfg, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
               **{f"seqused_{side}": torch.tensor(used).int()})  # fmt: skip


@pytest.mark.parametrize("longest", [0, 1, 64, 199])
@BY_FAMILY
def test_sequences_longer_than_the_longest(cfg: Any, longest: int) -> None:
    cu_seqlens = offsets([200, 0, 0])
    launch(cfg, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=longest)


@BY_FAMILY
def test_the_longest_bounds_the_grid_and_never_more_than_the_rows_do(cfg: Any) -> None:
    """A larger grid would start thread blocks without rows, which would only read lengths and
    end."""
    kernel = find_kernel(KernelId(cfg, VARLEN), Target.emulator())
    lengths = [cfg.B_r] * 6
    rows = sum(lengths)
    q, k, v = (t[0] for t in tensors_of(cfg, rows, rows, batch=1, heads=(2, 1)))
    cu = offsets(lengths)

    def blocks(longest: int) -> int:
        given = CallArgs(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, window_right=0)
        x, y, z = kernel.plan(q, k, v, torch.empty_like(q), extras=given).launches[-1].grid
        return x * y * z

    all_rows = blocks(-1)
    assert blocks(rows) == blocks(100 * rows) == all_rows
    if getattr(cfg, "persistent", False):  # as many blocks as the GPU holds
        assert blocks(cfg.B_r) <= all_rows
    else:
        assert blocks(cfg.B_r) == 6 * 2 < all_rows
