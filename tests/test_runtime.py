"""From the rows that a library lists to kernels that can be called."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from flashsmith.build import Library, Target
from flashsmith.configs import (
    FORWARD_VARIANTS,
    ForwardKernelInstance,
    get_hopper_kernel_progression_configs,
    get_kernel_progression_configs,
)
from flashsmith.runtime import find_kernel, load_library, loaded_kernels

TARGET = Target.cuda("sm_87")  # of no test that runs kernels
INSTANCES = [
    ForwardKernelInstance(cfg, variant)
    for cfg in (*get_kernel_progression_configs(), *get_hopper_kernel_progression_configs())
    for variant in FORWARD_VARIANTS
]


class Module:
    """A library, as tvm-ffi shows it: plain numbers, in the order of csrc/host/exports.cpp."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def kernels(self) -> list[list[int]]:
        return [
            [i.config.family, int(i.variant.causal), *map(int, astuple(i.config))]
            for i in INSTANCES
        ]

    def forward(self, *arguments: Any) -> float:
        self.calls.append(arguments)
        return 0.5


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(tvm_ffi, "load_module", lambda _: module)
    return module


def library() -> Library:
    target = {"kind": TARGET.kind, "archs": list(TARGET.archs)}
    return Library(Path("x"), json.loads(json.dumps({"artifact": {"file": "y"}, "target": target})))


def test_rows_of_both_families_become_their_instances(module: Module) -> None:
    kernels = load_library(library())
    assert [kernel.instance for kernel in kernels] == INSTANCES
    assert [kernel.handle for kernel in kernels] == list(range(len(INSTANCES)))
    assert set(loaded_kernels(TARGET)) == set(INSTANCES)
    assert all(find_kernel(instance, TARGET).instance == instance for instance in INSTANCES)


def test_a_call_passes_everything_in_the_order_of_the_library(module: Module) -> None:
    kernel = load_library(library())[3]
    assert kernel("q", "k", "v", "o", 0.25) == 0.5
    assert kernel("q", "k", "v", "o", 0.25, True, lse="l", workspace="w") == 0.5
    assert module.calls == [
        (3, "q", "k", "v", "o", None, None, 0.25, False),
        (3, "q", "k", "v", "o", "l", "w", 0.25, True),
    ]
