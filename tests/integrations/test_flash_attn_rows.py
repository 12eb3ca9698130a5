"""Rows of packed tensors outside all sequences, in FlashAttention's low-level functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashsmith.flash_attn import calls, flash_attn_interface
from support.attention import attention_by_reference, keywords_of, replace_attention

CU = torch.tensor([2, 5, 5, 9], dtype=torch.int32)  # offsets into 12 rows
OF_NONE = torch.tensor([True] * 2 + [False] * 7 + [True] * 3)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def poisoned(*tensors: torch.Tensor, return_lse: bool = False, **keywords: Any) -> Any:
    """Computes attention, and leaves NaN in rows outside all sequences, as new memory may."""
    out, lse = attention_by_reference(*tensors, return_lse=True, **keywords)
    out, lse = out.clone(), lse.clone()
    out[OF_NONE], lse[:, OF_NONE] = math.nan, math.nan
    return (out, lse) if return_lse else out


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_zero_tensors_has_the_forward_fill_them(
    monkeypatch: pytest.MonkeyPatch, requires_grad: bool, dropout_p: float
) -> None:
    replace_attention(monkeypatch, poisoned)

    def attend(
        q: Any, k: Any, v: Any, spec: Any, _out: Any, _config: Any, lse: bool, _: Any
    ) -> Any:
        return poisoned(q, k, v, return_lse=lse, **keywords_of(spec))

    monkeypatch.setattr(calls, "attend_spec_of_any_head", attend)
    q, k, v = (random(12, 2, 16).requires_grad_(requires_grad) for _ in range(3))
    arguments = (q, k, v, CU, CU, 4, 4, dropout_p, None, False)
    torch.manual_seed(3)
    left = flash_attn_interface._flash_attn_varlen_forward(*arguments, return_softmax=True)
    torch.manual_seed(3)
    out, lse, S_dmask, _ = flash_attn_interface._flash_attn_varlen_forward(
        *arguments, return_softmax=True, zero_tensors=True
    )
    assert left[0][OF_NONE].isnan().all()
    assert (out[OF_NONE] == 0).all() and (lse[:, OF_NONE] == -math.inf).all()
    assert torch.equal(out[~OF_NONE], left[0][~OF_NONE])
    assert torch.equal(lse[:, ~OF_NONE], left[1][:, ~OF_NONE])
    assert torch.equal(S_dmask, left[2])


@pytest.mark.parametrize("name", ["_flash_attn_varlen_forward", "_flash_attn_varlen_backward"])
def test_zero_tensors_is_a_flag(name: str) -> None:
    q = random(12, 2, 16)
    lengths = (CU, CU, 4, 4, 0.0, None, False)
    given = (q, q, q, *lengths) if name.endswith("forward") else (
        q, q, q, q, q, torch.zeros(2, 12), None, None, None, *lengths, -1, -1, 0.0, None, False
    )  # fmt: skip
    with pytest.raises(TypeError, match="zero_tensors is 1; expected True or False"):
        getattr(flash_attn_interface, name)(*given, zero_tensors=1)
