"""Tables of work tiles, the longest sequence first, of packed sequences in any order.

The warp of a sequence writes its own entries, wherever the lengths of the others put them.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import flashsmith
from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.reference import compare, reference_varlen

LENGTHS = {
    "rising": (10, 70, 130, 200),
    "falling": (200, 130, 70, 10),
    "alike": (65, 65, 65),
    "in turn": (5, 200, 5, 200, 0, 201),
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
    lengths = LENGTHS[name]
    places = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    q, k, v = (torch.randn(sum(lengths), 1, 64).bfloat16() for _ in "qkv")
    packing = {"cu_seqlens_q": places, "cu_seqlens_k": places}
    longest = {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
    o = flashsmith.attention(q, k, v, config=CONFIGS[schedule], causal=causal, **packing, **longest)
    exact, low = (
        reference_varlen(q, k, v, causal=causal, compute=dtype, **packing)[0]
        for dtype in (torch.float64, torch.bfloat16)
    )
    assert compare(o, exact, low).ok
