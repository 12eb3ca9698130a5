"""Some counts of the code, such as long signatures, must not grow unnoticed."""

from __future__ import annotations

import pytest

from tools import house

LIMITS = {
    "signatures with softmax_scale": 9,
    "functions with more than 8 positional arguments": 2,  # those of torch's schema of a backward
    "classes of families": 1,
    "forms of what a call computes": 8,  # Variant counts once in Python and once in C++
    "places that ask a configuration for its operation": 3,
}


def test_every_number_has_a_limit() -> None:
    assert LIMITS.keys() == house.NUMBERS.keys()


@pytest.mark.parametrize("name", LIMITS)
def test_no_number_grows(name: str) -> None:
    """If a count shrinks, its limit is lowered in the same commit."""
    found = house.NUMBERS[name]()
    assert len(found) == LIMITS[name], found
