"""tools/build/compilers.py: this machine's compiler makes fast and right code of the chosen
kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flashsmith.configs import KernelId, get_kernel_configs
from flashsmith.errors import ToolchainError
from flashsmith.jit import find_cuda_toolkit, find_cxx
from flashsmith.jit.kernel_compilers import NvccCompiler
from flashsmith.jit.units import TranslationUnit
from support.scripts import load_script


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/build/compilers.py")


def nvcc() -> NvccCompiler:
    try:
        return NvccCompiler(find_cuda_toolkit(), find_cxx())
    except ToolchainError as error:
        pytest.skip(str(error))


def row(tool: ModuleType, **changes: Any) -> Any:
    kernel = KernelId(get_kernel_configs("fp8")[0]).name
    return tool.Row("nvcc", "13.0", "forward", kernel, "sm_80", **changes)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_sample_of_what_is_chosen_is_as_expected(tool: ModuleType, arch: str) -> None:
    """The sample is a kernel of each family and operation."""
    compiler = nvcc()
    kernels = tool.sample_of(tool.chosen_kernels(arch), 1)
    kinds = {(kernel.config.family, kernel.config.operation) for kernel in kernels}
    families = {"sm80", "sm90"} if arch == "sm_90a" else {"sm80"}
    backward_and_decode = {(f, o) for f in families for o in ("backward", "decode")}
    assert kinds == backward_and_decode | {("sm90" if arch == "sm_90a" else "sm80", "forward")}
    rows = [*tool.rows_of(kernels, arch, "nvcc", compiler.cuda.nvcc.version, compiler, 1)]
    assert len(rows) == len(kernels)
    assert all(each.registers > 0 for each in rows)
    assert not [each for each in rows if each.is_unexpected]


def test_what_is_unexpected(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "allowed_spill_bytes", lambda kernel: 16)
    assert not row(tool).is_unexpected
    assert not row(tool, spilled=16).is_unexpected
    assert row(tool, spilled=17).is_unexpected
    for field in ("lint", "slow", "failure"):
        assert row(tool, **{field: "words"}).is_unexpected


def test_a_failure_is_a_row_with_the_first_error(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(unit: TranslationUnit, folder: Path) -> Any:
        return tool.Made(None, f"a note\n{folder}/x.cu(1): error: no such thing\nan end")

    monkeypatch.setattr(tool, "_compile", fail)
    kernel = KernelId(get_kernel_configs("backward")[0])
    (found,) = tool.rows_of([kernel], "sm_80", "nvcc", "13.0", nvcc(), 1)
    assert found.failure == "./x.cu(1): error: no such thing"
    assert found.kernel == kernel.name


def without_compilers(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [KernelId(config) for config in get_kernel_configs("backward")[:5]]
    monkeypatch.setattr(tool, "install", lambda name, folder: folder)
    monkeypatch.setattr(tool, "compiler_at", lambda name, place: ("1", None))
    monkeypatch.setattr(tool, "chosen_kernels", lambda arch: kernels)


def test_a_run_goes_on_where_another_ended(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def rows_of(kernels: list[KernelId], arch: str, name: str, *_: Any) -> Iterator[Any]:
        asked.append([kernel.name for kernel in kernels])
        for kernel in kernels[: 2 if len(asked) == 1 else None]:  # the first run is cut off
            yield tool.Row(name, "1", "forward", kernel.name, arch, registers=8)

    without_compilers(tool, monkeypatch)
    monkeypatch.setattr(tool, "rows_of", rows_of)
    arguments = ["--compilers=nvcc-13.0", "--archs=sm_80", f"--out={tmp_path / 'rows.csv'}"]
    assert tool.main(arguments) == 0
    assert tool.main(arguments) == 0
    first, second = asked
    assert second == first[2:]
    assert [each.kernel for each in tool.read(tmp_path / "rows.csv")] == first


def test_an_unexpected_row_fails_the_run(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compilers(tool, monkeypatch)
    monkeypatch.setattr(tool, "rows_of", lambda *_: [row(tool, spilled=4)])
    arguments = ["--compilers=nvcc-13.0", "--archs=sm_80", f"--out={tmp_path / 'rows.csv'}"]
    assert tool.main(arguments) == 1


def test_the_committed_matrix_is_whole_and_as_expected(tool: ModuleType) -> None:
    (newest,) = (tool.ROOT / "benchmarks/results/compilers").glob("*.csv")
    rows = tool.read(newest)
    assert not [each for each in rows if each.is_unexpected]
    found = {(each.compiler, each.arch) for each in rows}
    assert found == {(name, arch) for name in tool.PACKAGES for arch in tool.ARCHS}
    kernels = {name: {each.kernel for each in rows if each.compiler == name} for name, _ in found}
    assert len(set(map(frozenset, kernels.values()))) == 1
