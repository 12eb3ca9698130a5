"""What the tests on a GPU share. Without one they fail: deselect them with ``-m "not gpu"``."""

from __future__ import annotations

import pytest
import torch

from conftest import CONFIGS
from flashsmith.configs import (
    FORWARD_VARIANTS,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    get_kernel_progression_configs,
)
from flashsmith.jit import build_library
from flashsmith.runtime import load_library
from flashsmith.runtime.device import target_of

PROGRESSION = get_kernel_progression_configs()


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.fail(
            "these tests need an NVIDIA GPU, and torch finds none; without one run "
            'pytest -m "not gpu"',
            pytrace=False,
        )


def _build(configs: list[FlashForwardKernelConfig]) -> None:
    """Full and causal kernels of ``configs``, in one library."""
    instances = [ForwardKernelInstance(c, v) for c in configs for v in FORWARD_VARIANTS]
    target = target_of(torch.device("cuda"))
    load_library(build_library(instances, target), target)


@pytest.fixture(scope="session")
def every_kernel(_gpu: None) -> None:
    _build(CONFIGS)


@pytest.fixture(scope="session")
def progression(_gpu: None) -> list[FlashForwardKernelConfig]:
    """The seven steps from the plainest kernel to the best."""
    _build(PROGRESSION)
    return PROGRESSION
