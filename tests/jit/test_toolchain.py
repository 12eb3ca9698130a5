"""Targets, and the search for compilers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import ToolchainError
from flashsmith.jit import (
    SourceTree,
    Target,
    build_host,
    build_kernels,
    find_cuda_toolkit,
    find_cxx,
    find_ninja,
    find_tvm_ffi,
    toolchain,
)
from support.tiny_build import EMULATOR, INSTANCES

# ---- targets ----


def test_target_archs_are_canonical() -> None:
    written = Target.parse("cuda", ["90a,8.0", "sm_86", "sm_80", "12.0"])
    assert written == Target.cuda("sm_80", "sm_86", "sm_90a", "sm_120")
    assert written.name == "cuda-sm_80-sm_86-sm_90a-sm_120"
    assert Target.parse("emulator") == EMULATOR
    assert Target.parse("cuda").archs == ("sm_80", "sm_90a")


def test_target_covers() -> None:
    both = Target.cuda("sm_80", "sm_90a")
    assert both.covers(Target.cuda("sm_80"))
    assert not Target.cuda("sm_80").covers(both)
    assert not both.covers(EMULATOR)
    assert EMULATOR.covers(EMULATOR)


@pytest.mark.parametrize(
    ("kind", "archs", "message"),
    [
        ("rocm", (), "'cuda' and 'emulator'"),
        ("emulator", ("sm_80",), "the emulator has none"),
        ("cuda", ("sm_75",), "8.0 .* or newer"),
        ("cuda", ("sm90",), "write it like 'sm_80'"),
        ("cuda", ("sm_80x",), "write it like 'sm_80'"),
    ],
)
def test_bad_targets(kind: str, archs: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Target.parse(kind, archs)
    with pytest.raises(ValueError, match="name at least one"):
        Target("cuda")


# ---- host compiler ----


@pytest.fixture
def no_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty folder as PATH, after all other ways to a compiler are removed."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))
    for name in ("FLASHSMITH_CXX", "FLASHSMITH_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", tmp_path / "no-cuda")
    monkeypatch.setattr(toolchain, "pypi_toolkits", lambda: [])
    return binaries


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_cxx_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHSMITH_CXX", raising=False)
    found = find_cxx()
    assert found.found_by == "PATH"
    assert found.version[0].isdigit()
    toolchain.require_cxx20(found)
    monkeypatch.setenv("FLASHSMITH_CXX", str(found.path))
    assert find_cxx().found_by == "FLASHSMITH_CXX"


def test_cxx_identity_has_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHSMITH_CXX", raising=False)
    found = find_cxx()
    link = tmp_path / "another-name"
    link.symlink_to(found.path)
    monkeypatch.setenv("FLASHSMITH_CXX", str(link))
    assert find_cxx().identity == found.identity


def test_no_cxx_lists_what_was_tried(no_compilers: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        find_cxx()
    for part in ("c++ on PATH: not found", "g++", "clang++", "install g++ 11", "FLASHSMITH_CXX"):
        assert part in str(caught.value)


def test_broken_cxx_on_path_is_passed_over(no_compilers: Path) -> None:
    script(no_compilers / "c++", "exit 3")
    script(no_compilers / "g++", "echo 'g++ (Fake) 14.1.0'")
    assert find_cxx().path == no_compilers / "g++"


@pytest.mark.parametrize(
    ("body", "message"),
    [(None, "no executable file"), ("exit 1", "failed"), ("kill -9 $$", "failed")],
)
def test_bad_chosen_cxx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, message: str
) -> None:
    path = tmp_path / "cxx" if body is None else script(tmp_path / "cxx", body)
    monkeypatch.setenv("FLASHSMITH_CXX", str(path))
    with pytest.raises(ToolchainError, match=message):
        find_cxx()


@pytest.mark.parametrize("has_host", [False, True])
def test_cxx_without_cxx20(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_host: bool) -> None:
    """The host library may be there, of a newer compiler or a wheel; kernels need the compiler."""
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    sources = SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)
    if has_host:
        build_host(sources=sources)
    old = 'case "$*" in *-std=c++20*) echo "unrecognized \'-std=c++20\'"; exit 1;; esac'
    path = tiny.make_compiler(tmp_path / "old", tmp_path / "log", version="c++ (Old) 7.1.0")
    path.write_text(path.read_text().replace("exec c++", f"{old}\nexec c++"))
    monkeypatch.setenv("FLASHSMITH_CXX", str(path))
    with pytest.raises(ToolchainError, match=r"7\.1\.0.* cannot compile C\+\+20: .*unrecognized"):
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources)


# ---- nvcc ----


def make_toolkit(root: Path, version: str = "13.0", include: str = "include") -> Path:
    """Returns a folder that looks like a CUDA toolkit; its nvcc answers questions and compiles
    nothing."""
    (root / include).mkdir(parents=True, exist_ok=True)
    (root / include / "cuda_runtime.h").touch()
    return script(
        root / "bin" / "nvcc",
        f"case $1 in --version) echo 'Cuda compilation tools, release {version}, V{version}.88';;\n"
        f"--dryrun) echo '#$ TOP={root}/bin/..' >&2;; *) exit 1;; esac",
    )


def test_nvcc_is_found_in_order(
    no_compilers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi, system, on_path, home, chosen = (tmp_path / f"toolkit{i}" for i in range(5))

    make_toolkit(pypi)
    monkeypatch.setattr(toolchain, "pypi_toolkits", lambda: [pypi])
    assert find_cuda_toolkit().nvcc.found_by == "PyPI package nvidia-cuda-nvcc"
    assert find_cuda_toolkit().include == pypi / "include"

    make_toolkit(system)
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", system)
    assert find_cuda_toolkit().root == system

    of_target = "targets/x86_64-linux/include"
    script(no_compilers / "nvcc", f'exec {make_toolkit(on_path, include=of_target)} "$@"')
    assert find_cuda_toolkit().nvcc.found_by == "PATH"
    assert find_cuda_toolkit().root == on_path  # nvcc itself, a script here, tells its root
    assert find_cuda_toolkit().include == on_path / of_target

    make_toolkit(home)
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert find_cuda_toolkit().nvcc.found_by == "CUDA_HOME"

    monkeypatch.setenv("FLASHSMITH_NVCC", str(make_toolkit(chosen, version="13.1")))
    found = find_cuda_toolkit()
    assert (found.nvcc.found_by, found.nvcc.version) == ("FLASHSMITH_NVCC", "13.1.88")
    assert found.include == chosen / "include"


def test_pypi_toolkit_is_looked_for_in_the_nvidia_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia/cu13/bin").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "nvidia", raising=False)
    assert tmp_path / "nvidia/cu13" in toolchain.pypi_toolkits()


def test_no_nvcc_lists_what_was_tried(
    no_compilers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "stale"))
    with pytest.raises(ToolchainError) as caught:
        find_cuda_toolkit()
    for part in (
        f"CUDA_HOME: {tmp_path}/stale/bin/nvcc does not exist",
        "PATH: nvcc not found",
        f"{tmp_path}/no-cuda",
        "PyPI package nvidia-cuda-nvcc: nvcc not found",
        "pip install 'flashsmith[nvcc]'",
        "FLASHSMITH_NVCC",
    ):
        assert part in str(caught.value)


def test_broken_nvcc_is_passed_over(
    no_compilers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "old"))
    make_toolkit(tmp_path / "old", version="11.8")
    make_toolkit(tmp_path / "no-cuda")
    assert find_cuda_toolkit().root == tmp_path / "no-cuda"


def _remove_runtime(root: Path) -> None:
    shutil.rmtree(root / "include")


def _remove_permission(root: Path) -> None:
    (root / "bin/nvcc").chmod(0o644)


def _break(root: Path) -> None:
    script(root / "bin/nvcc", "exit 2")


def _replace(root: Path) -> None:
    script(root / "bin/nvcc", "echo hello")


def _age(root: Path) -> None:
    make_toolkit(root, version="12.4")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_remove_runtime, "no cuda_runtime.h beside.*nvidia-cuda-runtime"),
        (_remove_permission, r"not executable; `chmod \+x"),
        (_break, r"failed \(2\)"),
        (_replace, "does not answer like nvcc: 'hello'"),
        (_age, "CUDA 12.4.88; 12.8 or newer"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_chosen_nvcc_that_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: object, message: str
) -> None:
    root = tmp_path / "toolkit"
    monkeypatch.setenv("FLASHSMITH_NVCC", str(make_toolkit(root)))
    assert find_cuda_toolkit().root == root
    harm(root)  # type: ignore[operator]
    named = f"FLASHSMITH_NVCC is {root}/bin/nvcc: .*{message}.*unset it to have one"
    with pytest.raises(ToolchainError, match=named):
        find_cuda_toolkit()


def test_flags_that_nvcc_reads_itself_are_part_of_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_NVCC", str(make_toolkit(tmp_path / "toolkit")))
    plain = find_cuda_toolkit().nvcc.identity
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-maxrregcount=64")
    assert find_cuda_toolkit().nvcc.identity != plain


def test_ninja_and_tvm_ffi_are_found() -> None:
    assert os.access(find_ninja(), os.X_OK)
    found = find_tvm_ffi()
    assert (found.include / "tvm/ffi/function.h").is_file()
    assert (found.library / "libtvm_ffi.so").is_file()
