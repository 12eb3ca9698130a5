"""Scales of pages are looked at one by one."""

from __future__ import annotations

import pytest
import torch

from flashsmith.integrations.paged_keys import Pages
from flashsmith.integrations.pages import attend_pages
from support.paged import FEW, MANY, paged


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("n_q", [FEW, MANY])
def test_a_scale_of_16_bits_alone_is_refused(n_q: tuple[int, ...], name: str) -> None:
    given = paged(n_q)
    with pytest.raises(ValueError, match=f"{name} was passed, but k has dtype torch.bfloat16"):
        given.attend(**{name: torch.ones(1)})


