"""Where torch or C++ leave a result open, the kernel defines it, and no read leaves a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.trace import trace
from support.mods import Policies

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
EDGES = (INT_MIN, INT_MIN + 1, -33, -2, -1, 0, 1, 2, 31, 32, INT_MAX)
NUMBERS = (-math.inf, -3e9, -2.5, -0.0, 0.0, 0.5, 1.0, 2.0**31, math.inf, math.nan)
TABLE = torch.arange(12, dtype=torch.int32).view(3, 4)[:, :3]


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def power(base: int, exponent: int) -> int:
    if exponent < 0:
        return int(base**exponent) if abs(base) == 1 else 0
    return wrapped(pow(base, exponent, 2**32))


def shifted_right(a: int, b: int) -> int:
    return a >> (b if 0 <= b < 32 else 31)


# Each function as a mask_mod would compute it, and the same in Python's integers.
INTEGERS: dict[str, tuple[Callable[..., Any], Callable[[int, int], int]]] = {
    "add": (lambda q, k: q + k, lambda q, k: wrapped(q + k)),
    "sub": (lambda q, k: q - k, lambda q, k: wrapped(q - k)),
    "mul": (lambda q, k: q * k, lambda q, k: wrapped(q * k)),
    "floor_divide": (lambda q, k: q // k, lambda q, k: wrapped(q // k) if k else 0),
    "remainder": (lambda q, k: q % k, lambda q, k: q % k if k else q),
    "fmod": (torch.fmod, lambda q, k: int(math.fmod(q, k)) if k else q),
    "pow": (lambda q, k: q**k, power),
    "left": (lambda q, k: q << k, lambda q, k: wrapped(q << k) if 0 <= k < 32 else 0),
    "right": (lambda q, k: q >> k, shifted_right),
    "abs": (lambda q, k: abs(q), lambda q, k: wrapped(abs(q))),
    "neg": (lambda q, k: -q, lambda q, k: wrapped(-q)),
    "smallest": (lambda q, k: q - INT_MIN, lambda q, k: wrapped(q - INT_MIN)),
}
FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "lt": lambda s, t: torch.where(s < t, 1.0, 0.0),
    "is": lambda s, t: torch.where(torch.isnan(s), 1.0, torch.where(torch.isinf(s), 2.0, t)),
}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    mods = {
        # A float score keeps 24 bits, so each half of the integer is compared by a policy of its
        # own.
        f"{name} {part}": trace(lambda s, b, h, q, k, f=f, part=part: (f(q, k) >> part) & 0xFFFF)
        for name, (f, _) in INTEGERS.items()
        for part in (0, 16)
    }
    for name, f in FLOATS.items():
        values = torch.tensor(NUMBERS)
        mods[name] = trace(lambda s, b, h, q, k, f=f, t=values: f(s, t[q]))
    mods["to_int"] = trace(lambda s, b, h, q, k: s.int() // 2)
    mods["beyond"] = trace(lambda s, b, h, q, k: TABLE[q, k])
    return Policies(tmp_path_factory.mktemp("edges"), mods)


def rows(**columns: list[int] | list[float]) -> dict[str, torch.Tensor]:
    n = len(next(iter(columns.values())))
    inputs = {name: torch.zeros(n, dtype=torch.int32) for name in ("b", "h", "q", "kv")}
    inputs |= {"score": torch.zeros(n)}
    return inputs | {
        name: torch.tensor(values, dtype=inputs[name].dtype) for name, values in columns.items()
    }


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_and_divide_by_zero(policies: Policies, name: str) -> None:
    pairs = list(itertools.product(EDGES, EDGES))
    inputs = rows(q=[q for q, _ in pairs], kv=[k for _, k in pairs])
    low, high = (policies.run(f"{name} {part}", inputs)[0].int().tolist() for part in (0, 16))
    found = [wrapped(h << 16 | part) for h, part in zip(high, low, strict=True)]
    expected = [INTEGERS[name][1](q, k) for q, k in pairs]
    assert found == expected
    for part, halves in ((0, low), (16, high)):
        mods = policies.mods[f"{name} {part}"]
        assert evaluate(mods, mods.expression.score or 0, inputs).int().tolist() == halves


@pytest.mark.parametrize("name", FLOATS)
def test_floats_that_are_none(policies: Policies, name: str) -> None:
    pairs = list(itertools.product(NUMBERS, range(len(NUMBERS))))
    inputs = rows(score=[s for s, _ in pairs], q=[q for _, q in pairs])
    found, _ = policies.run(name, inputs)
    expected = FLOATS[name](inputs["score"], torch.tensor(NUMBERS)[inputs["q"]])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~found.isnan()
    assert found.signbit()[numbers].equal(expected.signbit()[numbers])


def test_a_float_without_an_integer_becomes_the_nearest(policies: Policies) -> None:
    found, _ = policies.run("to_int", rows(score=[*NUMBERS]))
    half = float(2**30)
    assert found.tolist() == [-half, -half, -1, 0, 0, 0, 0, half, half, 0]


def test_indices_beyond_a_tensor_are_moved_to_its_edge(policies: Policies) -> None:
    indices = (INT_MIN, -5, -4, -3, -1, 0, 2, 3, 4, INT_MAX)
    pairs = list(itertools.product(indices, indices))
    inputs = rows(q=[q for q, _ in pairs], kv=[k for _, k in pairs])
    found, _ = policies.run("beyond", inputs)
    place = lambda i: min(max(i + 3 if i < 0 else i, 0), 2)  # noqa: E731
    assert found.tolist() == [TABLE[place(q), place(k)].item() for q, k in pairs]
    mods = policies.mods["beyond"]
    assert evaluate(mods, mods.expression.score or 0, inputs).equal(found)
