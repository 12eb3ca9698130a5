"""A child finds kernels after a fork, whatever other threads of the parent did at that moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import KernelId, get_kernel_progression_configs
from flashsmith.jit import Module, Target
from flashsmith.ops.attention import attention
from flashsmith.runtime import host, kernels
from flashsmith.runtime.launch_cache import LaunchCache
from support.forking import in_child

TARGET = Target.cuda("sm_87")  # no test runs its kernels
INSTANCES = [KernelId(config) for config in get_kernel_progression_configs()[:2]]
FUNCTIONS = [name for name in LaunchCache.__slots__ if name != "this_thread"]


class Pause:
    """A place where one thread may stop."""

    def __init__(self) -> None:
        self.is_there, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def __call__(self) -> None:
        self.is_there.set()
        assert self.may_go_on.wait(30)

    @contextmanager
    def with_a_thread(self, function: Callable[[], object]) -> Iterator[None]:
        """Runs the body while another thread, which calls ``function``, stops here."""
        self.may_go_on.clear()
        thread = threading.Thread(target=function)
        thread.start()
        assert self.is_there.wait(30)
        try:
            yield
        finally:
            self.may_go_on.set()
            thread.join()


class HostModule:
    """A host library's module, which may pause in the middle of what it does."""

    def __init__(self, pause: Pause) -> None:
        self.pause = pause

    def launch_cache(self) -> Any:
        return self

    def items(self) -> Iterator[tuple[str, Any]]:
        for name in FUNCTIONS:
            yield name, self
            if name == FUNCTIONS[2]:
                self.pause()

    def load_kernel(self, *_: Any) -> dict[str, Any]:
        self.pause()
        return {}


class PausingDict(dict[Any, Any]):
    """A dictionary that pauses when it is written, which happens under a lock."""

    pause: Pause

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.pause()
        return super().setdefault(key, default)


@pytest.fixture
def pause() -> Pause:
    return Pause()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, pause: Pause) -> HostModule:
    module = HostModule(pause)
    monkeypatch.setattr(host, "_load", lambda _: module)
    monkeypatch.setattr(host, "_module", None)
    monkeypatch.setattr(host, "launch_cache", LaunchCache())
    monkeypatch.setattr(kernels, "_loaded", {})
    return module


def load(instance: KernelId) -> None:
    manifest = {
        "artifact": {"file": "kernel"},
        "target": {"kind": TARGET.kind, "archs": list(TARGET.archs)},
        "functions": {},
    }
    kernels.load_module(Module(Path("folder"), manifest), instance, TARGET)


def test_a_child_loads_a_kernel_while_its_parent_loads_one(
    module: HostModule, pause: Pause
) -> None:
    host.load_host()

    def load_both() -> None:
        pause.may_go_on.set()
        for instance in INSTANCES:
            load(instance)
            assert kernels.is_loaded(instance, TARGET)

    with pause.with_a_thread(lambda: load(INSTANCES[0])):
        assert in_child(load_both) == ""
    assert kernels.is_loaded(INSTANCES[0], TARGET), "the parent goes on"


def test_a_child_loads_a_kernel_while_its_parent_notes_one(
    module: HostModule, pause: Pause, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's thread holds the lock, and in the child nobody would release it."""
    host.load_host()
    loaded = PausingDict()
    loaded.pause = pause
    monkeypatch.setattr(kernels, "_loaded", loaded)

    def load_another() -> None:
        pause.may_go_on.set()
        load(INSTANCES[1])
        assert kernels.is_loaded(INSTANCES[1], TARGET)

    module.pause = Pause()  # which nobody uses
    with pause.with_a_thread(lambda: load(INSTANCES[0])):
        assert kernels._lock.locked()
        assert in_child(load_another) == ""
    assert kernels.is_loaded(INSTANCES[0], TARGET), "the parent goes on"


def test_a_child_loads_the_host_library_while_its_parent_loads_it(
    module: HostModule, pause: Pause
) -> None:
    """The parent has connected some functions of the launch cache, and the child connects all."""

    def load_host() -> None:
        pause.may_go_on.set()
        assert [getattr(host.launch_cache, name) is module for name in FUNCTIONS[2:4]] == [
            *(True, False)
        ]
        assert host.load_host() is module
        assert all(getattr(host.launch_cache, name) is module for name in FUNCTIONS)

    with pause.with_a_thread(host.load_host):
        assert in_child(load_host) == ""
    assert host.load_host() is module, "the parent goes on"


def test_a_child_has_what_its_parent_loaded(module: HostModule) -> None:
    load(INSTANCES[0])

    def look_up() -> None:
        assert kernels.is_loaded(INSTANCES[0], TARGET)
        assert not kernels.is_loaded(INSTANCES[1], TARGET)
        assert host._module is module

    assert in_child(look_up) == ""


def test_a_child_computes_as_its_parent_does() -> None:
    q = torch.randn(1, 64, 1, 64).half()
    expected = attention(q, q, q)

    def compute() -> None:
        torch.testing.assert_close(attention(q, q, q), expected, rtol=0, atol=0)

    assert in_child(compute) == ""


def test_a_child_loads_kernels_that_its_parent_has_not() -> None:
    """The real host library is loaded before the fork, and modules in the child."""
    q = torch.randn(1, 64, 1, 64).half()
    expected = attention(q, q, q, causal=True)
    forgotten = dict(kernels._loaded)

    def compute() -> None:
        kernels._loaded.clear()
        instance = next(iter(forgotten[Target.emulator()]))
        assert kernels.find_kernel(instance, Target.emulator()).operations
        again = attention(q, q, q, causal=True)
        torch.testing.assert_close(again, expected, rtol=0, atol=0)

    assert in_child(compute) == ""
