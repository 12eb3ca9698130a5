"""A distance to a key becomes a float without a conversion for each key, and is the same number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashsmith.mods.cpp import policy
from flashsmith.mods.trace import trace
from support.mods import Policies

EXACT = 2**24  # up to here every integer is a float32
DISTANCES: dict[str, Callable[..., torch.Tensor]] = {
    "q - kv": lambda s, b, h, q, kv: (q - kv) * 1.0,
    "kv - q": lambda s, b, h, q, kv: (kv - q) * 1.0,
    "abs": lambda s, b, h, q, kv: (q - kv).abs() * 1.0,
    "of a constant": lambda s, b, h, q, kv: (kv - 1000) * 1.0,
    "used as an integer too": lambda s, b, h, q, kv: (q - kv) * 1.0 + (q - kv) // 3,
}
OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "a constant that wraps": lambda s, b, h, q, kv: (kv - (-(2**31) + 5)) * 1.0,
    "a product": lambda s, b, h, q, kv: (q * 2 - kv) * 1.0,
    "integers alone": lambda s, b, h, q, kv: torch.where((q - kv).abs() < 7, s, 0.0),
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    mods = {name: trace(f) for name, f in (DISTANCES | OTHERS).items()}
    return Policies(tmp_path_factory.mktemp("distances"), mods)


def run(policies: Policies, name: str, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros_like(q)
    inputs = {"score": torch.ones(len(q)), "b": zeros, "h": zeros, "q": q, "kv": kv}
    return policies.run(name, inputs)[0]


def expected(name: str, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros_like(q)
    return (DISTANCES | OTHERS)[name](torch.ones(len(q)), zeros, zeros, q, kv)


def places(maximum: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns positions of queries and keys: random pairs, near pairs, and equal pairs."""
    q = torch.randint(0, maximum, (20_000,), dtype=torch.int32)
    near = (q + torch.randint(-300, 300, q.shape, dtype=torch.int32)).clamp(0, maximum - 1)
    return torch.cat([q, q, q]), torch.cat([q.flip(0), near, q])


@pytest.mark.parametrize("name", [*DISTANCES, *OTHERS])
def test_distances_are_exact(policies: Policies, name: str) -> None:
    q, kv = places(EXACT // 4)
    found = run(policies, name, q, kv)
    assert found.equal(expected(name, q, kv))
    assert found.signbit().equal(expected(name, q, kv).signbit())


@pytest.mark.parametrize("name", ["q - kv", "kv - q", "abs", "of a constant"])
def test_near_keys_are_exact_and_far_ones_rounded_where_sequences_are_longer_than_floats_count(
    policies: Policies, name: str
) -> None:
    q, kv = places(2**31 - 1)
    found, real = run(policies, name, q, kv).double(), expected(name, q, kv).double()
    assert ((found - real).abs() <= real.abs() * 2.0**-23).all()
    if name != "of a constant":
        assert found[20_000:].equal(real[20_000:])


@pytest.mark.parametrize("name", DISTANCES)
def test_no_key_is_converted(name: str) -> None:
    text = policy(trace(DISTANCES[name]).expression)
    assert "mods::keys_" in text
    assert ("to_float" in text) == (name == "used as an integer too")


@pytest.mark.parametrize("name", OTHERS)
def test_other_integers_stay_integers(name: str) -> None:
    assert "mods::keys_" not in policy(trace(OTHERS[name]).expression)
