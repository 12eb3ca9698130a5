"""NVRTC: how it is found, and that it compiles what nvcc compiles."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flashsmith import codegen
from flashsmith.configs import (
    CONFIG_CLASSES,
    KernelConfig,
    KernelId,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.errors import ToolchainError
from flashsmith.jit import (
    PACKAGE_SOURCES,
    Target,
    disassembler,
    find_cuda_toolkit,
    find_cxx,
    nvrtc,
    toolchain,
)
from flashsmith.jit.functions import functions_in
from flashsmith.jit.kernel_compilers import (
    KernelCompiler,
    NvccCompiler,
    NvrtcCompiler,
    find_kernel_compiler,
)
from flashsmith.jit.lint import lint_machine_code
from flashsmith.jit.nvrtc import find_nvrtc
from flashsmith.jit.ptxas import parse_resources
from flashsmith.jit.sources import nvrtc_hash
from flashsmith.jit.units import TranslationUnit, plan_kernels

CSRC = PACKAGE_SOURCES.csrc
SM_80 = Target.cuda("sm_80")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the NVRTC that is installed, as the tests require."""
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    return find_nvrtc().library


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for name in ("FLASHSMITH_NVCC", "FLASHSMITH_CUDA_COMPILER", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", tmp_path / "no-cuda")
    monkeypatch.setattr(toolchain, "pypi_toolkits", lambda: [])


@pytest.fixture
def no_pathfinder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package cuda-pathfinder one that is not installed."""
    honest = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "cuda.pathfinder":
            raise ModuleNotFoundError("No module named 'cuda.pathfinder'")
        return honest(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)


# ---- what it compiles ----


def small(kind: type[KernelConfig]) -> KernelId:
    """Returns a kernel of a family with as little work to compile as there is."""
    configs = [
        *get_kernel_progression_configs(),
        *get_sm90_kernel_progression_configs(),
        *get_kernel_configs("backward"),
        *get_kernel_configs("decode"),
    ]
    ours = [config for config in configs if type(config) is kind]
    return KernelId(min(ours, key=lambda config: (config.d_head, config.B_r * config.B_c)))


def compiled(compiler: KernelCompiler, instance: KernelId, folder: Path) -> tuple[Path, str]:
    """Returns the cubin of a kernel, and the compiler's output."""
    unit = planned(compiler, instance)
    folder.mkdir()
    source, cubin = folder / unit.source_file, folder / unit.artifact
    source.write_text(unit.files[unit.source_file])
    command = [*unit.command, source, "-o", cubin]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return cubin, done.stdout + done.stderr


def planned(compiler: KernelCompiler, instance: KernelId, csrc: Path = CSRC) -> TranslationUnit:
    target = Target.cuda(instance.config.minimum_gpu)
    generated = codegen.generate([instance])
    (unit,) = plan_kernels([instance], generated, target, compiler, csrc)
    return unit


@pytest.mark.parametrize("kind", CONFIG_CLASSES, ids=lambda kind: kind.__name__)
def test_it_makes_the_functions_that_nvcc_makes(
    library: Path, tmp_path: Path, kind: type[KernelConfig]
) -> None:
    instance = small(kind)
    arch = instance.config.minimum_gpu
    compiler = NvrtcCompiler(find_nvrtc(), nvrtc_hash(CSRC))
    cubin, log = compiled(compiler, instance, tmp_path / "nvrtc")
    functions = functions_in(cubin.read_bytes())
    assert functions
    resources = parse_resources(log)
    assert {kernel.function for kernel in resources} == {*functions.values()}
    assert all(kernel.arch == arch and kernel.registers > 16 for kernel in resources)
    lint = lint_machine_code(disassembler.disassemble(cubin, arch), [arch])
    assert lint.early_releases == lint.not_linted == ()
    try:
        nvcc = NvccCompiler(find_cuda_toolkit(), find_cxx())
    except ToolchainError as error:
        pytest.skip(f"nothing to compare with: {error}")
    same, _ = compiled(nvcc, instance, tmp_path / "nvcc")
    assert functions == functions_in(same.read_bytes())


# ---- how it runs ----


def run_program(folder: Path, *options: str, out: str = "small.cubin", **variables: str) -> str:
    """Returns the exit status and the output of the program that compiles a small source."""
    source = folder / "small.cu"
    source.write_text("__global__ void kernel(float *x) { *x += 1; }\n")
    command = find_nvrtc().command(["-arch=sm_80", *options])
    done = subprocess.run(
        [*command, source, "-o", folder / out],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return f"{done.returncode} {done.stdout}"


def test_the_driver_is_not_loaded(library: Path, tmp_path: Path) -> None:
    """NVRTC 12.9 and newer looks into the driver's cache of compiled code unless it is told not
    to."""
    output = run_program(tmp_path, LD_DEBUG="files")
    assert output.startswith("0 ")
    assert "libnvrtc-builtins.so" in output
    assert "libcuda.so" not in output


def test_builtins_are_found_beside_the_file_that_a_link_names(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_nvrtc()
    link = tmp_path / "another-name.so"
    link.symlink_to(library)
    monkeypatch.setenv("FLASHSMITH_NVRTC", str(link))
    assert find_nvrtc().identity == before.identity
    assert run_program(tmp_path).startswith("0 ")


@pytest.mark.parametrize(
    ("option", "out", "message"),
    [
        ("-w", "no/small.cubin", "failed: .*No such file or directory: '.*/no/small.cubin'"),
        ("--unknown", "out", r"--unknown found\n.*nvrtcCompileProgram failed: invalid option"),
    ],
)
def test_a_failure_is_a_sentence(
    library: Path, tmp_path: Path, option: str, out: str, message: str
) -> None:
    output = run_program(tmp_path, option, out=out)
    assert re.match(rf"1 .*{message}", output, re.DOTALL), output
    assert "Traceback" not in output


# ---- which compiler is taken ----


def test_the_setting_names_the_compiler(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "NVRTC")
    found = find_kernel_compiler(SM_80, Path(), CSRC)
    assert isinstance(found, NvrtcCompiler)
    assert (found.nvrtc.library, found.nvrtc.found_by) == (library, "cuda-pathfinder")
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "clang")
    with pytest.raises(ValueError, match=r"FLASHSMITH_CUDA_COMPILER.*nvcc or nvrtc"):
        find_kernel_compiler(SM_80, Path(), CSRC)


@pytest.mark.parametrize("chosen", ["nvcc", None])
def test_nvcc_comes_first(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    monkeypatch.delenv("FLASHSMITH_CUDA_COMPILER", raising=False)
    if chosen is not None:
        monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", chosen)
    try:
        find_cuda_toolkit()
    except ToolchainError as error:
        pytest.skip(str(error))
    assert isinstance(find_kernel_compiler(SM_80, Path(), CSRC), NvccCompiler)


@pytest.mark.usefixtures("no_nvcc")
def test_nvrtc_stands_in_for_nvcc_unless_one_is_named(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_kernel_compiler(SM_80, Path(), CSRC)
    assert isinstance(found, NvrtcCompiler) and found.nvrtc.library == library
    with monkeypatch.context() as named:
        named.setenv("FLASHSMITH_CUDA_COMPILER", "nvcc")
        with pytest.raises(ToolchainError, match="no usable nvcc was found"):
            find_kernel_compiler(SM_80, Path(), CSRC)
    monkeypatch.setenv("FLASHSMITH_NVCC", "/nowhere/nvcc")
    with pytest.raises(ToolchainError, match="FLASHSMITH_NVCC is /nowhere/nvcc"):
        find_kernel_compiler(SM_80, Path(), CSRC)


@pytest.mark.usefixtures("no_nvcc", "no_pathfinder")
def test_without_any_compiler_both_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    with pytest.raises(ToolchainError) as caught:
        find_kernel_compiler(SM_80, Path(), CSRC)
    for part in (
        "no NVRTC was found: No module named 'cuda.pathfinder'",
        "pip install nvidia-cuda-nvrtc",
        "FLASHSMITH_NVRTC",
        "Nor can nvcc be used: no usable nvcc was found",
        "pip install 'flashsmith[nvcc]'",
        "FLASHSMITH_NVCC",
    ):
        assert part in str(caught.value)


# ---- a library that is named ----


def test_a_named_library_is_taken(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_nvrtc()
    monkeypatch.setenv("FLASHSMITH_NVRTC", str(library))
    found = find_nvrtc()
    assert (found.library, found.found_by) == (library, "FLASHSMITH_NVRTC")
    assert found.identity == before.identity
    assert re.fullmatch(rf"NVRTC {found.version}, CL-\d+", found.identity)
    assert re.fullmatch(r"\d+\.\d+\.\d+", found.version)
    assert {80, 90} <= {*found.archs}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read: .*No such file"),
        ("not a library", r"does not answer: .*file too short|does not answer: .*invalid ELF"),
    ],
)
def test_a_named_file_that_is_no_nvrtc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, message: str
) -> None:
    path = tmp_path / "libnvrtc.so"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("FLASHSMITH_NVRTC", str(path))
    with pytest.raises(ToolchainError, match=rf"NVRTC {path} ({message}).*FLASHSMITH_NVRTC"):
        find_nvrtc()


def fake(folder: Path, version: str) -> Path:
    """Returns a library that answers like an NVRTC of a version, or is another library."""
    source = f"""
    extern "C" {{
    {version}
    int nvrtcGetNumSupportedArchs(int *count) {{ *count = 1; return 0; }}
    int nvrtcGetSupportedArchs(int *archs) {{ *archs = 80; return 0; }}
    const char *nvrtcGetErrorString(int) {{ return "NVRTC_ERROR_INTERNAL_ERROR"; }}
    int nvrtcCreateProgram(void *, char *, char *, int, void *, void *) {{ return 0; }}
    int nvrtcCompileProgram(void *, int, void *) {{ return 0; }}
    int nvrtcGetProgramLogSize(void *, unsigned long *size) {{ *size = 1; return 0; }}
    int nvrtcGetProgramLog(void *, char *log) {{ *log = 0; return 0; }}
    int nvrtcGetPTXSize(void *, unsigned long *size) {{ *size = 1; return 0; }}
    int nvrtcGetPTX(void *, char *ptx) {{ *ptx = 0; return 0; }}
    }}
    """
    (folder / "fake.cpp").write_text(source)
    path = folder / "libnvrtc.so"
    command = [find_cxx().path, "-shared", "-fPIC", folder / "fake.cpp", "-o", path]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("", "does not answer: .*undefined symbol: nvrtcVersion"),
        ("int nvrtcVersion(int *, int *) { return 7; }", "nvrtcVersion failed: internal error"),
        ("int nvrtcVersion(int *, int *) { __builtin_trap(); }", "it ended with -"),
        (
            "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 4; return 0; }",
            "is of CUDA 12.4; 12.8 or newer is needed",
        ),
        (
            "int nvrtcVersion(int *a, int *b) { *a = 14; *b = 0; return 0; }",
            "does not tell its build in PTX",
        ),
    ],
)
def test_a_named_library_that_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, message: str
) -> None:
    path = fake(tmp_path, version)
    monkeypatch.setenv("FLASHSMITH_NVRTC", str(path))
    with pytest.raises(ToolchainError, match=rf"NVRTC {path} .*{message}.*`pip install"):
        find_nvrtc()


@pytest.mark.usefixtures("no_pathfinder")
def test_without_cuda_pathfinder_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHSMITH_NVRTC", raising=False)
    with pytest.raises(ToolchainError, match=r"No module named .*; `pip install nvidia-cuda-nvrtc"):
        nvrtc.find_nvrtc()
