"""Occupancy against hand calculation, and against NVIDIA's own calculator."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from flashsmith.errors import ToolchainError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import find_cuda_toolkit, find_cxx
from flashsmith.lab.report.occupancy import compute_occupancy


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared", "blocks", "limits"),
    [
        ("sm_90a", 255, 128, 49152, 2, ["registers"]),
        ("sm_90a", 168, 128, 49152, 3, ["registers"]),
        ("sm_90a", 169, 128, 49152, 2, ["registers"]),  # units of 256: 169 count as 176
        ("sm_80", 128, 128, 49152, 3, ["shared memory"]),  # 164 KiB / 49 KiB
        ("sm_86", 32, 128, 0, 12, ["threads"]),
        ("sm_80", 32, 256, 0, 8, ["registers", "threads"]),
        ("sm_80", 16, 32, 0, 32, ["block slots"]),
        ("sm_80", 255, 288, 0, 0, ["registers"]),  # 9 warps are checked as if they were 12
        ("sm_90a", 255, 256, 65536, 1, ["registers"]),
        ("sm_80", 32, 32, 163 * 1024, 1, ["shared memory"]),  # just fits, with the driver's 1 KiB
        ("sm_80", 40, 96, 0, 16, ["registers"]),
    ],
)
def test_occupancy(
    arch: str, registers: int, threads: int, shared: int, blocks: int, limits: list[str]
) -> None:
    occupancy = compute_occupancy(arch, registers, threads, shared)
    assert (occupancy.blocks, occupancy.limits) == (blocks, limits)
    assert occupancy.warps == blocks * -(-threads // 32)


_NVIDIA_OCCUPANCY = """
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, max_threads, registers, threads;
  long shared, shared_per_sm;
  while (std::scanf("%d %d %d %ld %d %d %ld", &major, &minor, &max_threads, &shared_per_sm,
                    &registers, &threads, &shared) == 7) {
    cudaOccDeviceProp device{};
    device.computeMajor = major, device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = max_threads;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.warpSize = 32;
    device.sharedMemPerMultiprocessor = shared_per_sm, device.sharedMemPerBlock = 49152;
    device.sharedMemPerBlockOptin = shared_per_sm - 1024, device.reservedSharedMemPerBlock = 1024;
    device.numSms = 100;
    cudaOccFuncAttributes kernel{};
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers;
    kernel.maxDynamicSharedSizeBytes = shared;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    cudaOccDeviceState state{};
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result{};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared))
      return 1;
    std::printf("%d\\n", result.activeBlocksPerMultiprocessor);
  }
}
"""


def test_occupancy_agrees_with_nvidia(tmp_path: Path) -> None:
    """Compares a grid of kernels with the calculator in the CUDA toolkit's C++ header."""
    try:
        include = find_cuda_toolkit().include
    except ToolchainError as error:
        pytest.skip(str(error))
    if not (include / "cuda_occupancy.h").is_file():
        pytest.skip(f"{include} has no cuda_occupancy.h")
    (tmp_path / "main.cpp").write_text(_NVIDIA_OCCUPANCY)
    program = str(tmp_path / "main")
    compiler = str(find_cxx().path)
    subprocess.run(
        [compiler, "-w", f"-I{include}", "-o", program, str(tmp_path / "main.cpp")], check=True
    )
    lines, ours = [], []
    grid = product(
        ("sm_80", "sm_86", "sm_89", "sm_90"),
        (16, 40, 64, 96, 128, 160, 168, 169, 200, 255),
        (32, 96, 128, 256, 288, 1024),
        (0, 1, 16384, 32768, 49152, 65536, 98304),
    )
    for arch, registers, threads, shared in grid:
        gpu = get_gpu_architecture(arch)
        occupancy = compute_occupancy(arch, registers, threads, shared)
        ours.append(occupancy.blocks)
        numbers = (
            *gpu.compute_capability, occupancy.max_warps * 32, gpu.shared_memory_per_sm_bytes,
            registers, threads, shared,
        )  # fmt: skip
        lines.append(" ".join(map(str, numbers)))
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = list(map(int, done.stdout.split()))
    differing = [case for case in zip(lines, ours, theirs, strict=True) if case[1] != case[2]]
    assert differing == []


def test_occupancy_refuses() -> None:
    with pytest.raises(ValueError, match="sm_75"):
        compute_occupancy("sm_75", 32, 128, 0)
    with pytest.raises(ValueError, match="registers is 0"):
        compute_occupancy("sm_80", 0, 128, 0)
