"""Which kernel a case needs: its test runs up to the first launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Variant
from flashsmith.configs.families import SUPPORTED_D_HEADS
from flashsmith.ops import launch
from tools.flash_attn_tests.cases import Case

# What kernels are told apart by, as far as a parameter's name tells.
_TELLING = ("dtype", "causal", "local", "alibi", "softcap")


class _Launch(Exception):
    def __init__(self, kernel: KernelId) -> None:
        super().__init__(kernel)
        self.kernel = kernel


def kernel_of(test: Callable[..., Any], case: Case) -> KernelId | None:
    """The kernel of a case's first launch; None if it launches none, or fails before."""
    try:
        with _stopping_at_launches():
            test(**case)
    except _Launch as launched:
        return launched.kernel
    except (Exception, pytest.skip.Exception):
        return None
    return None


def kind_of(name: str, case: Case) -> Hashable:
    """What cases of a test have in common that need the same kernel, or one of a few."""
    d = case.get("d", 0)
    room = next((size for size in SUPPORTED_D_HEADS if size >= d), d)
    told = tuple(case.get(parameter) for parameter in _TELLING)
    return ("varlen" in name, room, room == d, *told)


@contextmanager
def _stopping_at_launches() -> Iterator[None]:
    def stop(cfg: ForwardKernelConfig, variant: Variant, device: torch.device) -> NoReturn:
        raise _Launch(KernelId(cfg, variant))

    real = launch.kernel_for
    launch.kernel_for = stop
    try:
        yield
    finally:
        launch.kernel_for = real
