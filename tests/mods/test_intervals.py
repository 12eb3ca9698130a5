"""Bounds over blocks hold for every score of the block, whatever the expression."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.graph import INT_MAX, INT_MIN
from flashsmith.mods.intervals import Bounds, Interval
from flashsmith.mods.ranges import RangeTable
from flashsmith.mods.trace import Mods, trace

TABLE = torch.randint(-9, 9, (11,), dtype=torch.int32)
SQUARE = torch.randint(-3, 3, (5, 7), dtype=torch.int32)
REALS = torch.randn(9) * 4
REALS[2] = float("nan")

BINARY = [f"__{n}__" for n in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor")]
BINARY += ["__lshift__", "__rshift__"]
FLOAT_BINARY = ("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__")
UNARY = ("__neg__", "__abs__", "__invert__", "sign")
FLOAT_UNARY = ("__neg__", "__abs__", "floor", "round", "exp", "sin", "sqrt", "trunc", "sign")
COMPARISONS = ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__")

constants = st.one_of(st.integers(-9, 9), st.sampled_from([INT_MIN, INT_MAX, 2**20, -(2**16)]))


def integers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Builds functions of (q, k) that return an int; floats and bools occur on the way."""
    two = st.tuples(inner, inner)
    return st.one_of(
        st.builds(lambda f, n: lambda q, k: getattr(f(q, k), n)(), inner, st.sampled_from(UNARY)),
        st.builds(
            lambda p, n: lambda q, k: getattr(p[0](q, k), n)(p[1](q, k)),
            two,
            st.sampled_from(BINARY),
        ),
        st.builds(lambda p: lambda q, k: torch.minimum(p[0](q, k), p[1](q, k)), two),
        st.builds(lambda p: lambda q, k: torch.maximum(p[0](q, k), p[1](q, k)), two),
        st.builds(lambda f: lambda q, k: TABLE[f(q, k)], inner),
        st.builds(lambda p: lambda q, k: SQUARE[p[0](q, k), p[1](q, k)], two),
        st.builds(lambda f: lambda q, k: SQUARE[3, f(q, k)], inner),
        st.builds(lambda f: lambda q, k: (REALS[f(q, k)] * 2).int(), inner),
        st.builds(
            lambda p, n: lambda q, k: getattr(p[0](q, k) / 3, n)(p[1](q, k) * 0.7).int(),
            two,
            st.sampled_from(FLOAT_BINARY),
        ),
        st.builds(
            lambda f, n: lambda q, k: getattr(f(q, k) * 0.37, n)().int(),
            inner,
            st.sampled_from(FLOAT_UNARY),
        ),
        st.builds(
            lambda p, f, n: (
                lambda q, k: torch.where(getattr(p[0](q, k), n)(p[1](q, k)), f(q, k), q)
            ),
            two,
            inner,
            st.sampled_from(COMPARISONS),
        ),
        st.builds(
            lambda p: lambda q, k: ((p[0](q, k) > k) & ~(p[1](q, k) == q) | (q > 2)).int(), two
        ),
        st.builds(
            lambda p: lambda q, k: (p[0](q, k) * 0.3).clamp(-(p[1](q, k) * 0.7).relu(), 9.5).int(),
            two,
        ),
        st.builds(lambda f: lambda q, k: torch.isnan(REALS[f(q, k)]).int() + k, inner),
    )


expressions = st.recursive(
    st.one_of(
        st.just(lambda q, k: q),
        st.just(lambda q, k: k),
        constants.map(lambda n: lambda q, k: n + q * 0),
    ),
    integers,
    max_leaves=6,
)


def ranges(blocks: list[int], size: int) -> Interval:
    first = torch.tensor(blocks)
    return Interval(first, first + size - 1)


@given(expressions, st.integers(1, 5), st.integers(-20, 20))
@settings(max_examples=400, deadline=None)
def test_bounds_hold_everywhere(function: Any, size: int, start: int) -> None:
    mods = trace(lambda s, b, h, q, k: function(q, k))
    # The score is the integer as a float: bounds are compared before they are rounded.
    (root,) = mods.expression.nodes[mods.expression.score or 0].operands or (0,)
    starts = [start, start + 17]
    ends = {"q": ranges(starts, size), "kv": ranges(starts, size + 1)}
    columns = {"q": ends["q"], "kv": Interval(ends["kv"].low[:, None], ends["kv"].high[:, None])}
    bounds = Bounds(mods, root).of(columns)
    shape = torch.broadcast_shapes(bounds.low.shape, (2, 2))
    low, high = bounds.low.expand(shape), bounds.high.expand(shape)
    for i in range(2):
        for j in range(2):
            q = torch.arange(starts[j], starts[j] + size, dtype=torch.int32)
            kv = torch.arange(starts[i], starts[i] + size + 1, dtype=torch.int32)
            values = evaluate(mods, root, {"q": q[:, None], "kv": kv[None]}).long()
            assert low[i, j] <= values.min(), mods.expression.text
            assert values.max() <= high[i, j], mods.expression.text


def decided(function: Any, q: tuple[int, int], kv: tuple[int, int]) -> bool | None:
    mods: Mods = trace(None, lambda b, h, q, k: function(q, k))
    ends = {name: Interval(*map(torch.tensor, at)) for name, at in (("q", q), ("kv", kv))}
    found = Bounds(mods, mods.expression.visible or 0).of(ends)
    return bool(found.low) if found.low == found.high else None


def test_bounds_are_as_narrow_as_masks_need() -> None:
    for function, q, kv, expected in (
        (lambda q, k: q >= k, (128, 255), (0, 128), True),
        (lambda q, k: q >= k, (128, 255), (0, 129), None),
        (lambda q, k: q >= k, (128, 255), (256, 300), False),
        (lambda q, k: (q - k).abs() <= 64, (128, 191), (191, 192), True),
        (lambda q, k: (q - k).abs() < 64, (128, 191), (255, 300), False),
        (lambda q, k: q // 64 == k // 64, (64, 127), (64, 100), True),
        (lambda q, k: q // 64 == k // 64, (64, 127), (128, 300), False),
        (lambda q, k: q % 128 < 64, (128, 191), (0, 1), True),
        (lambda q, k: q % 128 < 64, (128, 192), (0, 1), None),
        (lambda q, k: (q & 7) < 8, (0, 99), (0, 1), True),
        (lambda q, k: ~((q > k) ^ (k > 5)), (10, 20), (6, 9), True),
        (lambda q, k: torch.where(q > k, q, k) >= 6, (10, 20), (6, 9), True),
        (lambda q, k: torch.maximum(q, k) - torch.minimum(q, k) < 15, (10, 20), (6, 9), True),
        (lambda q, k: (q * 0.5).clamp(6, 7) > k / 2, (10, 20), (6, 9), True),
        (lambda q, k: (q * 0.5).detach() > k / 2, (10, 20), (6, 9), True),
        (lambda q, k: q / 2 + 0.5 > k * -1.5, (10, 20), (6, 9), True),
        (lambda q, k: torch.exp(q / 2) > 1, (10, 10), (6, 9), True),
        (lambda q, k: torch.exp(q / 2) > 1, (10, 11), (6, 9), None),
        (lambda q, k: torch.where(~(q > k), 1, 0) >= 1, (10, 20), (6, 15), None),
        (lambda q, k: q * 2**28 > 0, (1, 7), (0, 0), True),
        (lambda q, k: q * 2**28 > 0, (1, 8), (0, 0), None),
    ):
        assert decided(function, q, kv) is expected


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=40), st.data())
def test_a_table_of_ranges_has_their_smallest_and_largest(values: list[int], data: Any) -> None:
    n = len(values)
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), min_size=1, max_size=9))
    pairs = [(min(p), max(p)) for p in pairs]
    table = RangeTable(torch.tensor(values, dtype=torch.int32))
    ends = torch.tensor(pairs).unbind(-1)
    low, high = table.bounds([ends])
    assert low.tolist() == [min(values[i : j + 1]) for i, j in pairs]
    assert high.tolist() == [max(values[i : j + 1]) for i, j in pairs]
