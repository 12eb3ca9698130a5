"""Which kernels a case needs: its test runs with stand-ins for them."""

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

# What kernels are told apart by, as far as a parameter's name tells.
_TELLING = ("dtype", "causal", "local", "alibi", "softcap", "dropout_p")


class _Nothing:
    """Stands for a kernel of any operation: results stay as they were allocated."""

    def __init__(self, instance: KernelId) -> None:
        self.instance = instance

    def plan(self, *_: Any, **__: Any) -> Plan:
        return Plan((), 0, 0)

    def bind(self, *_: Any, **__: Any) -> Callable[..., bool]:
        return lambda *_: True

    def append(self, *_: Any, **__: Any) -> None:
        pass


def kernels_of(test: Callable[..., Any], case: Case) -> frozenset[KernelId]:
    """The kernels that a case launches, until it ends or its results, which are none, fail it."""
    kernels: set[KernelId] = set()
    with _recording(kernels), contextlib.suppress(Exception, pytest.skip.Exception):
        test(**case)
    return frozenset(kernels)


def kind_of(name: str, case: Case) -> Hashable:
    """Returns what cases of a test have in common that need the same kernel, or one of a few."""
    d = case.get("d", 0)
    room = next((size for size in D_HEADS if size >= d), d)
    told = tuple(case.get(parameter) for parameter in _TELLING)
    return ("varlen" in name, room, room == d, *told)


@contextlib.contextmanager
def _recording(kernels: set[KernelId]) -> Iterator[None]:
    """Has calls find stand-ins for kernels, and writes down what they look for."""

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
