"""The scales of pages are checked one by one."""

from __future__ import annotations

import pytest
import torch

from flashsmith.integrations.pages import attend_pages
from support.paged import FEW, MANY, paged


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("n_q", [FEW, MANY], ids=["few", "many"])
def test_a_scale_of_16_bits_alone_is_refused(n_q: tuple[int, ...], name: str) -> None:
    given = paged(n_q)
    q, k, v, cu_seqlens_q, cu_seqlens_k, longest_q, longest_k = given.arguments
    with pytest.raises(ValueError, match=f"{name} was passed, but k has dtype"):
        attend_pages(
            q, k, v, block_table=given.table, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=longest_q,
            cu_seqlens_k=cu_seqlens_k, max_seqlen_k=longest_k, **{name: torch.ones(1)},
        )  # fmt: skip
