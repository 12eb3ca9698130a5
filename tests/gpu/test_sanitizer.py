"""compute-sanitizer finds nothing in the kernels of support/sanitized.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

from flashsmith.configs import VARIANTS, KernelId
from flashsmith.jit import build_kernels
from flashsmith.runtime.device import target_of
from support.paths import TESTS
from support.sanitized import configs

pytestmark = pytest.mark.gpu

_PLACES = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]


@pytest.fixture(scope="module")
def sanitizer() -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{p}/bin" for p in _PLACES if p)])
    found = shutil.which("compute-sanitizer", path=path)
    if found is None:
        pytest.fail(
            "compute-sanitizer is neither on PATH nor in CUDA_HOME/bin or /usr/local/cuda/bin; it "
            "comes with the CUDA toolkit (package cuda-sanitizer-13-0 of NVIDIA's apt repository)",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="module", autouse=True)
def _cached(_gpu: None) -> None:
    """Builds one library of all kernels, which the watched process finds in the cache."""
    instances = [KernelId(c, v) for c in configs() for v in VARIANTS]
    build_kernels(instances, target_of(torch.device("cuda")))


@pytest.mark.parametrize(
    ("tool", "clean"),
    [
        ("memcheck", "ERROR SUMMARY: 0 errors"),
        ("racecheck", "RACECHECK SUMMARY: 0 hazards"),
        ("synccheck", "ERROR SUMMARY: 0 errors"),
    ],
)
def test_is_clean(tool: str, clean: str, sanitizer: str) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "FLASHSMITH_BUILD": "0",  # the kernels are in the cache: the watched process only launches
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor its own allocation, with exact bounds
    }
    done = subprocess.run(
        [sanitizer, "--tool", tool, sys.executable, "-m", "support.sanitized"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    launched = 18 if torch.cuda.get_device_capability() == (9, 0) else 14
    assert f"launched {launched} kernels" in done.stdout, done.stdout[-4000:]
    assert clean in done.stdout, done.stdout[-4000:]
    assert done.returncode == 0
