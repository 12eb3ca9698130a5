"""From the rows that a library lists to kernels that can be called."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from flashsmith.configs import (
    FORWARD_VARIANTS,
    DType,
    ForwardKernelInstance,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Library, Target, build_library
from flashsmith.runtime import find_kernel, load_library, loaded_instances

TARGET = Target.cuda("sm_87")  # of no test that runs kernels
INSTANCES = [
    ForwardKernelInstance(cfg, variant)
    for cfg in (*get_kernel_progression_configs(), *get_sm90_kernel_progression_configs())
    for variant in FORWARD_VARIANTS
]


class Module:
    """A library, as tvm-ffi shows it: plain numbers, in the order of csrc/host/exports.cpp."""

    def __init__(self) -> None:
        self.asked: list[ForwardKernelInstance] = []
        self.calls: list[tuple[Any, ...]] = []

    def find(self, family: int, causal: bool, values: list[int]) -> int:
        for handle, i in enumerate(INSTANCES):
            wanted = (i.config.family_number, i.variant.causal, list(map(int, astuple(i.config))))
            if (family, causal, values) == wanted:
                self.asked.append(i)
                return handle
        return -1

    def forward(self, *arguments: Any) -> float:
        self.calls.append(arguments)
        return 0.5


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(tvm_ffi, "load_module", lambda _: module)
    return module


def library() -> Library:
    manifest = {
        "artifact": {"file": "y"},
        "target": {"kind": TARGET.kind, "archs": list(TARGET.archs)},
        "kernels": {instance.slug: {"name": instance.name} for instance in INSTANCES},
    }
    return Library(Path("x"), manifest)


def test_kernels_of_both_families_are_looked_up_once(module: Module) -> None:
    load_library(library())
    assert module.asked == []
    for _ in range(2):
        kernels = [find_kernel(instance, TARGET) for instance in INSTANCES]
    assert [kernel.instance for kernel in kernels] == INSTANCES
    assert [kernel.handle for kernel in kernels] == list(range(len(INSTANCES)))
    assert module.asked == INSTANCES
    assert loaded_instances(TARGET) == set(INSTANCES)


def test_the_newest_library_comes_first(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    load_library(library())
    assert find_kernel(INSTANCES[0], TARGET).module is module
    newer = Module()
    monkeypatch.setattr(tvm_ffi, "load_module", lambda _: newer)
    load_library(library())
    assert find_kernel(INSTANCES[0], TARGET).module is newer


def test_a_call_passes_everything_in_the_order_of_the_library(module: Module) -> None:
    load_library(library())
    kernel = find_kernel(INSTANCES[3], TARGET)
    assert kernel("q", "k", "v", "o", 0.25) == 0.5
    assert kernel("q", "k", "v", "o", 0.25, True, lse="l", workspace="w") == 0.5
    assert module.calls == [
        (3, "q", "k", "v", "o", None, None, 0.25, False),
        (3, "q", "k", "v", "o", "l", "w", 0.25, True),
    ]


# The map of a real library.

BUILT = [
    ForwardKernelInstance(parse_kernel_name_into_config(name), variant)
    for name in (
        "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles",
        "(FP16, 64, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
        "(BF16, 64, 64, 32, 1): wgmma+stages_1",
    )
    for variant in FORWARD_VARIANTS
]


@pytest.fixture(scope="module")
def real() -> Any:
    return tvm_ffi.load_module(str(build_library(BUILT, Target.emulator()).path))


def handle_of(real: Any, instance: ForwardKernelInstance) -> int:
    config = instance.config
    values = [*map(int, astuple(config))]
    return int(real.find(config.family_number, instance.variant.causal, values))


def test_the_cpp_map_finds_each_kernel_by_its_configuration(real: Any) -> None:
    """A handle is the kernel's place by family, variant and configuration."""
    ordered = sorted(BUILT, key=lambda i: (i.config.family_number, i.variant, i.config))
    assert [handle_of(real, instance) for instance in ordered] == list(range(len(BUILT)))


def test_the_cpp_map_minds_every_field(real: Any) -> None:
    for instance in BUILT:
        for field in fields(instance.config):
            value = getattr(instance.config, field.name)
            other: Any = not value if isinstance(value, bool) else value + 1
            if isinstance(value, DType):
                other = next(dtype for dtype in DType if dtype != value)
            changed = ForwardKernelInstance(
                replace(instance.config, **{field.name: other}), instance.variant
            )
            assert changed in BUILT or handle_of(real, changed) == -1, field.name


def test_what_no_map_can_hold_is_refused(real: Any) -> None:
    with pytest.raises(ValueError, match="family 2 is not known"):
        real.find(2, False, [5])
    for family, values in ((0, [5] * 12), (1, [5] * 19), (0, [])):
        with pytest.raises(ValueError, match=f"a configuration of {len(values)} values; expected"):
            real.find(family, False, values)
