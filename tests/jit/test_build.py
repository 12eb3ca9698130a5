"""Compiling: the units that are planned, and what a build reports and refuses."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith import codegen
from flashsmith.configs import (
    CONFIG_CLASSES,
    DType,
    KernelId,
    get_sm90_kernel_progression_configs,
)
from flashsmith.configs.registry import DECODE
from flashsmith.configs.sm80.sums_backward_space import heuristic as sums_heuristic
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.errors import BuildError
from flashsmith.jit import (
    SourceTree,
    Target,
    build_kernels,
    default_jobs,
    find_host,
)
from flashsmith.jit.compile import BUILD_LOG
from flashsmith.jit.kernel_compilers import EmulatorCompiler, HostToolchain, NvccCompiler
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.toolchain import Compiler, CudaToolkit, TvmFfi
from flashsmith.jit.units import TranslationUnit, plan_kernels
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import replace as replace_text

SM90 = KernelId(get_sm90_kernel_progression_configs()[0])
SUMS = KernelId(sums_heuristic(DType.BF16, 64))
CXX = Compiler(Path("c++"), "12", "PATH", "gcc 12")
NVCC = NvccCompiler(
    CudaToolkit(Compiler(Path("nvcc"), "13.0", "PATH", "nvcc 13.0"), Path(), Path("include")), CXX
)
EMULATED = EmulatorCompiler(
    HostToolchain(CXX, TvmFfi(Path("include"), Path("lib"), "0.1"), "glibc 2.36"), Path("host"), ""
)


def planned(
    target: Target, instances: Sequence[KernelId] = (INSTANCES[0], SM90)
) -> list[TranslationUnit]:
    """Returns the units of kernels, for compilers that are never called."""
    compiler = NVCC if target.kind == "cuda" else EMULATED
    generated = codegen.generate(instances)
    return plan_kernels(instances, generated, target, compiler, PACKAGE_SOURCES.csrc)


def gencode(units: Sequence[TranslationUnit], instance: KernelId) -> list[str]:
    """Returns what the compiler is told of architectures, for each unit of a kernel."""
    return [
        flag.removeprefix("-gencode=arch=")
        for unit in units
        if unit.instance == instance
        for flag in unit.command
        if "gencode" in flag
    ]


def test_each_family_is_compiled_for_its_architectures() -> None:
    units = planned(Target.cuda("sm_80", "sm_86", "sm_90a"))
    assert [unit.arch for unit in units] == ["sm_80", "sm_86", "sm_90a", "sm_90a"]
    assert gencode(units, INSTANCES[0]) == [
        f"compute_80,code={arch}" for arch in ("sm_80", "sm_86", "sm_90a")
    ]
    assert gencode(units, SM90) == ["compute_90a,code=sm_90a"]
    assert len({unit.entry for unit in units}) == 4


def test_the_emulator_has_one_unit_for_a_kernel() -> None:
    units = planned(EMULATOR)
    assert [(unit.instance, unit.arch) for unit in units] == [(INSTANCES[0], ""), (SM90, "")]


def test_what_newer_gpus_have_is_used_there_and_nowhere_else() -> None:
    units = planned(Target.cuda("sm_80", "sm_86", "sm_90a", "sm_100"), [SUMS])
    older = [f"compute_80,code={arch}" for arch in ("sm_80", "sm_86")]
    newer = [f"compute_90,code={arch}" for arch in ("sm_90a", "sm_100")]
    assert gencode(units, SUMS) == [*older, *newer]


def test_decode_has_what_gpus_can() -> None:
    """GPUs that can convert FP8 do so, and GPUs on which launches may overlap get the instruction
    that waits for the launch before."""
    target = Target.cuda("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100")
    fp8, plain = (
        KernelId(DECODE.choose_by_heuristic(DecodeWorkload(DType.BF16, 64, fp8_cache=fp8), None))
        for fp8 in (True, False)
    )
    units = planned(target, [fp8, plain])
    for kernel, virtual in ((fp8, (80, 80, 89, 90, 90)), (plain, (80, 80, 80, 90, 90))):
        pairs = zip(virtual, target.archs, strict=True)
        assert gencode(units, kernel) == [f"compute_{old},code={arch}" for old, arch in pairs]


def test_sm90_kernel_without_its_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"archs is sm_80, sm_90, but config .* on sm_90a alone"):
        planned(Target.cuda("sm_80", "sm_90"))


def test_machine_code_is_linted_where_an_mbarrier_may_be() -> None:
    units = planned(Target.cuda("sm_80", "sm_90a"))
    linted = [(unit.instance, unit.arch) for unit in units if unit.is_linted]
    assert linted == [(SM90, "sm_90a")]
    assert not any(unit.is_linted for unit in planned(EMULATOR))


def test_keys_have_no_paths() -> None:
    """The same text and compiler give the same module anywhere; nothing else may."""
    target, source = Target.cuda("sm_80", "sm_86"), PACKAGE_SOURCES.csrc
    elsewhere = replace(NVCC.cuda, nvcc=replace(NVCC.cuda.nvcc, path=Path("/there/nvcc")))
    newer = replace(NVCC.cuda, nvcc=replace(NVCC.cuda.nvcc, identity="nvcc 13.1"))
    generated = codegen.generate(INSTANCES[:1])
    keys = {
        name: [
            unit.key
            for unit in plan_kernels(
                INSTANCES[:1], generated, target, NvccCompiler(toolkit, CXX), source
            )
        ]
        for name, toolkit in (("here", NVCC.cuda), ("elsewhere", elsewhere), ("newer", newer))
    }
    assert keys["here"] == keys["elsewhere"]
    assert not {*keys["here"]} & {*keys["newer"]}
    assert len({*keys["here"]}) == 2


def test_no_family_includes_the_headers_of_another() -> None:
    for kind in CONFIG_CLASSES:
        others = [f'"flashsmith/{c.family}/' for c in CONFIG_CLASSES if c.family != kind.family]
        headers = PACKAGE_SOURCES.csrc / "include" / "flashsmith" / kind.family
        for header in headers.rglob("*"):
            assert not [other for other in others if other in header.read_text()], header


def test_each_kernel_is_a_module(sources: SourceTree) -> None:
    modules = build_kernels(reversed(INSTANCES), EMULATOR, sources=sources)
    assert tiny.sum_of_kernels(modules, sources) == 7 * len(INSTANCES)
    assert [module.name for module in modules] == [each.name for each in sorted(INSTANCES)]
    shared_bytes = {each.name: each.config.shared_memory_bytes for each in INSTANCES}
    for module in modules:
        assert module.target == EMULATOR
        assert module.manifest["dynamic_shared_bytes"] == shared_bytes[module.name]
        assert module.resources == []  # the emulator has no ptxas
        assert list(module.functions) == ["tiny_kernel"]
        (source,) = module.directory.glob("*.cu")
        assert {path.name for path in module.directory.iterdir()} == {
            "build.log", "kernel.so", "manifest.json", source.name,
        }  # fmt: skip


def test_the_host_library_is_built_with_the_first_kernel(sources: SourceTree) -> None:
    assert find_host(sources=sources) is None
    build_kernels(INSTANCES[:1], EMULATOR, sources=sources)
    host = find_host(sources=sources)
    assert host is not None
    assert {path.name for path in host.directory.iterdir()} == {
        "build.log", "libflashsmith.so", "manifest.json",
    }  # fmt: skip


def test_progress_counts_host_files_and_kernels(sources: SourceTree) -> None:
    calls: list[tuple[int, int, str]] = []

    def counts(count: int) -> list[tuple[int, int]]:
        calls.clear()
        kernels = INSTANCES[:count]
        build_kernels(kernels, EMULATOR, sources=sources, progress=lambda *call: calls.append(call))
        return [(done, total) for done, total, _ in calls]

    assert counts(2) == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]
    kernels = {instance.name for instance in INSTANCES[:2]}
    files = {"host/tiny.cpp", "emulator/memory.cpp"}
    assert {label for _, _, label in calls} == {"compiling"} | files | kernels
    assert counts(3) == [(2, 3), (3, 3)]  # two kernels are there, and so is the host library


def test_compiler_error_says_which_kernel_and_keeps_the_log(sources: SourceTree) -> None:
    header = sources.csrc / "include/flashsmith/tiny.cuh"
    header.write_text(
        header.read_text() + "static_assert(1 == 2, \"B_r is wrong [3/4] $x 'y'\");\n"
    )
    with pytest.raises(BuildError) as caught:
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources)
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
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources)


def test_missing_symbol_fails_at_link_time(sources: SourceTree) -> None:
    file = sources.csrc / "host/tiny.cpp"
    replace_text(file, "{ return 1; }", "{ int nowhere(); return nowhere(); }")
    with pytest.raises(BuildError, match=r"linking host-.* failed[^$]*nowhere"):
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources)


def test_symbol_that_no_emulator_has_fails_when_the_kernel_is_built(sources: SourceTree) -> None:
    header = sources.csrc / "include/flashsmith/tiny.cuh"
    replace_text(header, "KERNEL_VALUE 7", "KERNEL_VALUE nowhere()")
    header.write_text(header.read_text() + "int nowhere();\n")
    name = re.escape(INSTANCES[0].name)
    with pytest.raises(BuildError, match=rf"compiling {name} failed[^$]*nowhere"):
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources)


def test_a_file_without_a_kernel_is_refused(sources: SourceTree) -> None:
    def generate(instances: Sequence[KernelId]) -> dict[str, str]:
        return {f"{each.slug}.cu": "int no_kernel_of_ours() { return 0; }\n" for each in instances}

    with pytest.raises(BuildError, match=r"wrote kernel.so without a kernel, though"):
        build_kernels(INSTANCES[:1], EMULATOR, sources=SourceTree(sources.csrc, generate))


def test_objects_whose_names_are_longer_than_a_command_may_be(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell accepts 128 KiB in one argument; linking fails with "Argument list too long"."""
    needs_escapes = 'it\'s "one" \\ of'
    folder = tmp_path / needs_escapes / "/".join(["d" * 200] * 18)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(folder))
    for number in range(40):
        (sources.csrc / f"host/more_{number}.cpp").write_text(f"int more_{number} = 0;\n")
    modules = build_kernels(INSTANCES[:1], EMULATOR, sources=sources)
    host = find_host(sources=sources)
    assert host is not None
    assert len((host.directory / BUILD_LOG).read_text()) > 128 * 1024
    assert tiny.sum_of_kernels(modules, sources) == 7


def test_bad_arguments(sources: SourceTree) -> None:
    with pytest.raises(ValueError, match="jobs is 0"):
        build_kernels(INSTANCES[:1], EMULATOR, sources=sources, jobs=0)
    with pytest.raises(ValueError, match="empty"):
        build_kernels([], EMULATOR, sources=SourceTree(sources.csrc, codegen.generate))


def test_default_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_JOBS", "7")
    assert default_jobs() == 7
    monkeypatch.delenv("FLASHSMITH_JOBS")
    assert 1 <= default_jobs() <= (os.cpu_count() or 1)
