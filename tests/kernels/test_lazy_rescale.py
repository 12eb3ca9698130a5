"""The moment when a lazy or stale maximum moves, told by weights that only the old reference can
hold.

P is rounded to FP16, whose smallest number is 2^-24. A key whose weight is above 2^-24 relative to
the old reference and below it relative to the raised one tells whether the reference moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    KernelId,
)
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.runtime import Kernel
from support.problems import Emulated, run
from support.sm80_kernels import LAST
from support.sm90_kernels import VARIED

SMALL_VALUE = 2.0**15  # of the key that may vanish
SCALE_LOG2 = 0.5  # not 1: a bound that ignores the scale would be another bound
SCALE = SCALE_LOG2 * math.log(2)
RTOL = 2.0**-6  # the result, in FP16, is as small as 2^-17


@dataclass(frozen=True)
class Lazy:
    """A kernel with the growth that its maximum allows, and the lead of its reference over the
    maximum."""

    instance: KernelId
    bound: int
    lead: int

    def __str__(self) -> str:
        return self.instance.slug


def _sm90(config: ForwardKernelConfig, stale: bool) -> Lazy:
    bound = config.lazy_rescale_log2
    return Lazy(KernelId(config), bound, bound if stale else 0)


SM80 = Lazy(KernelId(LAST), 8, 0)
LAZY = _sm90(VARIED[3], stale=False)
STALE = _sm90(SM90_FORWARD.heuristic(Workload.square(DType.FP16, 64, 4096)), stale=True)
EACH = pytest.mark.parametrize("lazy", [SM80, LAZY, STALE], ids=["sm80", "sm90 lazy", "stale"])


@pytest.fixture
def kernel(lazy: Lazy, emulated: Emulated) -> Kernel:
    return emulated(lazy.instance)


def result(kernel: Kernel, growth: float, small: float, large_value: float = 0.0) -> torch.Tensor:
    """Returns o for two blocks of keys. The first has a key of exponent 0; the second has a key
    that is larger by ``growth``, with ``large_value``, and a key of exponent ``small``, with
    SMALL_VALUE."""
    config = kernel.instance.config
    rows = 2 * config.B_c
    exponents = torch.full((rows,), -60.0)
    exponents[config.B_c + 3], exponents[5], exponents[config.B_c - 2] = 0.0, growth, small
    q, k, v = torch.zeros(3, 1, rows, 1, config.d_head).half()
    q[..., 0], k[0, :, 0, 0] = 1.0, (exponents / SCALE_LOG2).half()
    v[0, 5], v[0, config.B_c - 2] = large_value, SMALL_VALUE
    return run(kernel, (q, k, v), SCALE).float()


def expected(reference: float, growth: float, small: float) -> float:
    """Returns what the small key adds if its weight is rounded against ``reference``."""
    weight = float(torch.tensor(2.0 ** (small - reference)).half())
    total = 1 + 2.0**growth + 2.0**small
    return weight * 2**reference * SMALL_VALUE / total


def test_the_kernels_are_lazy() -> None:
    assert all(lazy.instance.config.dtype == DType.FP16 for lazy in (SM80, LAZY, STALE))
    assert (LAZY.bound, LAZY.lead) == (8, 0) and STALE.lead == STALE.bound == 4
    assert SM80.instance.config.optimized_softmax


@pytest.mark.parametrize("below", [0.0, 0.5, 3.0])
@EACH
def test_growth_up_to_the_bound_leaves_the_reference(
    lazy: Lazy, below: float, kernel: Kernel
) -> None:
    growth, barely = lazy.bound - below, lazy.lead - 24.0  # its weight is the smallest number
    o = result(kernel, growth, barely)
    wanted = expected(lazy.lead, growth, barely)
    assert wanted > 0
    torch.testing.assert_close(o, torch.full_like(o, wanted), rtol=RTOL, atol=0)


@pytest.mark.parametrize("above", [0.5, 4.0, 8.0])
@EACH
def test_growth_beyond_the_bound_moves_it(lazy: Lazy, above: float, kernel: Kernel) -> None:
    """The reference moves to the new maximum, and by the lead beyond it."""
    growth = lazy.bound + above
    barely = growth + lazy.lead - 24.0  # its weight becomes the smallest number
    wanted = expected(growth + lazy.lead, growth, barely)
    o = result(kernel, growth, barely)
    torch.testing.assert_close(o, torch.full_like(o, wanted), rtol=RTOL, atol=0)
    assert (result(kernel, growth, barely - 2.0) == 0).all()


@EACH
def test_weights_do_not_overflow(lazy: Lazy, kernel: Kernel) -> None:
    """FP16 ends below 2^16, and a weight reaches twice the bound of 8."""
    o = result(kernel, 2 * lazy.bound, -60.0, large_value=1.0)
    weight = 2.0 ** (2 * lazy.bound)
    torch.testing.assert_close(o, torch.full_like(o, weight / (weight + 1)), rtol=1e-3, atol=0)
