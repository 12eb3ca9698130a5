"""A tensor that cannot be a scale of FP8 numbers is refused, whatever argument precedes it."""

from __future__ import annotations

import pytest
import torch

from flashsmith.ops.lengths import check_fp8_scales

GOOD = {
    "None": None,
    "of a tensor": torch.ones(1),
    "of tokens": -torch.ones(2, 3, 1),  # many belong to no key
}


@pytest.mark.parametrize("value", [0.0, -1.0, torch.inf, torch.nan])
@pytest.mark.parametrize("first", GOOD.values(), ids=GOOD.keys())
def test_each_scale_is_looked_at(first: torch.Tensor | None, value: float) -> None:
    check_fp8_scales(k_scale=first, v_scale=torch.ones(2))
    with pytest.raises(ValueError, match=r"v_scale has .*; expected positive numbers"):
        check_fp8_scales(k_scale=first, v_scale=torch.tensor([1.0, value]))
