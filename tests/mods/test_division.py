"""Division by a constant needs no division instruction, and gives the same result to the bit."""

from __future__ import annotations

import math

import pytest
import torch

from flashsmith.mods.cpp import policy
from flashsmith.mods.trace import trace
from support.mods import Policies

# Some quotients by 41 and 49 are whole numbers that a product with the inverse misses; the mantissa
# of the largest number below 2 is all ones.
DIVISORS = (1.0, 3.0, -7.0, 10.0, 30.0, 41.0, 49.0, 0.1, 1e-9, 1.9999998807907104, -1e30, 2.0**-100)
RARE = (0.0, -0.0, math.inf, -math.inf, math.nan, 3.4028234663852886e38, 1e-30)
IEEE = (0.0, math.inf, math.nan, 2.0**-140, 2.0**127)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    mods = {str(c): trace(lambda s, b, h, q, k, c=c: s / c) for c in DIVISORS}
    mods["ints"] = trace(lambda s, b, h, q, k: torch.floor(q / 41))
    return Policies(tmp_path_factory.mktemp("division"), mods)


def run(policies: Policies, name: str, scores: torch.Tensor) -> torch.Tensor:
    positions = {each: torch.zeros(len(scores), dtype=torch.int32) for each in ("b", "h", "kv")}
    counted = torch.arange(len(scores), dtype=torch.int32)
    return policies.run(name, {"score": scores, "q": counted, **positions})[0]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_every_quotient_is_rounded_as_by_a_division(policies: Policies, divisor: float) -> None:
    whole = torch.arange(-100_000, 100_000).float()
    spread = torch.randn(200_000) * torch.exp2(torch.randint(-20, 20, (200_000,)).float())
    scores = torch.cat([whole, spread])
    assert run(policies, str(divisor), scores).equal(scores / divisor)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_what_is_no_usual_number_stays_so(policies: Policies, divisor: float) -> None:
    scores = torch.tensor(RARE)
    found, expected = run(policies, str(divisor), scores), scores / divisor
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    numbers = ~expected.isnan()
    assert found.signbit()[numbers].equal(expected.signbit()[numbers])


def test_blocks_of_a_mask_begin_where_they_should(policies: Policies) -> None:
    found = run(policies, "ints", torch.zeros(41 * 500))
    assert found.equal(torch.arange(41 * 500).div(41, rounding_mode="floor").float())


@pytest.mark.parametrize("divisor", IEEE)
def test_other_constants_are_divided_by(divisor: float) -> None:
    assert " / " in policy(trace(lambda s, b, h, q, k: s / divisor).expression)


def test_usual_constants_are_not() -> None:
    """A division branches to a call for rare cases, for which wgmma would have to wait."""
    for divisor in DIVISORS:
        text = policy(trace(lambda s, b, h, q, k, c=divisor: s / c).expression)
        assert " / " not in text and "div_by_constant" in text
