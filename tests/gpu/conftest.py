"""Fixtures of the GPU tests. Without a GPU they fail: deselect them with ``-m "not gpu"``."""

from __future__ import annotations

import functools

import pytest
import torch

from flashsmith.configs import ForwardKernelConfig
from flashsmith.configs.family import Family
from flashsmith.configs.registry import family_of
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from support.kernels import SAMPLES, both_variants
from support.sm80_kernels import DECLARED


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.fail(
            "these tests need an NVIDIA GPU, and torch finds none; without one run "
            'pytest -m "not gpu"',
            pytrace=False,
        )


@pytest.fixture(autouse=True)
def _family_runs_here(_gpu: None, request: pytest.FixtureRequest) -> None:
    """Builds all kernels of the family of the test's configuration, or skips the test on other
    GPUs."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    cfg = parameters.get("cfg")
    if not isinstance(cfg, ForwardKernelConfig):
        return
    family = family_of(cfg)
    if not family.runs_on(torch.cuda.get_device_capability()):
        pytest.skip(f"the {family.name} family does not run on this GPU")
    _build(family)


@functools.cache
def _build(family: Family) -> None:
    """Builds the kernels in one library, so that compilers run side by side."""
    (samples,) = (samples for samples in SAMPLES if samples.family is family)
    declared = [cfg for cfg in DECLARED if family_of(cfg) is family]
    instances = both_variants(dict.fromkeys([*samples.configs, *declared]))
    target = target_of(torch.device("cuda"))
    load_kernels(instances, target)
