"""The bound of the error of scores and of their LSE: it holds, and it is nearly reached."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashsmith.reference import (
    TANH_APPROX_ERROR,
    compare_lse,
    lse_tolerance,
    reference_lse,
    score_error,
    score_range,
)

Two = tuple[torch.Tensor, torch.Tensor]
HEADS, D_HEAD = 2, 64
MEANINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (9, 3)},
    "softcap": {"softcap": 5.0},
    "softcap of huge scores": {"softcap": 5.0, "softmax_scale": 60.0},
    "sinks": {"sinks": torch.tensor([2.0, -1.0])},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 1e-3])},
    "bias": {"bias": torch.linspace(-20, 20, 30)[None, None, None]},
    "all": {
        "window_size": (9, 3),
        "softcap": 5.0,
        "sinks": torch.tensor([2.0, -1.0]),
        "alibi_slopes": torch.tensor([0.5, 1e-3]),
        "bias": torch.linspace(-20, 20, 30)[None, None, None],
    },
}
EACH = pytest.mark.parametrize("meaning", MEANINGS.values(), ids=MEANINGS.keys())


def qk_of(growth: float = 1) -> Two:
    return torch.randn(2, 20, HEADS, D_HEAD) * growth, torch.randn(2, 30, HEADS, D_HEAD)


def products_off_by(q: torch.Tensor, k: torch.Tensor, sign: torch.Tensor, scale: float) -> Any:
    """Returns a score_mod that moves each product by the bound of what the tensor cores lose."""
    magnitudes = torch.einsum("bihd,bjhd->bhij", q.abs().double(), k.abs().double()) * scale
    return lambda s, *_: s + sign * magnitudes * (D_HEAD / 16 + 2) * 2.0**-22


@pytest.mark.parametrize("growth", [1.0, 20.0, 5e3])
@EACH
def test_errors_of_products_stay_inside(meaning: dict[str, Any], growth: float) -> None:
    """The errors are random, or all to one side; up to 5e3 they reach whole units of a score."""
    q, k = qk_of(growth)
    exact, bound = reference_lse(q, k, **meaning), score_error(q, k, **meaning)
    signs = [torch.ones(()), -torch.ones(()), torch.randn(2, HEADS, 20, 30).sign()]
    scale = meaning.get("softmax_scale", D_HEAD**-0.5)
    moved = [
        (reference_lse(q, k, **meaning, score_mod=products_off_by(q, k, sign, scale)) - exact).abs()
        for sign in signs
    ]
    assert all((m <= bound * (1 + 1e-6) + 1e-14).all() for m in moved)
    if not meaning.keys() & {"softcap", "alibi_slopes", "bias"}:
        assert (moved[0] > 0.99 * bound).all(), "a bound that is reached"


@EACH
def test_float32_is_inside_the_tolerance(meaning: dict[str, Any]) -> None:
    q, k = qk_of()
    exact = reference_lse(q, k, **meaning)
    tolerance = lse_tolerance(exact, score_error(q, k, **meaning), 30)
    single = reference_lse(q, k, compute=torch.float32, **meaning)
    assert compare_lse(single, exact, tolerance).ok
    assert not compare_lse(single + 2 * tolerance.max(), exact, tolerance).ok
    assert tolerance.max() < 1e-4


def test_only_the_keys_that_a_query_sees_count() -> None:
    """The bound covers only visible keys with the mask, and all keys without it."""
    q, k = torch.ones(1, 2, 1, 64), torch.ones(1, 2, 1, 64)
    k[:, 1] = 4
    assert torch.equal(score_error(q, k), score_error(q, k, causal=False))
    full, causal = (score_error(q, k, causal=causal)[0, 0] for causal in (False, True))
    torch.testing.assert_close(full, 4 * causal[0].expand(2))
    assert full[1] == causal[1]
    assert score_error(q, k[:, :1], causal=True)[0, 0, 0] == 0, "a row that sees nothing"


def test_an_error_counts_by_the_weight_of_its_key() -> None:
    """A key far from its query under a steep slope has a large error and no weight."""
    q, k = qk_of()
    steep = score_error(q, k, alibi_slopes=torch.full((HEADS,), 1e5))
    assert steep.max() < 1e-4 < 2.0**-22 * 1e5
    sink = torch.full((HEADS,), 30.0)
    assert (score_error(q, k, sinks=sink) < 1e-6 * score_error(q, k)).all()


def test_a_capped_infinite_score_is_as_exact_as_a_large_one() -> None:
    """The cap makes it finite, so that what is added to it is rounded as for any other score."""
    q, k = torch.ones(1, 1, 2, 64), torch.full((1, 2, 2, 64), math.inf)
    meaning = {"softcap": 30.0, "alibi_slopes": torch.tensor([20.0, 1.0])}
    found = score_error(q, k, **meaning)
    large = score_error(q, k.clamp(max=1e4), **meaning)
    torch.testing.assert_close(found, large)
    assert found.min() >= 2.0**-22 * 30


def test_a_cap_lets_hardly_an_error_of_large_scores_through() -> None:
    q, k = qk_of(1000.0)
    free, capped = score_error(q, k), score_error(q, k, softcap=4.0)
    assert free.median() > 5e-3
    assert capped.median() < 1e-5


def test_the_error_of_tanh_counts_where_there_is_a_cap() -> None:
    q, k = qk_of(8.0)
    assert torch.equal(score_error(q, k), score_error(q, k, tanh_error=TANH_APPROX_ERROR))
    q, k, cap = q.abs(), k.abs(), 4.0  # all scores are at the cap
    with_it = score_error(q, k, softcap=cap, tanh_error=TANH_APPROX_ERROR)
    without = score_error(q, k, softcap=cap)
    for sign in (1, -1):
        off = reference_lse(q, k, softcap=cap * (1 + sign * TANH_APPROX_ERROR))
        off = (off - reference_lse(q, k, softcap=cap)).abs()
        assert (off <= with_it).all() and (off > 10 * without).all()


def test_what_is_not_finite_bounds_nothing() -> None:
    q, k = qk_of()
    q[0, 3, 0, 0], k[1, 4, 1, 0] = math.nan, math.inf
    for meaning in ({}, {"softcap": 3.0}, {"bias": torch.full((1, 1, 1, 30), -math.inf)}):
        assert score_error(q, k, **meaning).isfinite().all()


def test_range_of_scores_is_of_those_that_count() -> None:
    q, k = torch.ones(1, 3, 1, 64), torch.ones(1, 3, 1, 64)
    k[0, 1], k[0, 2] = 4, -1
    found = score_range(q, k, causal=True, softmax_scale=1.0)[0, 0]
    assert found.tolist() == [0, 3 * 64, 5 * 64]
    k[0, 2, 0, 0] = -math.inf
    assert score_range(q, k, causal=True, softmax_scale=1.0)[0, 0].tolist() == [0, 192, 192]
    assert score_range(q, k[:, :0]).tolist() == [[[0, 0, 0]]]


def rough_sum(products: torch.Tensor) -> torch.Tensor:
    """Sums over the last dimension, 32 products at a time, as an H200 adds products of e4m3."""

    def cut(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        unit = 2.0 ** (largest.abs().clamp(min=2.0**-60).log2().floor() - 13)
        return (x / unit).trunc() * unit

    total = products.new_zeros(products.shape[:-1])
    for some in products.split(32, dim=-1):
        addends = torch.cat([total[..., None], some], -1)
        total = cut(addends, addends.abs().amax(-1, keepdim=True)).sum(-1)
        total = cut(total, total)
    return total


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_rough_sums_of_8_bit_products_stay_inside_and_come_close(d_head: int) -> None:
    """Numbers of one sign lose the most, as in keys that match their queries."""
    k = (torch.randn(1, 2000, 1, d_head) * 2).to(torch.float8_e4m3fn).double()
    lost = (k * k).sum(-1) - rough_sum(k * k)
    bound = torch.cat([score_error(one, one, fp8=True) for one in k.split(1, dim=1)], -1)
    share = (lost * d_head**-0.5)[..., 0] / bound[:, 0]
    assert 0.2 < share.max() <= 1
