"""Packed sequences may come in any order, though a table of work tiles has the longest first.

The warp of a sequence writes its own entries, wherever the lengths of the others put them.
"""

from __future__ import annotations

import pytest

from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.reference import Semantics
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
