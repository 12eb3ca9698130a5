"""Packed sequences may come in any order, though a table of work tiles has the longest first.

The warp of a sequence writes its rows of the table, wherever the lengths of the others put them.
"""

from __future__ import annotations

import pytest

from flashsmith.configs import KernelId, Variant, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import CallArgs, find_kernel
from support.semantics import assert_right, packed, packing_of

LENGTHS = {
    "rising": [10, 70, 130, 200],
    "falling": [200, 130, 70, 10],
    "alike": [65, 65, 65],
    "in turn": [5, 200, 5, 200, 0, 201],
}
CONFIGS = {
    name: parse_kernel_name_into_config(
        f"(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+{name}+lazy_8+stale"
    )
    for name in ("tiles", "queue+tiles")
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("schedule", CONFIGS)
def test_sequences_may_come_in_any_order(schedule: str, name: str, causal: bool) -> None:
    cfg, lengths = CONFIGS[schedule], LENGTHS[name]
    assert_right(
        cfg, packed(cfg, lengths, lengths), Semantics(causal=causal), packing_of(lengths, lengths)
    )


FEW = {
    "sm80": "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
    "sm90": "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+tiles+lazy_8+stale",
    "queue": "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+queue+tiles+lazy_8+stale",
    "cluster": "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+cluster_2",
}
LENGTHS_OF_FEW = {
    "one": [70],
    "empty": [0],
    "rising": [10, 64],
    "falling": [64, 10],
    "alike": [33, 33, 33],
    "beside empty": [0, 5, 0, 47],
    "none": [0, 0, 0, 0],
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS_OF_FEW)
@pytest.mark.parametrize("kernel", FEW)
def test_each_block_finds_its_own_of_few_tiles(kernel: str, name: str, causal: bool) -> None:
    """Each of the emulator's four SMs has one thread block, so that no launch lists the tiles."""
    cfg, lengths = parse_kernel_name_into_config(FEW[kernel]), LENGTHS_OF_FEW[name]
    if kernel == "cluster":
        lengths = lengths[:1]  # a tile is two thread blocks
    q, k, v = packed(cfg, lengths, lengths, heads=(1, 1))
    packing = packing_of(lengths, lengths)
    instance = KernelId(cfg, Variant(causal=causal, varlen=True))
    given = CallArgs(**vars(packing), window_right=0 if causal else -1)
    plan = find_kernel(instance, Target.emulator()).plan(q, k, v, q, extras=given)
    assert len(plan.launches) == 1 and plan.workspace_bytes == 0
    assert_right(cfg, (q, k, v), Semantics(causal=causal), packing)
