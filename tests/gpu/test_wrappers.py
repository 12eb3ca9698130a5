"""The wrappers of sm_90 instructions on a GPU, against plain computations."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from flashsmith.jit import find_cuda_toolkit
from support.emulator_program import DEVICE_CASES
from support.paths import CSRC

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma and TMA as wrapped need compute capability 9.0")
    target = tmp_path_factory.mktemp("wrappers") / "program"
    done = subprocess.run(
        [
            str(find_cuda_toolkit().nvcc.path), "-std=c++20", "-O3",
            "-gencode=arch=compute_90a,code=sm_90a",
            f"-I{CSRC}", f"-I{CSRC / 'include'}", f"-I{DEVICE_CASES.parent}",
            str(DEVICE_CASES / "sm90_program.cu"), "-o", str(target),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Performance Loss" not in done.stderr  # serialised wgmma, ignored setmaxnreg
    return target


@pytest.mark.parametrize(
    ("case", "tested"),
    [
        ("products", 368),
        ("copies", 61),
        ("varlen", 48),
        ("sums", 8),
        ("scores", 10),
        ("bytes", 14),
        ("barriers", 20),
        ("clusters", 80),
        ("warps", 15),
        ("pipeline", 10),
    ],
)
def test_wrappers_equal_plain_computation(program: Path, case: str, tested: int) -> None:
    done = subprocess.run([program, case], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["failed"] == []
    assert result["tested"] == tested
