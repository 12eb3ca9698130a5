"""The kernels that cases choose, which are built before the first one is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, DecodeKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.lab.bench import chosen_kernels as module
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.chosen_kernels import build_chosen, chosen_kernels
from flashsmith.selection.select import select_config

PLAIN = Case("forward", workload_of(128, 2, (8, 2), 300, CAUSAL), ("flashsmith", "fa3"))
H200 = "NVIDIA H200"


def test_the_forward_has_the_kernel_that_attention_chooses() -> None:
    q, k = torch.empty(2, 300, 8, 128, dtype=torch.bfloat16), torch.empty(2, 300, 2, 128)
    expected = select_config(q, True, k=k.bfloat16())
    assert chosen_kernels([PLAIN], None) == [KernelId(expected, CAUSAL)]


@pytest.mark.parametrize("lengths", [(), (40, 300)])
def test_the_backward_has_its_forward_too(lengths: tuple[int, ...]) -> None:
    case = replace(PLAIN, operation="backward", lengths=lengths)
    found = chosen_kernels([case], H200)
    variant = Variant(causal=True, varlen=bool(lengths))
    assert {kernel.variant for kernel in found} == {variant}
    operations = sorted(kernel.config.operation for kernel in found)
    assert operations[-1] == "forward" and set(operations[:-1]) == {"backward"}


def test_few_queries_have_decodes_kernel_and_windows_their_variant() -> None:
    few = Case("forward", workload_of(128, 2, (32, 8), (20, 12000), CAUSAL), ("flashsmith",))
    (kernel,) = chosen_kernels([few], H200)
    assert isinstance(kernel.config, DecodeKernelConfig) and kernel.variant == CAUSAL
    (kernel,) = chosen_kernels([replace(PLAIN, window=40)], H200)
    assert kernel.variant == Variant(causal=True, window=True)


def test_cases_that_choose_nothing_here_have_none() -> None:
    refused = replace(PLAIN, workload=workload_of(512, 1, 1, 64, FULL))
    by_name = replace(PLAIN, candidates=("fa3",))
    others = [replace(PLAIN, operation="decode"), replace(PLAIN, score="softcap")]
    assert chosen_kernels([refused, by_name, *others], H200) == []


def test_cases_of_decode_alone_build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpu_of", lambda device: (H200, None))
    monkeypatch.setattr(module, "target_of", lambda device: Target.cuda("sm_90a"))
    build_chosen([replace(PLAIN, operation="decode")])
