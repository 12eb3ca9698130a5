"""Compiling: the units that are planned, and what a build reports and refuses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith import codegen
from flashsmith.configs import (
    CONFIG_CLASSES,
    DType,
    KernelId,
    get_kernel_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.configs.registry import DECODE
from flashsmith.configs.sm80.sums_backward_space import heuristic as sums_heuristic
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.errors import BuildError
from flashsmith.jit import (
    SourceTree,
    Target,
    build_library,
    default_jobs,
)
from flashsmith.jit.compile import BUILD_LOG
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.toolchain import Compiler, CudaToolkit, TvmFfi
from flashsmith.jit.units import Toolchain, TranslationUnit, plan_units
from support.tiny_build import EMULATOR, INSTANCES

SM90 = KernelId(get_sm90_kernel_progression_configs()[0])
SUMS = KernelId(sums_heuristic(DType.BF16, 64))


def planned(
    target: Target,
    instances: Sequence[KernelId] = (INSTANCES[0], SM90),
    csrc: Path = PACKAGE_SOURCES.csrc,
    cuda: bool = True,
) -> dict[str, TranslationUnit]:
    """Returns the units of kernels by name, for compilers that are never called."""
    nvcc = Compiler(Path("nvcc"), "13.0", "PATH", "nvcc 13.0")
    toolkit = CudaToolkit(nvcc, Path(), Path("cuda/include"), Path("libcudart_static.a"))
    compilers = Toolchain(
        Compiler(Path("c++"), "12", "PATH", "gcc 12"),
        TvmFfi(Path("include"), Path("lib"), "0.1"),
        toolkit if cuda else None,
    )
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


def test_what_newer_gpus_have_is_used_there_and_nowhere_else() -> None:
    older = "-gencode=arch=compute_80,code=[sm_80,sm_86]"
    newer = "-gencode=arch=compute_90,code=[sm_90a,sm_100]"
    for archs, expected in (
        (("sm_80", "sm_86"), [older]),
        (("sm_90a", "sm_100"), [newer]),
        (("sm_80", "sm_86", "sm_90a", "sm_100"), [older, newer]),
    ):
        assert gencode(planned(Target.cuda(*archs), [SUMS])[SUMS.slug]) == expected


def test_decode_has_what_gpus_can() -> None:
    """GPUs that can convert FP8 do so, and GPUs on which launches may overlap get the instruction
    that waits for the launch before."""
    newest = "compute_90,code=[sm_90a,sm_100]"
    target = Target.cuda("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100")
    fp8, plain = (
        KernelId(DECODE.choose_by_heuristic(DecodeWorkload(DType.BF16, 64, fp8_cache=fp8), None))
        for fp8 in (True, False)
    )
    units = planned(target, [fp8, plain])
    for kernel, others in (
        (fp8, ("compute_80,code=[sm_80,sm_86]", "compute_89,code=[sm_89]")),
        (plain, ("compute_80,code=[sm_80,sm_86,sm_89]",)),
    ):
        expected = [f"-gencode=arch={each}" for each in (*others, newest)]
        assert gencode(units[kernel.slug]) == expected


def test_sm90_kernel_without_its_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"archs is sm_80, sm_90, but config .* on sm_90a alone"):
        planned(Target.cuda("sm_80", "sm_90"))


def test_machine_code_is_linted_where_an_mbarrier_may_be() -> None:
    units = planned(Target.cuda("sm_80", "sm_90a"))
    linted = {name: unit.linted_archs for name, unit in units.items() if unit.linted_archs}
    assert linted == {SM90.slug: ("sm_90a",)}
    assert not any(unit.linted_archs for unit in planned(EMULATOR, cuda=False).values())


def test_no_family_includes_the_headers_of_another() -> None:
    for kind in CONFIG_CLASSES:
        others = [f'"flashsmith/{c.family}/' for c in CONFIG_CLASSES if c.family != kind.family]
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
        assert kernel["resources"] == []  # the emulator has no ptxas
    assert {path.name for path in library.directory.iterdir()} == {
        "build.log", "flash_kernels.cuh", "flash_kernels.so", "manifest.json",
    }  # fmt: skip


def test_progress_counts_every_object(sources: SourceTree) -> None:
    calls: list[tuple[int, int, str]] = []
    build_library(
        INSTANCES[:2], EMULATOR, sources=sources, progress=lambda *call: calls.append(call)
    )
    assert [(done, total) for done, total, _ in calls] == [(n, 4) for n in range(5)]
    labels = {label for _, _, label in calls}
    kernels = {instance.name for instance in INSTANCES[:2]}
    assert labels == {"compiling", "host/registry.cpp", "emulator/memory.cpp"} | kernels


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


def test_objects_whose_names_are_longer_than_a_command_may_be(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linking 1025 objects, the kernels of a soak, has failed before: "Argument list too long"."""
    needs_escapes = 'it\'s "one" \\ of'
    folder = tmp_path / needs_escapes / "/".join(["d" * 200] * 18)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(folder))
    instances = [KernelId(config) for config in get_kernel_configs("tune")[:40]]
    library = build_library(instances, EMULATOR, sources=sources)
    log = (library.path.parent / BUILD_LOG).read_text()
    assert len(log) > 128 * 1024
    assert tiny.sum_of_kernels(library) == 7 * len(instances)


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
