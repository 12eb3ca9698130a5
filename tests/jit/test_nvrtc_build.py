"""Builds of kernels by NVRTC, of a tiny source tree."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit import (
    PACKAGE_SOURCES,
    SourceTree,
    Target,
    build_host,
    build_kernels,
    compile_commands,
    find_cxx,
    kernel_compilers,
    nvrtc,
)
from flashsmith.jit.kernel_compilers import find_kernel_compiler
from flashsmith.jit.sources import NVRTC_FOLDER
from flashsmith.jit.units import plan_kernels
from support.tiny_build import INSTANCES

SM_80 = Target.cuda("sm_80")


def tiny_sources(folder: Path) -> SourceTree:
    """Returns the tiny source tree with the standard headers of NVRTC."""
    csrc = tiny.make_csrc(folder / "csrc")
    shutil.copytree(PACKAGE_SOURCES.csrc / NVRTC_FOLDER, csrc / NVRTC_FOLDER)
    return SourceTree(csrc, tiny.generate)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceTree:
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "nvrtc")
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tiny_sources(tmp_path)


def test_a_build_needs_no_toolkit(sources: SourceTree) -> None:
    target = Target.cuda("sm_80", "sm_90a")
    modules = build_kernels(INSTANCES[:2], target, sources=sources)
    assert [module.target.archs for module in modules] == [("sm_80",), ("sm_90a",)] * 2
    for module in modules:
        assert list(module.functions) == ["tiny_kernel"]
        assert module.path.name == "kernel.cubin"
        assert module.manifest["compiler"][0].startswith("NVRTC 1")
        (kernel,) = module.resources
        assert (kernel.function,) == tuple(module.functions.values())
        assert kernel.registers > 0 and kernel.spilled == 0


def test_a_build_needs_no_program_on_path(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may have a shell, and no mv, cat or rm."""
    build_host(sources=sources)  # a wheel has it
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (module,) = build_kernels(INSTANCES[:1], SM_80, sources=sources)
    assert module.path.stat().st_size > 0
    assert {file.name for file in module.directory.iterdir()} >= {"kernel.cubin", "build.log"}
    assert not (module.directory / "done").exists()


def test_an_error_in_the_source_is_shown(sources: SourceTree) -> None:
    header = sources.csrc / "include/flashsmith/tiny.cuh"
    header.write_text(header.read_text() + 'static_assert(1 == 2, "B_r is wrong");\n')
    with pytest.raises(BuildError) as caught:
        build_kernels(INSTANCES[:1], SM_80, sources=sources)
    message = str(caught.value)
    assert f"compiling {INSTANCES[0].name} failed" in message
    assert "B_r is wrong" in message and "tiny.cuh(3)" in message
    assert "-arch=sm_80" in message


def test_the_standard_headers_are_part_of_the_key(sources: SourceTree) -> None:
    def key() -> str:
        compiler = find_kernel_compiler(SM_80, Path(), sources.csrc)
        (unit,) = plan_kernels(
            INSTANCES[:1], tiny.generate(INSTANCES[:1]), SM_80, compiler, sources.csrc
        )
        return unit.key

    before = key()
    assert key() == before
    header = sources.csrc / NVRTC_FOLDER / "limits"
    header.write_text(header.read_text() + "// changed\n")
    assert key() != before


def test_an_architecture_that_it_does_not_know_is_named(sources: SourceTree) -> None:
    with pytest.raises(ToolchainError) as caught:
        build_kernels(INSTANCES[:1], Target.cuda("sm_199"), sources=sources)
    for part in ("does not compile for sm_199, but for sm_", ", sm_90", "a newer one does: `pip"):
        assert part in str(caught.value)


def without(monkeypatch: pytest.MonkeyPatch, arch: int) -> None:
    """Makes NVRTC one that does not compile for an architecture."""
    found = nvrtc.find_nvrtc()
    lacking = replace(found, archs=tuple(each for each in found.archs if each != arch))
    monkeypatch.setattr(kernel_compilers, "find_nvrtc", lambda: lacking)


def test_a_cached_kernel_for_an_architecture_that_it_does_not_know_serves(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made by another compiler, or by a newer NVRTC."""
    (built,) = build_kernels(INSTANCES[:1], SM_80, sources=sources)
    without(monkeypatch, 80)
    (served,) = build_kernels(INSTANCES[:1], SM_80, sources=sources)
    assert served.path == built.path
    for instances, force in ((INSTANCES[:1], True), (INSTANCES[:2], False)):
        with pytest.raises(ToolchainError, match="does not compile for sm_80"):
            build_kernels(instances, SM_80, sources=sources, force=force)
    assert build_kernels(INSTANCES[:1], Target.cuda("sm_90a"), sources=sources)


def test_editors_get_commands_that_they_know(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_kernels(INSTANCES[:2], SM_80, sources=sources)
    commands = compile_commands(INSTANCES[:2], SM_80, sources=sources)
    assert len(commands) == 4
    for command in commands:
        arguments = [str(word) for word in command["arguments"]]
        assert arguments[0] == str(find_cxx().path)
        subprocess.run([*arguments, "-fsyntax-only"], cwd=str(command["directory"]), check=True)
    without(monkeypatch, 80)
    assert compile_commands(INSTANCES[:2], SM_80, sources=sources) == commands
