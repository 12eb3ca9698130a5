"""compute-sanitizer finds nothing in the progression kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("progression")]

SCRIPT = Path(__file__).with_name("sanitized.py")
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
        "FLASHSMITH_BUILD": "0",  # the kernels are in the cache: the watched process only launches
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor its own allocation, with exact bounds
    }
    done = subprocess.run(
        [sanitizer, "--tool", tool, sys.executable, SCRIPT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert "launched 14 kernels" in done.stdout, done.stdout[-4000:]
    assert clean in done.stdout, done.stdout[-4000:]
    assert done.returncode == 0
