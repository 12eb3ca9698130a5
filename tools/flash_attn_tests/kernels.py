"""Finds the kernels that a case needs, by running its test with stand-ins for kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

from flashsmith.configs import KernelConfig, KernelId, Variant
from flashsmith.configs.workload import D_HEADS
from flashsmith.ops import launch
from flashsmith.ops.choices import Choices
from flashsmith.runtime.launch_cache import LaunchCache
from flashsmith.runtime.plan import Plan
from tools.flash_attn_tests.cases import Case

# Parameters whose values usually decide which kernel a case needs.
_TELLING = ("dtype", "causal", "local", "alibi", "softcap", "dropout_p")


class _Nothing:
    """A stand-in for a kernel of any operation, which leaves its results uninitialised."""

    def __init__(self, instance: KernelId) -> None:
        self.instance = instance

    def plan(self, *_: Any, **__: Any) -> Plan:
        return Plan((), 0, 0)

    def bind(self, *_: Any, **__: Any) -> Callable[..., bool]:
        return lambda *_: True

    def append(self, *_: Any, **__: Any) -> None:
        pass


def kernels_of(test: Callable[..., Any], case: Case) -> frozenset[KernelId]:
    """Returns the kernels that a case launches, until it ends or fails on its invalid results."""
    kernels: set[KernelId] = set()
    with _recording(kernels), contextlib.suppress(Exception, pytest.skip.Exception):
        test(**case)
    return frozenset(kernels)


def kind_of(name: str, case: Case) -> Hashable:
    """Returns a key that is equal for cases of a test that need the same kernel, or almost."""
    d = case.get("d", 0)
    room = next((size for size in D_HEADS if size >= d), d)
    told = tuple(case.get(parameter) for parameter in _TELLING)
    return ("varlen" in name, room, room == d, *told)


@contextlib.contextmanager
def _recording(kernels: set[KernelId]) -> Iterator[None]:
    """Makes calls find stand-ins for kernels, and adds the kernels that they look for to a set."""

    def find(config: KernelConfig, variant: Variant, device: torch.device) -> Any:
        instance = KernelId(config, variant)
        kernels.add(instance)
        return _Nothing(instance)

    def remembered() -> dict[str, Any]:
        return {"_choices": Choices(), "launch_cache": LaunchCache()}

    with (
        patch.multiple(launch, kernel_for=find, few_queries_kernel_for=find, **remembered()),
        patch.multiple("flashsmith.ops.backward", _kernel_for=find, **remembered()),
        patch.multiple("flashsmith.ops.decode_calls", _kernel_for=find, **remembered()),
        patch("flashsmith.ops.forward.launch_cache", LaunchCache()),
    ):
        yield
