"""Headers that many units of a build include are compiled once, and nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.configs import KernelId, Variant, get_kernel_progression_configs
from flashsmith.jit import PACKAGE_SOURCES, Target, build_kernels
from flashsmith.jit.kernel_compilers import HostToolchain
from flashsmith.jit.units import plan_host
from support.caches import kernel_free_cache
from support.workshop import Workshop, append_comment, replace

MANY = 7
AHEAD = re.compile(r"^(?:.* )?-x c\+\+-header .*$", re.MULTILINE)
TAKEN = re.compile(r"^.*-include prelude-0\.hpp .*\.cu .*$", re.MULTILINE)


def log_of_all(workshop: Workshop, before: str = "") -> Path:
    """Returns the log of a new compiler that logs every call; ``before`` is a shell command that
    runs first."""
    log = workshop.root / "calls.log"
    compiler = workshop.compiler
    text = compiler.read_text().replace(
        "#!/bin/sh\n", f'#!/bin/sh\necho "$*" >> "{log}"\n{before}\n'
    )
    compiler.write_text(text)
    return log


def test_many_kernels_read_a_header_that_is_compiled_once(workshop: Workshop) -> None:
    log = log_of_all(workshop)
    modules = workshop.build(MANY)
    assert tiny.sum_of_kernels(modules, workshop.sources) == 7 * MANY
    assert len(AHEAD.findall(log.read_text())) == 1
    assert len(TAKEN.findall(log.read_text())) == MANY


def test_few_kernels_read_the_text(workshop: Workshop) -> None:
    log = log_of_all(workshop)
    workshop.build(MANY - 1)
    assert not AHEAD.findall(log.read_text()) and not TAKEN.findall(log.read_text())


@pytest.mark.parametrize("when", ["compiled", "tried"])
def test_where_it_fails_the_text_is_read(workshop: Workshop, when: str) -> None:
    mark = {"compiled": "*c++-header*", "tried": "*/dev/null*"}[when]
    log = log_of_all(workshop, f'case "$*" in {mark}) echo broken; exit 1;; esac')
    modules = workshop.build(MANY)
    assert tiny.sum_of_kernels(modules, workshop.sources) == 7 * MANY
    assert AHEAD.findall(log.read_text())


def test_clang_is_given_the_text(workshop: Workshop) -> None:
    tiny.make_compiler(workshop.compiler, workshop.log, version="clang version 14.0.6")
    log = log_of_all(workshop)
    workshop.build(MANY)
    assert not AHEAD.findall(log.read_text()) and not TAKEN.findall(log.read_text())


def test_a_changed_header_is_compiled_again(workshop: Workshop) -> None:
    log = log_of_all(workshop)
    workshop.build(MANY)
    header = workshop.csrc / "include/flashsmith/tiny.cuh"
    replace(header, "KERNEL_VALUE 7", "KERNEL_VALUE 9")
    append_comment(header)
    modules = workshop.build(MANY)
    assert tiny.sum_of_kernels(modules, workshop.sources) == 9 * MANY
    assert len(AHEAD.findall(log.read_text())) == 2


def test_kernels_of_the_package_have_the_bytes_that_each_has_alone(tmp_path: Path) -> None:
    instances = [KernelId(each, Variant()) for each in get_kernel_progression_configs(False)]
    together = kernel_free_cache(tmp_path / "together")
    alone = kernel_free_cache(tmp_path / "alone")
    assert len(instances) >= MANY
    modules = build_kernels(instances, Target.emulator(), cache=together)
    for module in (modules[0], modules[-1]):
        (single,) = build_kernels(
            [each for each in instances if each.name == module.name], Target.emulator(), cache=alone
        )
        assert single.path.read_bytes() == module.path.read_bytes()


def test_files_of_the_host_have_one_prelude_if_they_read_tvm_ffi() -> None:
    units = plan_host(HostToolchain.find(), PACKAGE_SOURCES.csrc)
    preludes = {unit.prelude for unit in units if unit.prelude}
    if not preludes:
        pytest.skip("the compiler is not gcc")
    assert len(preludes) == 1
    reads = [unit for unit in units if any("<tvm/ffi/" in text for text in unit.texts)]
    assert len(units) > len(reads) >= MANY
    assert all((unit.prelude is not None) == (unit in reads) for unit in units)
