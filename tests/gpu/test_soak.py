"""The soak on a GPU: every kernel of the tables and progressions, and all choices of the
heuristics."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import DType
from flashsmith.lab.soak import RERUNS, CardLoad, Meaning, SoakCase, check, prepare
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from support.gpu_soak import PARTS, assert_part_is_right, kernels_of_set

pytestmark = pytest.mark.gpu

# Kernels once gave other rows in each run of these problems: one block of keys a tile, many tiles
# for each thread block; batch 4, 18 heads over 3.
ONCE_WRONG = [(500, 500, True), (2000, 64, False), (2000, 128, False), (2000, 300, True)]


@pytest.mark.parametrize(
    ("key", "part"), [(key, part) for key, parts in PARTS.items() for part in range(parts)]
)
def test_every_kernel_is_right_everywhere(key: str, part: int) -> None:
    if key == "fp8" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels of 8 bits need compute capability 9.0")
    assert_part_is_right(key, part)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize(("seq_len_q", "seq_len_k", "causal"), ONCE_WRONG)
def test_problems_that_were_once_wrong(
    seq_len_q: int, seq_len_k: int, causal: bool, dtype: DType
) -> None:
    load = CardLoad()
    problem = Problem(dtype, 128, 4, 18, 3, seq_len_q, seq_len_k)
    case = SoakCase(problem, Meaning(causal=causal))
    prepared = prepare(case, "cuda")
    kernels = [
        kernel
        for kernel in kernels_of_set("forward")
        if kernel.config.serves(problem) and case.kernel(kernel.config) == kernel
    ]
    assert kernels
    load_kernels(kernels, target_of(torch.device("cuda")))
    for kernel in kernels:
        verdict = check(kernel, prepared, reruns=RERUNS, load=load)
        assert verdict.ok, verdict.sentence
    torch.cuda.synchronize()
