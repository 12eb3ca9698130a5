"""A child finds kernels after a fork, whatever other threads of the parent did at that moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import KernelId, get_kernel_progression_configs
from flashsmith.jit import Library, Target
from flashsmith.ops.attention import attention
from flashsmith.runtime import kernels
from support.forking import in_child

TARGET = Target.cuda("sm_87")  # no test runs its kernels
INSTANCE = KernelId(get_kernel_progression_configs()[0])


class Module:
    """A library's module, which may pause in the middle of a look-up."""

    def __init__(self) -> None:
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def find_kernel(self, name: str, *fields: Any) -> dict[str, Any] | None:
        self.asked.set()
        assert self.may_go_on.wait(30)
        return {} if name == INSTANCE.name else None


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(kernels.tvm_ffi, "load_module", lambda _: module)
    for name in ("_loaded", "_found"):
        monkeypatch.setattr(kernels, name, {})
    monkeypatch.setattr(kernels.launch_cache, "is_connected", True)  # not with functions of this
    manifest = {"artifact": {"file": "y"}, "kernels": {"": {"name": INSTANCE.name}}}
    kernels.load_library(Library(Path("x"), manifest), TARGET)
    return module


@contextmanager
def looking_up(module: Module) -> Iterator[None]:
    """Runs the body while another thread is in the middle of a look-up, and holds the lock."""
    module.may_go_on.clear()
    thread = threading.Thread(target=kernels.is_loaded, args=(INSTANCE, TARGET))
    thread.start()
    assert module.asked.wait(30)
    try:
        yield
    finally:
        module.may_go_on.set()
        thread.join()


def test_a_child_finds_a_kernel_while_its_parent_looks_one_up(module: Module) -> None:
    def find() -> None:
        module.may_go_on.set()
        assert kernels.is_loaded(INSTANCE, TARGET)

    with looking_up(module):
        assert in_child(find) == ""
    assert kernels.is_loaded(INSTANCE, TARGET), "the parent goes on"


def test_a_child_loads_a_library_while_its_parent_looks_one_up(module: Module) -> None:
    def load() -> None:
        module.may_go_on.set()
        other = Library(Path("z"), {"artifact": {"file": "y"}, "kernels": {}})
        kernels.load_library(other, TARGET)
        assert kernels.is_loaded(INSTANCE, TARGET)

    with looking_up(module):
        assert in_child(load) == ""


def test_a_child_of_a_fork_while_a_library_is_loaded_remembers_nothing_as_lacking(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork between the two steps of the other thread would leave the child with the library but
    without its kernels, which it would never find."""
    lacking = KernelId(get_kernel_progression_configs()[1])
    assert not kernels.is_loaded(lacking, TARGET)
    remembered: list[bool] = []

    class Loaded(dict[Any, Any]):
        def __setitem__(self, target: Any, libraries: Any) -> None:
            remembered.append(lacking in kernels._found[target])
            super().__setitem__(target, libraries)

    monkeypatch.setattr(kernels, "_loaded", Loaded(kernels._loaded))
    kernels.load_library(Library(Path("z"), {"artifact": {"file": "y"}, "kernels": {}}), TARGET)
    assert remembered == [False]


def test_a_child_computes_as_its_parent_does() -> None:
    q = torch.randn(1, 64, 1, 64).half()
    expected = attention(q, q, q)

    def compute() -> None:
        torch.testing.assert_close(attention(q, q, q), expected, rtol=0, atol=0)

    assert in_child(compute) == ""
