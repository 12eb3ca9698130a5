"""The derivative of a score_mod equals that of torch's autograd, in torch and in C++."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from flashsmith.mods import OPERATIONS, Kind
from flashsmith.mods.cpp import gradient
from flashsmith.mods.derivative import CHOICES, RULES, derivative
from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.operations import CONVERSIONS
from flashsmith.mods.trace import Mods, trace
from support.mods import INPUTS, Policies
from support.score_mods import BF16, SCALAR, SCORES, TABLE, rows

# torch has no derivative of floor_divide itself, only of its parts.
STEPS = dict.fromkeys(("floor_divide floats", "floors by the score"), lambda s, *_: s * 0)

COMPOSED: dict[str, Callable[..., Any]] = {
    "a factor": lambda s, b, h, q, k: s * 0.3,
    "relative position": lambda s, b, h, q, k: s + (q - k),
    "alibi": lambda s, b, h, q, k: s - SCALAR * (q - k).abs(),
    "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "a factor for each head": lambda s, b, h, q, k: s * TABLE[h, 0, 1] + TABLE[h, 1, 2],
    "the second tensor alone": lambda s, b, h, q, k: TABLE[h, 1, 2] + s * BF16[h, k % 9],
    "powers": lambda s, b, h, q, k: s**2 + s**3 + s**4 + s**-2 + s**1.0 + s**0,
    "broken powers": lambda s, b, h, q, k: s.abs() ** 1.5 + s.abs() ** 2.5 - s.abs() ** 0.3,
    "a power for each key": lambda s, b, h, q, k: s ** (k % 3) + s.abs() ** (k / 8),
    "to the score": lambda s, b, h, q, k: 0.9**s + (q * q + 1.5) ** (s / 4) + 0.0 ** s.abs(),
    "of itself": lambda s, b, h, q, k: s.abs() ** (s / 2),
    "zero to the score": lambda s, b, h, q, k: (q * 0.0) ** s.abs(),
    "the score ignored": lambda s, b, h, q, k: TABLE[h, 0, 0] * (q - k),
    "a constant": lambda s, b, h, q, k: 1.5,
    "divided by the score": lambda s, b, h, q, k: k / s + (s + 1) / (s * s + 2),
    "remainders by the score": lambda s, b, h, q, k: q % s + torch.fmod(k.float(), s * 2),
    "angles": lambda s, b, h, q, k: torch.atan2(q + 0.5, s) + torch.atan2(s, s * s + 1),
    "larger of both": lambda s, b, h, q, k: torch.maximum(s, s * s) - torch.minimum(s, s.sin()),
    "limited by itself": lambda s, b, h, q, k: torch.clamp(s, s.sin() * 2, s.cos() + 2),
    "chosen": lambda s, b, h, q, k: torch.where((s > 0) & (q > k), s.exp(), s / 2),
    "chosen alike": lambda s, b, h, q, k: torch.where(q > k, 3 * s, 3 * s + 1),
    "chosen, then more": lambda s, b, h, q, k: torch.where(q > k, s, 2.0 - s) ** 3 * s,
    "sums that cancel": lambda s, b, h, q, k: (s + k) - s * 1.0 + (2 * s - s - s),
    "gelu": lambda s, b, h, q, k: 0.5 * s * (1 + torch.erf(s * math.sqrt(0.5))),
    "softplus": lambda s, b, h, q, k: torch.log1p(torch.exp(-s.abs())) + torch.relu(s),
    "nested": lambda s, b, h, q, k: torch.tanh(torch.sin(s).exp() - 1) * torch.sigmoid(-2 * s),
    "nested deeper": lambda s, b, h, q, k: torch.sqrt(1 + torch.log1p(s * s).cosh()).reciprocal(),
    "negative": lambda s, b, h, q, k: -(-s * 2.0) - (-s.exp()),
    "floors by the score": lambda s, b, h, q, k: q // s + torch.div(s, 3, rounding_mode="floor"),
    "a flag": lambda s, b, h, q, k: s * (q > k) + s.exp() * (k > 3),
}
# These are evaluated at scores where they have a kink, or a derivative from one side alone.
KINKS: dict[str, Callable[..., Any]] = {
    "abs": lambda s, b, h, q, k: s.abs(),
    "relu": lambda s, b, h, q, k: torch.relu(s),
    "clamp": lambda s, b, h, q, k: s.clamp(-1, 1),
    "clamp from below": lambda s, b, h, q, k: s.clamp(min=0),
    "clamp by a key": lambda s, b, h, q, k: torch.clamp(s, max=(k - 1).float()),
    "clamp to a score": lambda s, b, h, q, k: torch.clamp((k - 1).float(), min=s),
    "clamp to nothing": lambda s, b, h, q, k: s.clamp(1, -1),
    "maximum": lambda s, b, h, q, k: torch.maximum(s, (k - 1).float()),
    "minimum": lambda s, b, h, q, k: torch.minimum((k - 1).float(), s),
    "maximum of both": lambda s, b, h, q, k: torch.maximum(s * s, s),
    "minimum of both": lambda s, b, h, q, k: torch.minimum(s * s, s),
    "where": lambda s, b, h, q, k: torch.where(s > 0, s, 3 * s),
    "sign": lambda s, b, h, q, k: s.sign() * s,
    "floor": lambda s, b, h, q, k: s.floor() + s.round() - s.trunc() + s.ceil(),
    "pow": lambda s, b, h, q, k: s ** (k + 1.0) + s**2.0 + s**0.0,
    "pow of zero": lambda s, b, h, q, k: torch.pow((k - 1).float(), s),
    "atan2": lambda s, b, h, q, k: torch.atan2(s, (k - 1).float()),
    "sqrt": lambda s, b, h, q, k: torch.sqrt(s.abs() + k),
    "log": lambda s, b, h, q, k: torch.log(s + 1),
    "sqrt of relu": lambda s, b, h, q, k: torch.sqrt(torch.relu(s - 0.5)),
    "log of a clamp": lambda s, b, h, q, k: torch.log((s - 0.5).clamp(min=0)),
    "huge": lambda s, b, h, q, k: s.cos() * 1e30 * 1e30,
    "tiny": lambda s, b, h, q, k: torch.sqrt(s + k) * 1e-30 * 1e-30,
    "a power of a choice": lambda s, b, h, q, k: torch.where(k > 0, s.clamp(0.5, 1), 0.0) ** 0.3,
}
IS_ONE: dict[str, Mods] = {
    "the identity": trace(lambda s, b, h, q, k: s),
    "relative position": trace(COMPOSED["relative position"]),
    "alibi": trace(COMPOSED["alibi"]),
    "a mask alone": trace(None, lambda b, h, q, k: q >= k),
    "both moved": trace(lambda s, b, h, q, k: torch.where(q > k, s, s + 1)),
    "halves": trace(lambda s, b, h, q, k: s / 4 * 2 + 0.5 * s),
    "clamped positions": trace(lambda s, b, h, q, k: s + (q - k).clamp(-3, 3)),
}
ALL = SCORES | COMPOSED


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    mods = {name: trace(f) for name, f in ALL.items()}
    mods |= {f"kink {name}": trace(f) for name, f in KINKS.items()} | IS_ONE
    return Policies(tmp_path_factory.mktemp("derivatives"), mods)


def near_kinks() -> dict[str, torch.Tensor]:
    scores = (-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0)
    pairs = list(itertools.product(scores, range(4)))
    zeros = torch.zeros(len(pairs), dtype=torch.int32)
    keys = torch.tensor([key for _, key in pairs], dtype=torch.int32)
    score = torch.tensor([score for score, _ in pairs])
    return {"score": score, "b": zeros, "h": zeros, "q": zeros, "kv": keys}


def of_torch(function: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the derivative that autograd computes in float64."""
    score = inputs["score"].double().requires_grad_()
    changed = torch.vmap(lambda *at: torch.as_tensor(function(*at)))(
        score, *(inputs[each] for each in INPUTS[1:])
    )
    if not changed.requires_grad:
        return torch.zeros_like(score)
    return torch.autograd.grad(changed.sum(), score)[0]


def evaluated(mods: Mods, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    slope = Mods(derivative(mods.expression), mods.buffers)
    inputs = {**inputs, "score": inputs["score"].double()}
    return evaluate(slope, slope.expression.score or 0, inputs).double().expand_as(inputs["score"])


@pytest.mark.parametrize("name", ALL)
def test_the_derivative_is_that_of_autograd(name: str) -> None:
    inputs = rows()
    expected = of_torch(STEPS.get(name, ALL[name]), inputs)
    found = evaluated(trace(ALL[name]), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", ALL)
def test_the_kernel_s_factor_is_that_of_autograd(policies: Policies, name: str) -> None:
    inputs = rows()
    expected = of_torch(STEPS.get(name, ALL[name]), inputs).float()
    found = policies.factors(name, inputs)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=4e-6, equal_nan=True)


@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_those_of_torch(policies: Policies, name: str) -> None:
    inputs = near_kinks()
    expected = of_torch(KINKS[name], inputs)
    found = evaluated(trace(KINKS[name]), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    factors = policies.factors(f"kink {name}", inputs)
    torch.testing.assert_close(factors, expected.float(), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda s, b, h, q, k: torch.where(s > 0, torch.sqrt(s), 0.0), 0.0),
        (lambda s, b, h, q, k: torch.where(s > 0, torch.log(s), 2 * s), 2.0),
        (lambda s, b, h, q, k: torch.sqrt(torch.relu(s)) + s, 1.0),
        (lambda s, b, h, q, k: torch.sqrt(torch.relu(s) + torch.relu(s - 1)) - s, -1.0),
        (lambda s, b, h, q, k: torch.maximum(s.clamp(-2, -1), s.clamp(0, 1)) ** 0.5, 0.0),
    ],
)
def test_a_branch_that_is_not_taken_stays_out(
    function: Callable[..., Any], expected: float
) -> None:
    inputs = {**near_kinks(), "score": torch.full((36,), -0.25)}
    assert evaluated(trace(function), inputs).eq(expected).all()


@pytest.mark.parametrize("name", IS_ONE)
def test_a_derivative_of_one_is_known_beforehand(policies: Policies, name: str) -> None:
    text = gradient(IS_ONE[name].expression)
    assert "kIsOne = true" in text
    assert "mods::" not in text
    assert policies.factors(name, rows()).eq(1).all()


@pytest.mark.parametrize("name", ["a factor", "the score ignored", "a constant", "chosen alike"])
def test_other_derivatives_are_not_one(name: str) -> None:
    assert "kIsOne = false" in gradient(trace(COMPOSED[name]).expression)


def test_what_does_not_depend_on_the_score_stays_out() -> None:
    text = gradient(trace(lambda s, b, h, q, k: s * 2 + TABLE[h, 0, 0] * (q - k).sin()).expression)
    assert text.split("const ModBuffers &) {\n")[1].startswith("    return 0x1p+1f;\n")


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), ["sub", "mul", "tanh", "div"]),
        (lambda s, b, h, q, k: s**3, ["mul", "mul"]),
        (
            lambda s, b, h, q, k: (torch.relu(s) + torch.relu(s * 2)) * 3,
            ["mul", "lt", "lt", "where", "where", "add", "mul"],
        ),
        (lambda s, b, h, q, k: s**2, ["mul"]),
        (lambda s, b, h, q, k: s.abs() ** 1.5, ["mul", "mul", "sqrt", "abs", "sign"]),
        (lambda s, b, h, q, k: torch.relu(s) * 2 * 3, ["where", "lt"]),
        (lambda s, b, h, q, k: -(3 * s.exp()) * -0.5, ["mul", "exp"]),
        (lambda s, b, h, q, k: torch.neg(-s.exp()), ["exp"]),
        (lambda s, b, h, q, k: torch.log2(s), ["div"]),
        (lambda s, b, h, q, k: torch.cos(s), ["neg", "sin"]),
        (lambda s, b, h, q, k: s.sin() * s.cos(), ["sin", "cos", "neg", "mul", "mul", "add"]),
        (
            lambda s, b, h, q, k: torch.maximum(s.exp(), SCALAR),
            ["exp", "load", "eq", "lt", "mul", "where", "where"],
        ),
    ],
)
def test_constants_are_computed_beforehand(
    function: Callable[..., Any], operations: list[str]
) -> None:
    slope = derivative(trace(function).expression)
    needed = [slope.nodes[place].operation for place in slope.needed_for(slope.score or 0)]
    found = sorted(each for each in needed if each not in ("input", "constant"))
    assert found == sorted(operations)


def test_no_key_is_converted() -> None:
    text = gradient(trace(lambda s, b, h, q, k: s * (q - k)).expression)
    assert "mods::keys_behind(q, key)" in text


def test_buffers_keep_their_places() -> None:
    expression = trace(COMPOSED["the second tensor alone"]).expression
    assert len(expression.buffers) == 2
    assert derivative(expression).buffers == expression.buffers
    assert "mods::load<bfloat16_t>(buffers, 1, " in gradient(expression)


def test_every_operation_on_floats_has_a_rule_for_each_operand() -> None:
    on_floats = {
        name: operation.arity
        for name, operation in OPERATIONS.items()
        if operation.highest is Kind.FLOAT and operation.gives is None
    }
    assert not on_floats.keys() & CONVERSIONS.values()
    assert on_floats.keys() == RULES.keys() | CHOICES.keys() - {"where"}
    assert {name: len(rules) for name, rules in RULES.items()}.items() <= on_floats.items()
