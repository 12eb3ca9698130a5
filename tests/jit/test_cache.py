"""The kernel cache: what its keys depend on, and what is found without a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

import support.tiny_build as tiny
from flashsmith.errors import ToolchainError
from flashsmith.jit import (
    Module,
    Target,
    build_kernels,
    built_instances,
    find_module,
    find_modules,
    kernel_compilers,
    list_modules,
    units,
)
from flashsmith.jit.lint import EarlyRelease, Lint
from flashsmith.jit.sources import kernel_sources
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import (
    HOST,
    KERNEL_FILES,
    Workshop,
    append_comment,
    edit_manifest,
    flip_last_byte,
    replace,
)


@pytest.fixture
def format_of_entries(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that sets the format of cache entries, as another version has it."""

    def change(number: int) -> None:
        for place in ("units", "host", "build", "module"):
            monkeypatch.setattr(f"flashsmith.jit.{place}.FORMAT", number)

    return change


# ---- keys ----


def test_second_build_compiles_nothing(workshop: Workshop) -> None:
    assert workshop.new_compilations() == sorted([*HOST, KERNEL_FILES[0]])
    assert workshop.new_compilations() == []


def test_larger_set_compiles_only_what_is_new(workshop: Workshop) -> None:
    workshop.build(1)
    assert workshop.new_compilations(3) == sorted(KERNEL_FILES[1:3])


def test_order_and_repeats_of_the_set_do_not_matter(workshop: Workshop) -> None:
    one = build_kernels(INSTANCES[:3], EMULATOR, sources=workshop.sources)
    mixed = [*INSTANCES[2::-1], INSTANCES[1]]
    other = build_kernels(mixed, EMULATOR, sources=workshop.sources)
    assert [module.path for module in one] == [module.path for module in other]


def test_force_compiles_all_kernels_again(workshop: Workshop) -> None:
    workshop.build(2)
    assert workshop.new_compilations(2, force=True) == sorted(KERNEL_FILES[:2])


def test_moved_sources_hit(workshop: Workshop) -> None:
    workshop.build()
    workshop.csrc = workshop.csrc.rename(workshop.root / "a b$c")
    assert workshop.new_compilations() == []


def test_another_compiler_compiles_kernels_and_keeps_the_host(workshop: Workshop) -> None:
    """The host library has a C interface to Python, so any compiler's serves."""
    first = workshop.build()
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ (Other) 99.1")
    assert workshop.new_compilations() == [KERNEL_FILES[0]]
    assert len(list_modules()) == 2
    assert workshop.build()[0].path != first[0].path


def test_a_change_of_kernels_flags_compiles_kernels(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    flags = (*kernel_compilers._EMULATED_FLAGS, "-DOTHER")
    monkeypatch.setattr(kernel_compilers, "_EMULATED_FLAGS", flags)
    assert workshop.new_compilations() == [KERNEL_FILES[0]]


def test_another_format_misses(
    workshop: Workshop, format_of_entries: Callable[[int], None]
) -> None:
    everything = workshop.new_compilations()
    format_of_entries(units.FORMAT + 1)
    assert list_modules() == [] and workshop.find_host() is None
    assert workshop.new_compilations() == everything


# ---- what each source is compiled into ----


def test_a_change_of_the_host_compiles_no_kernel(workshop: Workshop) -> None:
    before = workshop.build(2)
    replace(workshop.csrc / "host/tiny.cpp", "return 1", "return 2")
    assert workshop.new_compilations(2) == ["link", "tiny.cpp"]
    assert [module.path for module in workshop.build(2)] == [module.path for module in before]


def test_a_change_of_a_header_compiles_what_includes_it(workshop: Workshop) -> None:
    workshop.build(2)
    append_comment(workshop.csrc / "include/flashsmith/tiny.cuh")
    assert workshop.new_compilations(2) == sorted(KERNEL_FILES[:2])
    (workshop.csrc / "host/new.h").write_text("#pragma once\n")
    assert workshop.new_compilations(2) == []
    file = workshop.csrc / "host/tiny.cpp"
    file.write_text(f'#include "host/new.h"\n{file.read_text()}')
    assert workshop.new_compilations(2) == ["link", "tiny.cpp"]


def test_a_change_of_one_kernels_header_compiles_that_kernel(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (each.slug for each in INSTANCES[:2])

    def generate(instances: object) -> dict[str, str]:
        files = tiny_generate(instances)
        return {name: f'#include "flashsmith/{name}h"\n{text}' for name, text in files.items()}

    tiny_generate = tiny.generate
    monkeypatch.setattr(tiny, "generate", generate)
    for slug in (first, second):
        (workshop.csrc / f"include/flashsmith/{slug}.cuh").write_text("#pragma once\n")
    workshop.build(2)
    append_comment(workshop.csrc / f"include/flashsmith/{second}.cuh")
    assert [module.name for module in workshop.find(2)] == [INSTANCES[0].name]
    assert workshop.new_compilations(2) == [f"{second}.cu"]


def test_a_change_of_the_emulator_builds_the_host_and_emulated_kernels(workshop: Workshop) -> None:
    """A kernel that was linked against another emulator may call functions that are not there, or
    that have changed."""
    workshop.build(2)
    (workshop.csrc / "emulator/new.h").write_text("#pragma once\n")
    assert workshop.new_compilations(2) == []
    file = workshop.csrc / "emulator/memory.cpp"
    file.write_text(f'#include "emulator/new.h"\n{file.read_text()}')
    assert workshop.find(2) == [] and workshop.find_host() is None
    assert workshop.new_compilations(2) == sorted([*KERNEL_FILES[:2], "link", "memory.cpp"])


# ---- looking up without a build ----


def test_each_kernel_is_found_by_itself(workshop: Workshop) -> None:
    assert workshop.find() == [] and workshop.find_host() is None
    built = workshop.build(3)
    assert [module.path for module in workshop.find(3)] == [module.path for module in built]
    assert len(workshop.find(4)) == 3
    for instance, module in zip(sorted(INSTANCES[:3]), built, strict=True):
        found = find_module(instance, EMULATOR, sources=workshop.sources)
        assert found is not None and found.path == module.path
    assert find_module(INSTANCES[3], EMULATOR, sources=workshop.sources) is None
    assert find_modules([], EMULATOR, sources=workshop.sources) == {}


def test_kernels_of_other_sources_are_not_found(workshop: Workshop) -> None:
    workshop.build()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert workshop.find() == []
    assert workshop.find_host() is not None


def test_what_is_not_included_is_found_whatever_changes(workshop: Workshop) -> None:
    (module,), library = workshop.build(), workshop.host
    (workshop.csrc / "include/flashsmith/other.cuh").write_text("#pragma once\n")
    (found,) = workshop.find()
    assert (found.path, workshop.host.path) == (module.path, library.path)


def test_of_several_compilers_the_newest_module_is_found(workshop: Workshop) -> None:
    (old,) = workshop.build()
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ (Other) 99.1")
    (new,) = workshop.build()
    assert [module.path for module in workshop.find()] == [new.path] != [old.path]
    flip_last_byte(new.path)  # the one before serves
    assert [module.path for module in workshop.find()] == [old.path]


def test_built_kernels_are_those_that_would_be_found(workshop: Workshop) -> None:
    sources = workshop.sources
    assert built_instances(EMULATOR, sources=sources) == set()
    workshop.build(2)
    assert built_instances(EMULATOR, sources=sources) == set(INSTANCES[:2])
    assert built_instances(Target.cuda("sm_80"), sources=sources) == set()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert built_instances(EMULATOR, sources=sources) == set()


def test_built_kernels_that_this_version_cannot_build_are_left_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build(2)
    kind = type(INSTANCES[0].config)
    refused = {INSTANCES[0].config: ["it is of another version"]}
    monkeypatch.setattr(kind, "problems", lambda config, gpu: refused.get(config, []))
    assert built_instances(EMULATOR, sources=workshop.sources) == {INSTANCES[1]}


def test_a_damaged_module_is_not_found(workshop: Workshop) -> None:
    flip_last_byte(workshop.build()[0].path)
    assert workshop.find() == []


def test_a_module_that_this_process_refused_is_not_found_until_it_is_built_again(
    workshop: Workshop,
) -> None:
    """Only this process skips it: another machine that shares the cache may load it."""
    first, second = workshop.build(2)
    first.refuse()
    assert [module.path for module in workshop.find(2)] == [second.path]
    assert built_instances(EMULATOR, sources=workshop.sources) == {INSTANCES[1]}
    assert len(list_modules()) == 2
    first.set_aside()
    (again, _) = workshop.build(2)
    assert again.path == first.path
    assert len(workshop.find(2)) == 2


# ---- cached kernels need no compiler ----


def test_cached_kernels_need_no_compiler(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module,) = workshop.build()
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    assert [each.path for each in workshop.build()] == [module.path]
    for options in ({"count": 2}, {"force": True}):
        with pytest.raises(ToolchainError, match="/nowhere/c"):
            workshop.build(**options)  # type: ignore[arg-type]


def test_modules_are_listed_newest_first(workshop: Workshop) -> None:
    assert list_modules() == []
    workshop.build(2, jobs=1)
    newest = workshop.build(3)
    listed = list_modules()
    assert {module.path for module in listed} == {module.path for module in newest}
    created = [float(module.manifest["created"]) for module in listed]
    assert created == sorted(created, reverse=True)
    assert listed[0].name == INSTANCES[2].name


# ---- modules of GPU architectures ----


def make_it_a_cubin(workshop: Workshop, module: Module, arch: str) -> None:
    """Changes a manifest to that of a module for GPUs, as nvcc would have made it."""
    instances, sources, target = INSTANCES[:1], workshop.sources, Target.cuda(arch)
    (source,) = kernel_sources(instances, sources.generate(instances), target, sources.csrc)
    changed = {"target": asdict(target), "emulator": "", "source_hash": source.hash}
    edit_manifest(module.directory, lambda manifest: manifest.update(changed))


@pytest.mark.parametrize(
    ("archs", "is_found"),
    [
        (("sm_86",), True),
        (("sm_80",), False),
        (("sm_90a",), False),
        (("sm_80", "sm_86"), False),
        (("sm_86", "sm_90a"), False),
    ],
)
def test_a_module_is_found_for_its_architecture_alone(
    workshop: Workshop, archs: tuple[str, ...], is_found: bool
) -> None:
    """A target of several needs a module for each."""
    (module,) = workshop.build()
    make_it_a_cubin(workshop, module, "sm_86")
    target, sources = Target.cuda(*archs), workshop.sources
    assert bool(find_modules(INSTANCES[:1], target, sources=sources)) == is_found
    assert built_instances(target, sources=sources) == set(INSTANCES[:1] if is_found else [])
    assert workshop.find() == []  # for the emulator


@pytest.mark.parametrize(("kind", "is_found"), [("cuda", True), ("emulator", False)])
def test_a_module_for_gpus_is_for_every_machine(
    workshop: Workshop, kind: str, is_found: bool
) -> None:
    """The processor and the C library do not matter, because the driver loads it."""
    (module,) = workshop.build()
    target = EMULATOR
    if kind == "cuda":
        make_it_a_cubin(workshop, module, "sm_86")
        target = Target.cuda("sm_86")
    other = {"binary": "ELF 0201 be00", "libc": "musl 1.2"}
    edit_manifest(module.directory, lambda manifest: manifest.update(other))
    assert bool(find_modules(INSTANCES[:1], target, sources=workshop.sources)) == is_found


def test_a_module_that_releases_early_is_not_found(workshop: Workshop) -> None:
    """It stays in the cache, so that builds refuse it without compiling it again."""
    (module,) = workshop.build()
    make_it_a_cubin(workshop, module, "sm_86")
    target, sources = Target.cuda("sm_86"), workshop.sources
    assert built_instances(target, sources=sources) == set(INSTANCES[:1])
    release = EarlyRelease("f", "sm_86", 16, "SYNCS.ARRIVE", ("LDSM at 0x0",))
    lint = asdict(Lint(early_releases=(release,)))
    edit_manifest(module.directory, lambda manifest: manifest.update(lint=lint))
    assert built_instances(target, sources=sources) == set()
    assert find_modules(INSTANCES[:1], target, sources=sources) == {}
    assert [each.lint.early_releases for each in list_modules()] == [(release,)]
