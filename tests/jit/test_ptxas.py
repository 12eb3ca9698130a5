"""The output of ptxas: registers, spills and warnings, of which a build warns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import ToolchainError
from flashsmith.jit import (
    KernelResources,
    SourceTree,
    Target,
    build_kernels,
    find_cuda_toolkit,
    spills,
)
from flashsmith.jit.ptxas import parse_performance_warnings, parse_resources
from support.tiny_build import EMULATOR, INSTANCES

# nvcc 13.0 printed this for a kernel of 128 floats a thread under __launch_bounds__(1024), and for
# one that fits.
RECORDED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z7spillerILi128EEvPfi' for 'sm_80'
ptxas info    : Function properties for _Z7spillerILi128EEvPfi
    560 bytes stack frame, 1084 bytes spill stores, 1092 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 560 bytes cumulative stack size, 128 bytes smem, 364 bytes cmem[0]
ptxas info    : Compile time = 106.522 ms
ptxas info    : Compiling entry function '_Z7spillerILi8EEvPfi' for 'sm_90a'
ptxas info    : Function properties for _Z7spillerILi8EEvPfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compile time = 33.791 ms
"""  # noqa: E501

# nvcc 13.0 printed this for a kernel that calls a function that was not inlined.
RECORDED_CALL = """\
ptxas info    : Compiling entry function '_Z1kPfi' for 'sm_80'
ptxas info    : Function properties for _Z1kPfi
    400 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 400 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Function properties for _Z6helperPfi
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""  # noqa: E501

RECORDED_WARNING = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to "
    "determine register count at entry.\n"
)


def test_recorded_ptxas_output() -> None:
    assert parse_resources(RECORDED) == [
        KernelResources(
            function="_Z7spillerILi128EEvPfi", arch="sm_80", registers=32, spill_stores=1084,
            spill_loads=1092, stack=560, shared=128, barriers=1,
        ),
        KernelResources(
            function="_Z7spillerILi8EEvPfi", arch="sm_90a", registers=30, spill_stores=0,
            spill_loads=0, stack=0, shared=0, barriers=0,
        ),
    ]  # fmt: skip
    assert [kernel.spilled for kernel in parse_resources(RECORDED)] == [1092, 0]


def test_recorded_ptxas_output_of_a_called_function() -> None:
    (kernel,) = parse_resources(RECORDED_CALL)
    assert (kernel.spilled, kernel.stack, kernel.registers) == (4, 408, 40)


def test_ptxas_output_without_kernels() -> None:
    assert parse_resources("") == []
    assert parse_resources(RECORDED.partition("ptxas info    : Used")[0]) == []


def test_recorded_ptxas_warning() -> None:
    (warning,) = parse_performance_warnings(RECORDED_WARNING * 2 + RECORDED)
    assert warning.startswith("C7508: Potential Performance Loss: 'setmaxnreg' ignored")
    assert parse_performance_warnings(RECORDED) == []


# The log of a fake compiler becomes the log of the module, with lines that ptxas would print.
@pytest.mark.parametrize(
    ("log", "message"),
    [
        (RECORDED, "spills 1092 bytes of registers on sm_80 (0 allowed)"),
        (RECORDED_WARNING, "C7508: Potential Performance Loss"),
    ],
)
def test_a_slow_kernel_is_built_with_a_warning(
    sources: SourceTree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    log: str,
    message: str,
) -> None:
    (tmp_path / "ptxas.log").write_text(log)
    monkeypatch.setattr(spills, "ALLOWED_SPILL_BYTES", {})
    say = f'case "$*" in *.cu*) cat {tmp_path}/ptxas.log;; esac'
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "calls.log", before=say)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))
    modules = build_kernels(INSTANCES[:2], EMULATOR, sources=sources)
    assert all(module.path.exists() for module in modules)
    for instance in INSTANCES[:2]:
        assert f"{instance.name}" in caplog.text
    assert message in caplog.text


SPILLING_KERNEL = """
namespace flashsmith {
template <int n_values> __global__ __launch_bounds__(1024) void spilling_kernel(float *x, int n) {
  float a[n_values];
#pragma unroll
  for (int i = 0; i < 128; i++) a[i] = x[i * 32 + threadIdx.x];
  for (int r = 0; r < n; r++)
#pragma unroll
    for (int i = 0; i < 128; i++) a[i] = a[i] * a[(i * 7 + 3) % 128];
#pragma unroll
  for (int i = 0; i < 128; i++) x[i * 32 + threadIdx.x] = a[i];
}
template __global__ void spilling_kernel<128>(float *, int);
}
"""


def test_a_real_spill_is_warned_of_until_it_is_allowed(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "nvcc")
    try:
        find_cuda_toolkit()
    except ToolchainError as error:
        pytest.skip(f"needs nvcc: {error}")
    instance, target = INSTANCES[0], Target.cuda("sm_80", "sm_90a")

    def generate(instances: object) -> dict[str, str]:
        return {f"{instance.slug}.cu": SPILLING_KERNEL}

    spilling = SourceTree(sources.csrc, generate)
    build_kernels([instance], target, sources=spilling)
    for arch in target.archs:
        assert re.search(rf"spills \d{{3,}} bytes of registers on {arch}", caplog.text)
    assert instance.name in caplog.text

    config = instance.config
    tiles = (
        config.family, "forward", config.d_head, config.B_r, config.B_c, config.n_warps,
    )  # fmt: skip
    monkeypatch.setitem(spills.ALLOWED_SPILL_BYTES, tiles, 1 << 16)
    caplog.clear()
    modules = build_kernels([instance], target, sources=spilling, force=True)
    assert "spills" not in caplog.text
    figures = [kernel for module in modules for kernel in module.resources]
    assert [kernel.arch for kernel in figures] == ["sm_80", "sm_90a"]
    assert [kernel.function for kernel in figures] == [
        module.functions["spilling_kernel"] for module in modules
    ]
    assert all(kernel.spilled > 0 and 0 < kernel.registers <= 64 for kernel in figures)
