"""Targets, toolchain discovery, compiling, and what ptxas says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import build_helpers as tiny
from build_helpers import EMULATOR, INSTANCES
from flashsmith import codegen
from flashsmith.configs import (
    CONFIG_CLASSES,
    ForwardKernelInstance,
    get_sm90_kernel_progression_configs,
)
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit import (
    KernelResources,
    SourceTree,
    Target,
    build_library,
    default_jobs,
    find_cuda_toolkit,
    find_cxx,
    find_ninja,
    find_tvm_ffi,
    spills,
    toolchain,
)
from flashsmith.jit.ptxas import parse_performance_warnings, parse_resources
from flashsmith.jit.toolchain import Compiler, CudaToolkit, TvmFfi
from flashsmith.jit.units import PACKAGE_SOURCES, Toolchain, TranslationUnit, plan_units

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
    """An empty PATH folder, and no other way to any compiler."""
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


def test_cxx_without_cxx20(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = 'case "$*" in *-std=c++20*) echo "unrecognized \'-std=c++20\'"; exit 1;; esac'
    path = tiny.make_compiler(tmp_path / "old", tmp_path / "log", version="c++ (Old) 7.1.0")
    path.write_text(path.read_text().replace("exec c++", f"{old}\nexec c++"))
    monkeypatch.setenv("FLASHSMITH_CXX", str(path))
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    sources = SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)
    with pytest.raises(ToolchainError, match=r"7\.1\.0.* cannot compile C\+\+20: .*unrecognized"):
        build_library(INSTANCES[:1], EMULATOR, sources=sources)


# ---- nvcc ----


def make_toolkit(root: Path, version: str = "13.0", libraries: str = "lib64") -> Path:
    """A folder that looks like a CUDA toolkit; its nvcc answers questions and compiles nothing."""
    for name in ("include/cuda_runtime.h", f"{libraries}/libcudart_static.a"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return script(
        root / "bin" / "nvcc",
        f"case $1 in --version) echo 'Cuda compilation tools, release {version}, V{version}.88';;\n"
        f"--dryrun) echo '#$ TOP={root}/bin/..' >&2;; *) exit 1;; esac",
    )


def test_nvcc_is_found_in_order(
    no_compilers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi, system, on_path, home, chosen = (tmp_path / f"toolkit{i}" for i in range(5))

    make_toolkit(pypi, libraries="lib")
    monkeypatch.setattr(toolchain, "pypi_toolkits", lambda: [pypi])
    assert find_cuda_toolkit().nvcc.found_by == "PyPI package nvidia-cuda-nvcc"
    assert find_cuda_toolkit().cudart_static == pypi / "lib/libcudart_static.a"

    make_toolkit(system)
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", system)
    assert find_cuda_toolkit().root == system

    script(
        no_compilers / "nvcc",
        f'exec {make_toolkit(on_path, libraries="targets/x86_64-linux/lib")} "$@"',
    )
    assert find_cuda_toolkit().nvcc.found_by == "PATH"
    assert find_cuda_toolkit().root == on_path  # nvcc itself says where, though it is a script

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
    shutil.rmtree(root / "lib64")


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
        (_remove_runtime, "no libcudart_static.a.*nvidia-cuda-runtime"),
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


# ---- compiling ----


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceTree:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)


SM90 = ForwardKernelInstance(get_sm90_kernel_progression_configs()[0])


def planned(
    target: Target, csrc: Path = PACKAGE_SOURCES.csrc, cuda: bool = True
) -> dict[str, TranslationUnit]:
    """The units of an sm80 and an sm90 kernel by name, as compilers that nobody calls have them."""
    nvcc = Compiler(Path("nvcc"), "13.0", "PATH", "nvcc 13.0")
    toolkit = CudaToolkit(nvcc, Path(), Path("cuda/include"), Path("libcudart_static.a"))
    compilers = Toolchain(
        Compiler(Path("c++"), "12", "PATH", "gcc 12"),
        TvmFfi(Path("include"), Path("lib"), "0.1"),
        toolkit if cuda else None,
    )
    instances = [INSTANCES[0], SM90]
    units = plan_units(instances, codegen.generate(instances), target, compilers, csrc)
    return {unit.name: unit for unit in units}


def gencode(unit: TranslationUnit) -> list[str]:
    return [flag for flag in unit.command if "gencode" in flag]


def test_each_family_is_compiled_for_its_architectures() -> None:
    units = planned(Target.cuda("sm_80", "sm_86", "sm_90a"))
    assert gencode(units[INSTANCES[0].slug]) == [
        "-gencode=arch=compute_80,code=[sm_80,sm_86,sm_90a]"
    ]
    assert gencode(units[SM90.slug]) == ["-gencode=arch=compute_90a,code=sm_90a"]


def test_sm90_kernel_without_its_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"archs is sm_80, sm_90, but config .* on sm_90a alone"):
        planned(Target.cuda("sm_80", "sm_90"))


def test_machine_code_is_linted_where_an_mbarrier_may_be() -> None:
    units = planned(Target.cuda("sm_80", "sm_90a"))
    linted = {name: unit.linted_archs for name, unit in units.items() if unit.linted_archs}
    assert linted == {SM90.slug: ("sm_90a",)}
    assert not any(unit.linted_archs for unit in planned(EMULATOR, cuda=False).values())


def test_a_family_is_not_compiled_again_for_another_ones_header(tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(PACKAGE_SOURCES.csrc, csrc)
    before = planned(EMULATOR, csrc, cuda=False)
    for changed, kept in ((SM90, INSTANCES[0]), (INSTANCES[0], SM90)):
        folder = csrc / "include" / "flashsmith" / changed.config.family
        header = folder / "forward_kernel.cuh"
        text = header.read_text()
        header.write_text(f"{text}// changed\n")
        after = planned(EMULATOR, csrc, cuda=False)
        assert after[changed.slug].key != before[changed.slug].key
        assert after[kept.slug].key == before[kept.slug].key
        assert after["host-exports"].key != before["host-exports"].key
        header.write_text(text)


def test_no_family_includes_the_headers_of_another() -> None:
    for kind in CONFIG_CLASSES:
        others = [f'"flashsmith/{c.family}/' for c in CONFIG_CLASSES if c is not kind]
        headers = PACKAGE_SOURCES.csrc / "include" / "flashsmith" / kind.family
        for header in headers.rglob("*"):
            assert not [other for other in others if other in header.read_text()], header


def test_library_has_its_kernels(sources: SourceTree) -> None:
    library = build_library(INSTANCES, EMULATOR, sources=sources)
    assert tiny.sum_of_kernels(library) == 7 * len(INSTANCES)
    assert library.target == EMULATOR
    for instance in INSTANCES:
        kernel = library.kernels[instance.slug]
        assert kernel["name"] == instance.name
        assert kernel["dynamic_shared_bytes"] == instance.config.shared_memory_bytes
        assert kernel["resources"] == []  # no ptxas on the emulator
    assert {path.name for path in library.directory.iterdir()} == {
        "build.log", "flash_kernels.cuh", "flash_kernels.so", "manifest.json",
    }  # fmt: skip


def test_progress_counts_every_object(sources: SourceTree) -> None:
    calls: list[tuple[int, int, str]] = []
    build_library(
        INSTANCES[:2], EMULATOR, sources=sources, progress=lambda *call: calls.append(call)
    )
    assert [(done, total) for done, total, _ in calls] == [(n, 4) for n in range(1, 5)]
    labels = {label for _, _, label in calls}
    assert labels == {"host/registry.cpp", "emulator/memory.cpp"} | {i.name for i in INSTANCES[:2]}


def test_compiler_error_says_which_kernel_and_keeps_the_log(sources: SourceTree) -> None:
    header = sources.csrc / "include/flashsmith/tiny.cuh"
    header.write_text(
        header.read_text() + "static_assert(1 == 2, \"B_r is wrong [3/4] $x 'y'\");\n"
    )
    with pytest.raises(BuildError) as caught:
        build_library(INSTANCES[:1], EMULATOR, sources=sources)
    message = str(caught.value)
    assert f"compiling {INSTANCES[0].name} failed" in message
    assert "B_r is wrong [3/4] $x 'y'" in message
    assert "-std=c++20" in message
    log = Path(message.partition("whole in ")[2].partition(")")[0])
    assert "B_r is wrong" in log.read_text()
    assert (log.parent / f"{INSTANCES[0].slug}.cu").is_file()


@pytest.mark.parametrize("death", ["kill -9 $$", 'echo "c++: Killed signal" >&2; exit 1'])
def test_compiler_that_was_killed_gets_advice(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "log", before=death)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))
    with pytest.raises(BuildError, match="lower FLASHSMITH_JOBS"):
        build_library(INSTANCES[:1], EMULATOR, sources=sources)


def test_missing_symbol_fails_at_link_time(sources: SourceTree) -> None:
    registry = sources.csrc / "host/registry.cpp"
    registry.write_text(
        registry.read_text().replace("return SUM", "int nowhere(); return nowhere()")
    )
    with pytest.raises(BuildError, match=r"linking emulator-1-.* failed[^$]*nowhere"):
        build_library(INSTANCES[:1], EMULATOR, sources=sources)


def test_bad_arguments(sources: SourceTree) -> None:
    with pytest.raises(ValueError, match="jobs is 0"):
        build_library(INSTANCES[:1], EMULATOR, sources=sources, jobs=0)
    with pytest.raises(ValueError, match="empty"):
        build_library([], EMULATOR, sources=SourceTree(sources.csrc, codegen.generate))


def test_default_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_JOBS", "7")
    assert default_jobs() == 7
    monkeypatch.delenv("FLASHSMITH_JOBS")
    assert 1 <= default_jobs() <= (os.cpu_count() or 1)


# ---- ptxas ----

# nvcc 13.0: a kernel of 128 floats a thread under __launch_bounds__(1024), and one that fits.
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

# nvcc 13.0: a kernel that calls a function that was not inlined.
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


# A fake compiler's log becomes the object's log: what ptxas would have said fails the build.
@pytest.mark.parametrize(
    ("log", "message"),
    [
        (RECORDED, "spills 1092 bytes of registers on sm_80 (0 allowed)"),
        (RECORDED_WARNING, "C7508: Potential Performance Loss"),
    ],
)
def test_slow_kernel_fails_the_build(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, message: str
) -> None:
    (tmp_path / "ptxas.log").write_text(log)
    monkeypatch.setattr(spills, "ALLOWED_SPILL_BYTES", {})
    say = f'case "$*" in *.cu*) cat {tmp_path}/ptxas.log;; esac'
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "calls.log", before=say)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))
    with pytest.raises(BuildError) as caught:
        build_library(INSTANCES[:2], EMULATOR, sources=sources)
    for instance in INSTANCES[:2]:  # all are named at once
        assert instance.name in str(caught.value)
    assert message in str(caught.value)


SPILLING_KERNEL = """
__global__ __launch_bounds__(1024) void kernel(float *x, int n) {{
  float a[128];
#pragma unroll
  for (int i = 0; i < 128; i++) a[i] = x[i * 32 + threadIdx.x];
  for (int r = 0; r < n; r++)
#pragma unroll
    for (int i = 0; i < 128; i++) a[i] = a[i] * a[(i * 7 + 3) % 128];
#pragma unroll
  for (int i = 0; i < 128; i++) x[i * 32 + threadIdx.x] = a[i];
}}
int {slug}() {{ kernel<<<1, 1024>>>(nullptr, 0); return 7; }}
"""


def test_real_spill_fails_until_it_is_allowed(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_cuda_toolkit()
    except ToolchainError as error:
        pytest.skip(f"needs nvcc: {error}")
    instance, target = INSTANCES[0], Target.cuda("sm_80", "sm_90a")

    def generate(instances: object) -> dict[str, str]:
        files = tiny.generate([instance])
        return files | {f"{instance.slug}.cu": SPILLING_KERNEL.format(slug=instance.slug)}

    spilling = SourceTree(sources.csrc, generate)
    with pytest.raises(BuildError, match=r"spills \d{3,} bytes of registers on sm_90a") as caught:
        build_library([instance], target, sources=spilling)
    assert instance.name in str(caught.value)

    config = instance.config
    tiles = (config.family, config.d_head, config.B_r, config.B_c, config.n_warps)
    monkeypatch.setitem(spills.ALLOWED_SPILL_BYTES, tiles, 1 << 16)
    calls: list[str] = []
    library = build_library(
        [instance], target, sources=spilling, progress=lambda *call: calls.append(call[2])
    )
    assert calls == []  # allowing a spill compiles nothing again
    figures = [KernelResources(**r) for r in library.kernels[instance.slug]["resources"]]
    assert [kernel.arch for kernel in figures] == ["sm_80", "sm_90a"]
    assert all(kernel.spilled > 0 and 0 < kernel.registers <= 64 for kernel in figures)
