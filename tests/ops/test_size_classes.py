"""Calls of one size class share a kernel, and each is planned for its own lengths."""

from __future__ import annotations

from math import nan

import pytest
import torch

import flashsmith
from flashsmith.configs import KernelId
from flashsmith.ops import launch
from flashsmith.problem import size_class
from flashsmith.selection.choose import forget_calls
from support.problems import assert_correct, random_qkv
from support.sm80_kernels import BASE


def test_a_kernel_is_chosen_once_for_lengths_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call is planned for its own lengths, so that all rows are right."""
    forget_calls()
    qkv = random_qkv(BASE, 256)
    flashsmith.forward(BASE, *qkv)
    monkeypatch.setattr(launch, "_checked_config", lambda *_: pytest.fail("chosen again"))
    for length in (255, 241, 256, 250):
        q, k, v = (t[:, :length] for t in qkv)
        assert_correct(flashsmith.forward(BASE, q, k, v), (q, k, v), KernelId(BASE))
    assert len(launch._choices) == 1


def test_a_longer_sequence_of_the_same_size_class_has_all_of_its_tiles() -> None:
    """The second call differs from the first in ``max_seqlen_q`` and offsets alone, but its grid
    needs one more tile of 64 rows."""
    assert size_class(1025) == size_class(1152) == 1152
    q, k = torch.randn(1152, 1, 64).half(), torch.randn(16, 1, 64).half()
    ends = torch.tensor([0, 16], dtype=torch.int32)
    for rows in (1025, 1152):
        out = torch.full_like(q, nan)
        offsets = torch.tensor([0, rows], dtype=torch.int32)
        lengths = {"cu_seqlens_q": offsets, "cu_seqlens_k": ends}
        flashsmith.attention(q, k, k, out=out, max_seqlen_q=rows, max_seqlen_k=16, **lengths)
        expected = (
            torch.softmax(q[:rows, 0].double() @ k[:, 0].double().T / 8, -1) @ k[:, 0].double()
        )
        torch.testing.assert_close(out[:rows, 0].double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("first", [torch.float16, torch.bfloat16])
def test_another_dtype_of_the_same_sizes_is_another_call(first: torch.dtype) -> None:
    for dtype in (first, torch.float16, torch.bfloat16):
        q = torch.randn(1, 64, 1, 64).to(dtype)
        found = flashsmith.attention(q, q, q)
        assert isinstance(found, torch.Tensor) and found.dtype == dtype


def test_gradients_of_a_longer_sequence_of_the_same_size_class_have_all_of_its_tiles() -> None:
    q, k = torch.randn(1152, 1, 64).half(), torch.randn(16, 1, 64).half()
    ends = torch.tensor([0, 16], dtype=torch.int32)
    for rows in (1025, 1152):
        offsets = torch.tensor([0, rows], dtype=torch.int32)
        lengths = {"cu_seqlens_q": offsets, "cu_seqlens_k": ends}
        ours, theirs = (q.clone().requires_grad_() for _ in range(2))
        o = flashsmith.attention(ours, k, k, max_seqlen_q=rows, max_seqlen_k=16, **lengths)
        assert isinstance(o, torch.Tensor)
        o[:rows].sum().backward()
        exact = theirs[:rows, 0].double(), k[:, 0].double()
        (torch.softmax(exact[0] @ exact[1].T / 8, -1) @ exact[1]).sum().backward()
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad[:rows], theirs.grad[:rows], atol=2e-2, rtol=2e-2)
