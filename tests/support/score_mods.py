"""Functions as users write them, with every operation on scores, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TABLE = torch.randn(3, 5, 7)
HALF, BF16 = torch.randn(9).half(), torch.randn(4, 9).bfloat16()
IDS = torch.randint(-5, 5, (64,), dtype=torch.int32)
FLAGS = torch.rand(64) < 0.5
TRANSPOSED = torch.randn(7, 5, 3, 2).permute(3, 1, 0, 2)
SCALAR = torch.tensor(0.75)
WINDOW = torch.tensor(3)

FUNCTIONS = "exp exp2 expm1 sigmoid erf sin cos tan atan sinh cosh tanh"
OF_POSITIVE = "log log2 log10 log1p sqrt rsqrt reciprocal"


def _function(name: str, of_positive: bool = False) -> Callable[..., Any]:
    function = getattr(torch, name)
    return lambda s, b, h, q, k: function(s.abs() + 0.1 if of_positive else s)


# Each is a score_mod: s is the score, q and k are signed integers, b and h small, not negative.
SCORES: dict[str, Callable[..., Any]] = {
    "nothing": lambda s, b, h, q, k: s,
    "add": lambda s, b, h, q, k: s + q + 1,
    "add ints": lambda s, b, h, q, k: q + k,
    "add bools": lambda s, b, h, q, k: ((q > 0) + (k > 0)).int(),
    "sub": lambda s, b, h, q, k: 1 - s - k,
    "sub ints": lambda s, b, h, q, k: q - k,
    "mul": lambda s, b, h, q, k: 0.1 * s * k,
    "mul ints": lambda s, b, h, q, k: q * k * 7,
    "mul bools": lambda s, b, h, q, k: ((q > 0) * (k > 0)).int(),
    "mul a bool": lambda s, b, h, q, k: s * (q > k) + (q > k) * 3,
    "div": lambda s, b, h, q, k: s / 3 + 1 / (q * q + 1),
    "div ints": lambda s, b, h, q, k: q / (k * k + 1),
    "div by zero": lambda s, b, h, q, k: s / 0.0,
    "div down": lambda s, b, h, q, k: torch.div(q, 5, rounding_mode="floor"),
    "floor_divide": lambda s, b, h, q, k: q // 3 + k // -4 + 100 // (k * k + 1),
    "floor_divide floats": lambda s, b, h, q, k: s // 0.3 + q // -2.5,
    "remainder": lambda s, b, h, q, k: q % 3 + 10 * (k % -4) + 100 % (k * k + 1),
    "remainder floats": lambda s, b, h, q, k: s % 0.75 + q % -2.5,
    "fmod": lambda s, b, h, q, k: torch.fmod(q, 3) + torch.fmod(s, 0.75),
    "pow ints": lambda s, b, h, q, k: q**3 + q**0 + 2 ** (k % 5) + q**2,
    "pow": lambda s, b, h, q, k: s.abs() ** 1.5 + s**2 + s.abs() ** 0.5 + s**-1 + 0.9 ** q.float(),
    "pow of an int": lambda s, b, h, q, k: q**2.0 + (q * q) ** 0.5,
    "minimum": lambda s, b, h, q, k: torch.minimum(s, q.float()) + torch.min(q, k),
    "maximum": lambda s, b, h, q, k: torch.maximum(s, q.float()) + torch.max(q, k),
    "clamp": lambda s, b, h, q, k: s.clamp(-0.5, 0.5) + q.clamp(min=-2) + torch.clip(k, max=3),
    "neg": lambda s, b, h, q, k: -s + -q,
    "abs": lambda s, b, h, q, k: abs(s) + abs(q - k) + torch.abs(k),
    "sign": lambda s, b, h, q, k: torch.sign(s) + 3 * torch.sign(q),
    "square": lambda s, b, h, q, k: torch.square(s) + q.square(),
    "where": lambda s, b, h, q, k: torch.where(q > k, s, -float("inf")),
    "where of ints": lambda s, b, h, q, k: torch.where(q > k, q, 2.5),
    "where as a method": lambda s, b, h, q, k: s.where(q > k, -1.0),
    "masked_fill": lambda s, b, h, q, k: s.masked_fill(q > k, -float("inf")),
    "floor": lambda s, b, h, q, k: torch.floor(s) + torch.floor(q),
    "ceil": lambda s, b, h, q, k: torch.ceil(s),
    "round": lambda s, b, h, q, k: torch.round(q / 2),
    "trunc": lambda s, b, h, q, k: torch.trunc(s),
    "conversions": lambda s, b, h, q, k: (
        (3 * s).int() + (q > 0).float() + s.bool() + q.to(torch.float32)
    ),
    "shifts": lambda s, b, h, q, k: (q << 2) + (k >> 1) + (1 << (k & 7)),
    "bitwise": lambda s, b, h, q, k: (q & 5) + (k | 2) * 3 + (q ^ k) * 7 + ~q,
    "atan2": lambda s, b, h, q, k: torch.atan2(s, q.float()),
    "relu": lambda s, b, h, q, k: torch.relu(s) + torch.nn.functional.silu(s),
    "made of numbers": lambda s, b, h, q, k: s + torch.tensor(2.0) + s.new_full((), 3) * 0.5,
    "detached": lambda s, b, h, q, k: s * s.detach() + q.detach(),
    "like": lambda s, b, h, q, k: s + torch.ones_like(s) + torch.full_like(q, 4),
    "a table": lambda s, b, h, q, k: s + TABLE[h, q % 5, k % 7],
    "a table, by steps": lambda s, b, h, q, k: s + TABLE[h][q % 5][k % 7] + TABLE[0][h, 3],
    "a table, from its end": lambda s, b, h, q, k: TABLE[-1 - h, -1, k % 7] - s,
    "a transposed table": lambda s, b, h, q, k: s * TRANSPOSED[b, q % 5, k % 7, h],
    "16 bits": lambda s, b, h, q, k: s + HALF[q % 9] * 2 + BF16[h, k % 9],
    "a tensor of one number": lambda s, b, h, q, k: s * SCALAR + WINDOW,
    "tensors on the left": lambda s, b, h, q, k: SCALAR * s + SCALAR / (k * k + 1) - (2 - SCALAR),
    **{name: _function(name) for name in FUNCTIONS.split()},
    **{name: _function(name, of_positive=True) for name in OF_POSITIVE.split()},
    "asin": lambda s, b, h, q, k: torch.asin(s.clamp(-1, 1)),
    "acos": lambda s, b, h, q, k: torch.acos(s.clamp(-1, 1)),
}


def rows() -> dict[str, torch.Tensor]:
    n = 2000
    position = lambda high: torch.randint(0, high, (n,), dtype=torch.int32)  # noqa: E731
    return {
        "score": torch.randn(n) * 3,
        "b": position(2),
        "h": position(3),
        "q": torch.randint(-40, 40, (n,), dtype=torch.int32),
        "kv": torch.randint(-40, 40, (n,), dtype=torch.int32),
    }
