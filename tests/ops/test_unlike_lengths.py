"""The choice of a backward's kernels takes the longest sequence and whether lengths are unlike, and
a remembered call serves no call that differs in these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import flashsmith
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.ops import backward
from flashsmith.problem import Problem
from flashsmith.selection.choose import forget_calls

HEADS, D_HEAD = 2, 64
ALIKE, UNLIKE = (100, 95, 95, 94), (104, 100, 90, 90)  # as many rows, and bounds of one size class


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BackwardWorkload]]:
    """The workloads for which kernels were chosen."""
    workloads: list[BackwardWorkload] = []
    choose_for = backward.choose_for

    def noting(operation: object, workload: BackwardWorkload, *device: object) -> object:
        workloads.append(workload)
        return choose_for(operation, workload, *device)  # type: ignore[arg-type, type-var]

    monkeypatch.setattr(backward, "choose_for", noting)
    forget_calls()
    backward._choices.clear()
    yield workloads
    forget_calls()
    backward._choices.clear()


def train(lengths: tuple[int, ...], **keywords: object) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    rows = torch.randn(sum(lengths), HEADS, D_HEAD, dtype=torch.bfloat16, requires_grad=True)
    longest = max(lengths)
    o = flashsmith.attention(
        *(rows, rows, rows), causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets,
        max_seqlen_q=longest, max_seqlen_k=longest, **keywords,
    )  # type: ignore[arg-type]  # fmt: skip
    o.sum().backward()


def test_calls_differ_by_whether_lengths_are_unlike(asked: list[BackwardWorkload]) -> None:
    for lengths in (ALIKE, ALIKE, UNLIKE, UNLIKE, ALIKE):
        train(lengths)
    assert [workload.unlike for workload in asked] == [False, True]
    for workload in asked:
        problem = Problem.of_shapes(
            workload.dtype, *[torch.Size((4, 104, HEADS, D_HEAD))] * 2, D_HEAD
        )
        assert replace(workload, problem=problem.representative) == workload


def test_calls_differ_by_the_longest_sequence(asked: list[BackwardWorkload]) -> None:
    for lengths in (UNLIKE, (200, 100, 42, 42)):
        train(lengths)
    assert [workload.problem.seq_len_k for workload in asked] == [104, 208]
    assert {workload.problem.batch for workload in asked} == {4}


def test_lengths_on_the_gpu_alone_count_as_unlike(asked: list[BackwardWorkload]) -> None:
    used = torch.tensor([90, 80], dtype=torch.int32)
    q = torch.randn(2, 90, HEADS, D_HEAD, dtype=torch.bfloat16, requires_grad=True)
    for lengths in ({}, {"seqused_k": used}):
        flashsmith.attention(q, q, q, causal=True, **lengths).sum().backward()
    assert [workload.unlike for workload in asked] == [False, True]
