"""Layouts that one family's kernels do not accept: callers that name no kernel never notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import CAUSAL, FULL, KernelId, Variant
from flashsmith.configs.registry import BACKWARD
from flashsmith.jit import Target
from flashsmith.ops import backward, launch
from flashsmith.ops.layout import laid_out
from flashsmith.runtime import load_kernels
from flashsmith.selection.choose import forget_calls
from support.backward_kernels import PLAIN
from support.semantics import FAMILIES

SM90, SM80 = FAMILIES["sm90"], FAMILIES["sm80"]
GRADIENTS = PLAIN["sm90"]
VARLEN = Variant(causal=True, varlen=True)
DTYPE, D_HEAD = SM90.dtype.to_torch_dtype(), SM90.d_head
BATCH, N, HEADS = 3, 40, 2
USED = torch.tensor([40, 7, 33], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _sm90_is_chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes sm90 the chosen kernel, as on a GPU of compute capability 9.0."""
    load_kernels([KernelId(SM90, v) for v in (FULL, CAUSAL, VARLEN)], Target.emulator())
    monkeypatch.setattr(launch, "select_for", lambda *_: SM90)
    forget_calls()
    yield
    forget_calls()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(DTYPE)


def sequence_first() -> torch.Tensor:
    """Returns (batch, seq_len, heads, d_head) that lies in memory as (seq_len, batch, heads,
    d_head)."""
    return normal(N, BATCH, HEADS, D_HEAD).transpose(0, 1)


LAYOUTS: dict[str, Any] = {
    "sequence first": sequence_first,
    "one batch for all": lambda: normal(1, N, HEADS, D_HEAD).expand(BATCH, -1, -1, -1),
    "one head for all": lambda: normal(BATCH, N, 1, D_HEAD).expand(-1, -1, HEADS, -1),
    "one row for all": lambda: normal(BATCH, 1, HEADS, D_HEAD).expand(-1, N, -1, -1),
}


@pytest.mark.parametrize("lengths", [{}, {"seqused_k": USED, "causal": True}], ids=["all", "used"])
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_takes_every_layout(layout: str, which: int, lengths: dict[str, Any]) -> None:
    qkv = [normal(BATCH, N, HEADS, D_HEAD) for _ in range(3)]
    qkv[which] = LAYOUTS[layout]()
    dense = [t.contiguous() for t in qkv]
    expected = flashsmith.attention(*dense, **lengths, config=SM90)
    for _ in range(2):  # the second call is a repeated one
        assert flashsmith.attention(*qkv, **lengths).equal(expected)
    assert flashsmith.attention(*dense, **lengths).equal(expected)


def test_a_result_goes_where_it_is_wanted() -> None:
    """The call leaves unused rows of the output as they were."""
    qkv = [normal(BATCH, N, HEADS, D_HEAD) for _ in range(3)]
    out = sequence_first().fill_(7)
    flashsmith.attention(*qkv, seqused_q=USED, causal=True, out=out)
    expected = torch.full((BATCH, N, HEADS, D_HEAD), 7.0, dtype=DTYPE)
    flashsmith.attention(*qkv, seqused_q=USED, causal=True, out=expected, config=SM90)
    assert out.equal(expected)


def test_a_kernel_that_was_named_refuses() -> None:
    with pytest.raises(ValueError, match="no multiple of its sequence stride"):
        flashsmith.attention(*[sequence_first()] * 3, seqused_k=USED, config=SM90)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_every_layout(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_kernels([KernelId(GRADIENTS, VARLEN)], Target.emulator())
    monkeypatch.setattr(type(BACKWARD), "choose_by_heuristic", lambda *_: GRADIENTS)
    backward._choices.clear()
    d_head, dtype = GRADIENTS.d_head, GRADIENTS.dtype.to_torch_dtype()
    qkv = [LAYOUTS[layout]()[..., :d_head].to(dtype) for _ in range(3)]
    qkv = [t if 0 in t.stride() else t.transpose(0, 1).contiguous().transpose(0, 1) for t in qkv]
    do = torch.randn(N, BATCH, HEADS, d_head).to(dtype).transpose(0, 1)
    lengths = {"seqused_k": USED}
    o, lse = flashsmith.attention(*qkv, causal=True, **lengths, config=SM80, return_lse=True)
    dense = flashsmith.backward(
        GRADIENTS, do.contiguous(), *(t.contiguous() for t in qkv), o, lse, causal=True, **lengths
    )
    for _ in range(2):
        found = flashsmith.backward(None, do, *qkv, o, lse, causal=True, **lengths)
        assert all(torch.equal(getattr(found, n), getattr(dense, n)) for n in "qkv")
    backward._choices.clear()


def test_what_holds_one_row_or_batch_is_not_copied() -> None:
    """The stride that does not fit is never used."""
    memory = normal(4096)
    one_row = memory.as_strided((BATCH, 1, HEADS, D_HEAD), (264, 80, D_HEAD, 1))
    one_batch = memory.as_strided((1, 3, HEADS, D_HEAD), (264, 160, D_HEAD, 1))
    several = memory.as_strided((BATCH, 3, HEADS, D_HEAD), (264, 160, D_HEAD, 1))
    for t in (one_row, one_batch):
        assert laid_out(SM90, True, t)[0] is t
    assert laid_out(SM90, False, several)[0] is several
    assert laid_out(SM90, True, several)[0].is_contiguous()
