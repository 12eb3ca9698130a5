"""Host library and kernels of a compiler that the caller brings, for older machines than this."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsmith.jit import KernelCache, build_host
from flashsmith.jit.binary import find_libc
from flashsmith.jit.kernel_compilers import HostToolchain
from support.workshop import HOST_FILES, KERNEL_FILES, Workshop

OLDER, NEWER = "glibc 2.1", "glibc 999.1"


def test_what_is_linked_with_an_older_c_library_says_so(workshop: Workshop) -> None:
    older = replace(HostToolchain.find(), libc=OLDER)
    (module,) = workshop.build(toolchain=older)
    host = workshop.find_host()
    assert host is not None
    assert host.manifest["libc"] == module.manifest["libc"] == OLDER
    assert [each.path for each in workshop.find()] == [module.path]  # it can be loaded here


def test_nothing_of_another_toolchain_is_taken(workshop: Workshop) -> None:
    everything = sorted([*HOST_FILES, KERNEL_FILES[0], "link"])
    assert workshop.new_compilations() == everything
    older = replace(HostToolchain.find(), libc=OLDER)
    assert workshop.new_compilations(toolchain=older) == everything
    assert workshop.new_compilations(toolchain=older) == []


def test_a_host_library_for_newer_machines_is_built_and_not_loaded(workshop: Workshop) -> None:
    newer = replace(HostToolchain.find(), libc=NEWER)
    cache = KernelCache(workshop.cache)
    host = build_host(sources=workshop.sources, cache=cache, toolchain=newer)
    assert host.manifest["libc"] == NEWER != find_libc()
    assert workshop.find_host() is None


def test_both_are_linked_with_the_flags_of_the_toolchain(workshop: Workshop) -> None:
    flag = "-Wl,--defsym=flashsmith_flag=0"
    workshop.build(toolchain=replace(HostToolchain.find(), link_flags=(flag,)))
    links = [call for call in workshop.log.read_text().splitlines() if " -shared " in f" {call} "]
    assert len(links) == 2
    assert all(flag in call for call in links)


def test_a_toolchain_that_is_given_is_not_looked_for(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = HostToolchain.find()
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    assert len(workshop.build(toolchain=toolchain)) == 1
