"""The definition of a right result: tolerances, NaN, infinities, LSE."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.reference import attention as reference
from flashsmith.reference import (
    attention_with_rounded_weights,
    compare,
    compare_lse,
    lse_tolerance,
    reference_attention,
    reference_lse,
    score_error,
)

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BOTH = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
SM90 = "(FP16, 64, 64, 64, 1): wgmma+stages_1"


def qkv_of(dtype: torch.dtype = torch.float16, seq_len: int = 40) -> Three:
    q, k, v = (torch.randn(2, seq_len, 2, 64).to(dtype) for _ in range(3))
    return q, k, v


def references(qkv: Three, causal: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    exact = reference_attention(*qkv, causal=causal)
    return exact, reference_attention(*qkv, causal=causal, compute=qkv[0].dtype)


@BOTH
def test_an_element_three_tolerances_off_is_wrong(dtype: torch.dtype) -> None:
    exact, low = references(qkv_of(dtype))
    right = exact.to(dtype)
    assert compare(right, exact, low).ok
    tolerance = compare(right, exact, low).tolerance
    assert 0 < tolerance < (0.003 if dtype == torch.float16 else 0.03)
    wrong = right.clone()
    wrong[1, 7, 0, 5] += 3 * tolerance
    found = compare(wrong, exact, low)
    assert not found.ok
    assert "(1, 7, 0, 5)" in found.worst
    assert found.error == pytest.approx(3 * tolerance, rel=0.2)


@BOTH
def test_nan_is_right_where_the_reference_has_it(dtype: torch.dtype) -> None:
    q, k, v = qkv_of(dtype)
    q[0, 3, 1, 0] = math.nan
    exact, low = references((q, k, v))
    right = exact.to(dtype)
    assert right.isnan().any()
    assert compare(right, exact, low).ok
    assert compare(right, exact, low).tolerance == pytest.approx(
        compare(*(t.nan_to_num(0) for t in (right, exact, low))).tolerance
    )


@pytest.mark.parametrize("bad", [0.0, math.inf])
def test_nan_that_is_missing_is_wrong(bad: float) -> None:
    q, k, v = qkv_of()
    q[0, 3, 1, 0] = math.nan
    exact, low = references((q, k, v))
    o = exact.half()
    o[0, 3, 1, 63] = bad
    found = compare(o, exact, low)
    assert not found.ok and "(0, 3, 1, 63)" in found.worst and "expected nan" in found.worst


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_where_the_reference_is_is_wrong(bad: float) -> None:
    exact, low = references(qkv_of())
    o = exact.half()
    o[1, 0, 0, 0] = bad
    found = compare(o, exact, low)
    assert not found.ok and found.error > 1e4 and "(1, 0, 0, 0)" in found.worst


def test_infinities_of_v_have_to_arrive_with_their_signs() -> None:
    q, k, v = qkv_of()
    v[0, 5, 0, 0], v[0, 5, 0, 1] = math.inf, -math.inf
    exact, low = references((q, k, v))
    right = exact.half()
    assert right[0, 0, 0, 0] == math.inf and right[0, 0, 0, 1] == -math.inf
    assert compare(right, exact, low).ok
    for bad in (-math.inf, 65504.0, math.nan):
        o = right.clone()
        o[0, 9, 0, 0] = bad
        assert not compare(o, exact, low).ok, bad


def test_what_overflows_when_it_is_rounded_is_expected_to_be_infinite() -> None:
    exact = torch.tensor([70_000.0, -1e6, 10.0]).double()
    low = torch.tensor([math.inf, -math.inf, 10.01]).half()
    assert compare(exact.half(), exact, low).ok
    assert not compare(torch.tensor([65504.0, -math.inf, 10]).half(), exact, low).ok
    assert not compare(torch.tensor([math.inf, math.inf, 10]).half(), exact, low).ok


def test_close_to_the_largest_number_either_is_right() -> None:
    exact = torch.tensor([65_500.0, 65_525.0, 1000.0]).double()  # 65520 is the first to overflow
    low = exact.half()
    low[2] += 20
    either = torch.tensor([math.inf, 65504.0, 1000.0]).half()
    assert compare(either, exact, low).ok
    low[2] = 1000.0
    assert not compare(torch.tensor([math.inf, math.inf, 980.0]).half(), exact, low).ok


def test_nothing_finite_and_nothing_at_all_are_compared() -> None:
    nothing = torch.full((1, 2, 1, 4), math.nan)
    assert compare(nothing.half(), nothing.double(), nothing.half()).ok
    assert not compare(torch.zeros(1, 2, 1, 4).half(), nothing.double(), nothing.half()).ok
    empty = torch.empty(1, 0, 1, 4)
    assert compare(empty.half(), empty.double(), empty.half()).ok


def test_an_allowance_counts_where_it_is() -> None:
    exact, low = references(qkv_of())
    o = exact.half()
    o[0, 4, 0, 0] += 0.5
    allowance = torch.zeros(2, 40, 2, 1)
    assert not compare(o, exact, low, allowance).ok
    allowance[0, 4, 0] = 1.0
    assert compare(o, exact, low, allowance).ok
    allowance = allowance.flip(1)
    assert not compare(o, exact, low, allowance).ok


# ---- LSE ----


def tolerance_of(qkv: Three, causal: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    exact = reference_lse(*qkv[:2], causal=causal)
    error = score_error(*qkv[:2], causal=causal)
    return exact, lse_tolerance(exact, error, qkv[1].shape[1])


@pytest.mark.parametrize("growth", [1, 30])
def test_lse_in_float32_is_inside_its_tolerance(growth: int) -> None:
    q, k, v = (t * growth for t in qkv_of(torch.bfloat16, 300))
    exact, tolerance = tolerance_of((q, k, v))
    assert tolerance.max() < (1e-4 if growth == 1 else 0.02)
    single = reference_lse(q, k, compute=torch.float32)
    assert compare_lse(single, exact, tolerance).ok
    found = compare_lse(single + 2 * tolerance.max(), exact, tolerance)
    assert not found.ok and found.error / found.tolerance > 1


def test_lse_of_rows_that_see_nothing_and_of_nan() -> None:
    q, k, v = qkv_of()
    q[0, 39, 0, 0] = math.nan
    exact, tolerance = tolerance_of((q, k[:, :10], v), causal=True)
    lse = exact.float()
    assert lse[0, 0, :30].isneginf().all() and lse[0, 0, 39].isnan()
    assert compare_lse(lse, exact, tolerance).ok
    for place, bad in ((5, 0.0), (5, math.nan), (39, -math.inf), (35, -math.inf), (35, math.nan)):
        wrong = lse.clone()
        wrong[0, 0, place] = bad
        assert not compare_lse(wrong, exact, tolerance).ok, (place, bad)


def test_score_of_infinity_has_no_softmax_and_no_lse() -> None:
    q, k, v = qkv_of()
    k[0, 4, 0, 0] = math.inf
    lse = reference_lse(q, k)
    o = reference_attention(q, k, v)
    assert (lse.isnan() == o.isnan().all(-1).transpose(1, 2)).all()
    assert lse[0, 0].isnan().any() and not lse[0, 0].isnan().all()
    assert tolerance_of((q, k, v))[1].isfinite().all()


def test_rounded_weights_allow_little_where_scores_are_large() -> None:
    q, k, v = qkv_of(torch.bfloat16)
    q, k = q * 20, k * 20
    exact = reference_attention(q, k, v)
    loose = reference_attention(q, k, v, compute=q.dtype)
    tight = attention_with_rounded_weights(q, k, v)
    right = exact.to(q.dtype)
    assert compare(right, exact, tight).tolerance < compare(right, exact, loose).tolerance / 10


# ---- the command ----


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("which", ["q", "v"])
def test_run_says_ok_where_the_input_has_nan_or_overflows(
    which: str, causal: bool, tmp_path: Path
) -> None:
    tensors = {name: torch.randn(1, 96, 2, 64).half() for name in "qkv"}
    if which == "q":
        tensors["q"][0, 5, 1, 0] = math.nan
    else:
        tensors["v"] *= 60_000  # gives infinities of both signs
        tensors["v"][:, 1:] = tensors["v"][:, 1:].clamp(-100, 100)  # all rows see these
    save_file(tensors, tmp_path / "in.safetensors")
    output = tmp_path / "out.safetensors"
    args = ["run", "--input", tmp_path / "in.safetensors", "--out", output, "-k", SM90]
    if causal:
        args += ["--mask", "causal"]
    result = CliRunner().invoke(app, [*map(str, args), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    o = load_file(output)["o"]
    assert not o.isfinite().all()
    if which == "q":
        assert o.isnan().any(-1)[0].nonzero().tolist() == [[5, 1]]


@pytest.mark.parametrize("heads_kv", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_reference_by_head_is_the_reference(
    causal: bool, heads_kv: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One head is computed at a time, because the scores of more may not fit in memory."""
    q, k, v = (torch.randn(2, n, h, 64) for n, h in ((9, 4), (20, heads_kv), (20, heads_kv)))
    whole = reference_attention(q, k, v, causal=causal)
    asked = []

    def one_head(*qkv: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append([tuple(t.shape) for t in qkv])
        return reference_attention(*qkv, **options)

    monkeypatch.setattr(reference, "reference_attention", one_head)
    by_head = reference.reference_by_head(q, k, v, causal=causal)
    torch.testing.assert_close(by_head, whole, rtol=0, atol=1e-12)
    assert asked == [[(1, 9, 1, 64), (1, 20, 1, 64), (1, 20, 1, 64)]] * (2 * 4)


def test_rounded_weights_give_zeros_where_no_key_has_weight() -> None:
    """In one sample alone, all scores are -inf."""
    q = torch.ones(2, 3, 2, 64, dtype=torch.float16)
    k, v = (torch.randn(2, 2, 2, 64, dtype=torch.float16) for _ in range(2))
    k[0] = -math.inf
    o = attention_with_rounded_weights(q, k, v)
    assert torch.equal(o[0], torch.zeros_like(o[0]))
    assert (o[1] - reference_attention(q, k, v)[1]).abs().max() < 1e-2
