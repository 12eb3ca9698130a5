"""The kernels that the tests run: each mechanism of each family at least once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from flashsmith.configs import VARIANTS, ForwardKernelConfig, KernelId
from flashsmith.configs.family import Family
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from support import sm80_kernels, sm90_kernels


@dataclass(frozen=True)
class Samples:
    """Kernels of one family.

    Attributes:
        configs: Each mechanism, d_head and dtype at least once.
        some: A few of these that differ in kind, for tests that take long.
        synchronised: Every way in which the family's kernels synchronise.
    """

    family: Family
    configs: tuple[ForwardKernelConfig, ...]
    some: tuple[ForwardKernelConfig, ...]
    synchronised: tuple[ForwardKernelConfig, ...]


def both_variants(configs: Iterable[ForwardKernelConfig]) -> list[KernelId]:
    return [KernelId(config, variant) for config in configs for variant in VARIANTS]


SAMPLES = (
    Samples(
        SM80_FORWARD,
        tuple(sm80_kernels.CONFIGS),
        tuple(sm80_kernels.SOME),
        tuple(sm80_kernels.SYNCHRONISED),
    ),
    Samples(
        SM90_FORWARD,
        tuple(sm90_kernels.CONFIGS),
        tuple(sm90_kernels.SOME),
        tuple(sm90_kernels.SYNCHRONISED),
    ),
)
BY_FAMILY = pytest.mark.parametrize("samples", SAMPLES, ids=lambda s: s.family.name)
INSTANCES = [i for s in SAMPLES for i in both_variants(s.configs)]
SOME_INSTANCES = [i for s in SAMPLES for i in both_variants(s.some)]
SYNCHRONISATION = [i for s in SAMPLES for i in both_variants(s.synchronised)]
EACH = pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.slug)
SOME = pytest.mark.parametrize("instance", SOME_INSTANCES, ids=lambda i: i.slug)
