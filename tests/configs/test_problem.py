"""Problem, Variant and Workload: the shapes of a call, what is computed, and both as a row."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from flashsmith.configs import CAUSAL, FULL, VARIANTS, DType, Variant, Workload
from flashsmith.configs.workload import ROW_COLUMNS
from flashsmith.problem import FILL_BUCKETS, LENGTH_BUCKETS, Bucket, Problem

SQUARE = Problem.square(DType.FP16, 128, batch=4, heads=16, seq_len=4096)
ODD = Problem(DType.BF16, 64, 2, 6, 3, 70, 100)


def test_shapes_bytes_and_scores() -> None:
    assert ODD.q_shape == (2, 70, 6, 64) and ODD.k_shape == (2, 100, 3, 64)
    assert not ODD.is_square and SQUARE.is_square
    assert SQUARE.q_shape == SQUARE.k_shape == (4, 4096, 16, 128)
    assert ODD.n_scores == 2 * 6 * 70 * 100
    assert ODD.bytes == 2 * (2 * (2 * 70 * 6 * 64) + 2 * (2 * 100 * 3 * 64))
    assert Problem.of_shapes(DType.BF16, ODD.q_shape, ODD.k_shape) == ODD


def test_it_is_written_with_the_sizes_of_k_where_these_differ() -> None:
    assert str(SQUARE) == "FP16 d 128 4 x 16 x 4096"
    assert str(ODD) == "BF16 d 64 2 x 6/3 x 70/100"
    assert str(Workload(SQUARE)) == "FP16 d 128 full 4 x 16 x 4096"
    assert str(Workload(ODD, CAUSAL)) == "BF16 d 64 causal 2 x 6/3 x 70/100"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dtype": "FP16"}, TypeError, "dtype is 'FP16'; expected a DType"),
        ({"dtype": 5}, TypeError, "dtype is 5"),
        ({"batch": 2.0}, TypeError, "batch is 2.0; expected an int"),
        ({"seq_len_q": True}, TypeError, "seq_len_q is True; expected an int"),
        ({"d_head": 0}, ValueError, "d_head is 0; expected at least 1"),
        ({"batch": -1}, ValueError, "batch is -1; expected at least 0"),
        ({"seq_len_k": -1}, ValueError, "seq_len_k is -1; expected at least 0"),
        ({"heads": 5}, ValueError, "heads is 5, no multiple of heads_kv 3"),
        ({"heads_kv": 0}, ValueError, "heads is 6, no multiple of heads_kv 0"),
    ],
)
def test_what_no_call_can_have_is_refused_by_its_name(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replace(ODD, **change)


def test_nothing_to_compute_is_a_problem_too() -> None:
    for name in ("batch", "seq_len_q", "seq_len_k"):
        assert replace(ODD, **{name: 0}).n_scores == 0
    assert replace(ODD, heads=0, heads_kv=0).n_scores == 0


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        ((1, 64, 64), (1, 64, 1, 64), "q has 3 dimensions; expected 4: .batch, seq_len"),
        ((1, 64, 1, 64), (64, 1, 64), "k has 3 dimensions"),
        ((1, 64, 1, 64), (2, 64, 1, 64), r"k has shape \(2, 64, 1, 64\), but q has \(1, 64, 1"),
        ((1, 64, 1, 64), (1, 64, 1, 32), "batch and d_head must be equal"),
        ((1, 64, 4, 64), (1, 64, 3, 64), "q has 4 heads and k has 3; the heads of q must be"),
    ],
)
def test_shapes_that_do_not_fit_each_other_are_refused(
    q: tuple[int, ...], k: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Problem.of_shapes(DType.FP16, q, k)


@pytest.mark.parametrize(
    ("seq_len", "bucket"),
    [(1, 512), (64, 512), (512, 512), (576, 1024), (1024, 1024), (16384, 16384), (1 << 20, 16384)],
)
def test_the_bucket_has_the_power_of_two_above_the_length_of_k(seq_len: int, bucket: int) -> None:
    assert replace(ODD, seq_len_k=seq_len).bucket(132).seq_len_k == bucket
    assert replace(SQUARE, seq_len_q=seq_len).bucket(132).seq_len_k == 4096
    assert all(b == 2 * a for a, b in pairwise(LENGTH_BUCKETS))


@pytest.mark.parametrize(
    ("rows", "fill"),
    [(0, 64), (1, 64), (640, 64), (641, 128), (2560, 256), (5121, 1024), (1 << 20, 1024)],
)
def test_the_bucket_tells_how_many_rows_an_sm_has(rows: int, fill: int) -> None:
    problem = replace(ODD, batch=1, heads=1, heads_kv=1, seq_len_q=rows)
    assert problem.bucket(10) == Bucket(512, fill)
    assert all(b == 2 * a for a, b in pairwise(FILL_BUCKETS))


def test_batch_heads_and_queries_fill_a_gpu_alike() -> None:
    for change in ({"batch": 4}, {"heads": 12}, {"seq_len_q": 140}):
        assert replace(ODD, **change).n_rows == 2 * ODD.n_rows
    assert replace(ODD, seq_len_k=1).n_rows == ODD.n_rows == 2 * 6 * 70


def test_buckets_of_one_length_are_alike_by_their_fill() -> None:
    for bucket, fills in (
        (Bucket(512, 64), [64, 128, 256, 512, 1024]),
        (Bucket(512, 256), [256, 512, 128, 1024, 64]),
        (Bucket(512, 1024), [1024, 512, 256, 128, 64]),
    ):
        assert bucket.in_order_of_similarity() == [Bucket(512, fill) for fill in fills]
    assert Bucket(512, 64).words == "lengths up to 512, up to 64 rows an SM"
    assert Bucket(1024, 256).words == "lengths 513 to 1024, 129 to 256 rows an SM"
    assert Bucket(16384, 1024).words == "lengths above 8192, above 512 rows an SM"


# ---- what is computed ----


def test_a_variant_is_read_back_from_its_name() -> None:
    assert [variant.name for variant in VARIANTS] == ["full", "causal"]
    assert [Variant.from_name(variant.name) for variant in VARIANTS] == list(VARIANTS)
    for name in ("", "half", "full+causal", "causal+causal", "causal+", "Causal"):
        with pytest.raises(ValueError, match="is not known; supported: full, causal"):
            Variant.from_name(name)


def test_variants_with_one_tuning_key_are_those_that_tables_hold_together() -> None:
    assert [variant.tuning_key() for variant in VARIANTS] == ["full", "causal"]
    key = Workload(SQUARE, CAUSAL).tuning_key(132)
    assert key == (DType.FP16, 128, "causal", Bucket(4096, 1024))
    assert key.words.startswith("FP16 d 128 causal, lengths 2049 to 4096, above 512 rows")


def scores_seen(problem: Problem) -> int:
    """Counts the scores of one head under a causal mask, one by one."""
    rows = range(problem.seq_len_q)
    shift = problem.seq_len_k - problem.seq_len_q
    return sum(min(max(row + shift + 1, 0), problem.seq_len_k) for row in rows)


def test_flop_of_full_attention_are_of_every_score() -> None:
    assert FULL.flop(SQUARE) == 4 * 4 * 16 * 4096**2 * 128
    assert FULL.flop(ODD) == 4 * ODD.n_scores * 64


@pytest.mark.parametrize("lengths", list(product((1, 64, 100, 257), repeat=2)))
def test_flop_of_causal_attention_are_of_what_the_mask_leaves(lengths: tuple[int, int]) -> None:
    """Half of the diagonal does not count, as in published rates."""
    problem = Problem(DType.FP16, 64, 1, 1, 1, *lengths)
    whole = scores_seen(problem) * 4 * 64
    diagonal = min(lengths) * 4 * 64
    assert CAUSAL.flop(problem) == whole - diagonal // 2
    assert CAUSAL.flop(SQUARE) == FULL.flop(SQUARE) // 2
    assert CAUSAL.flop(replace(problem, batch=3, heads=4)) == 12 * CAUSAL.flop(problem)


# ---- rows ----


def test_a_workload_is_read_back_from_its_row() -> None:
    workload = Workload(SQUARE, CAUSAL)
    row = workload.as_row()
    assert row == {
        "dtype": "FP16", "d_head": 128, "mask": "causal", "batch": 4, "heads": 16, "seq_len": 4096,
        "heads_kv": 16, "seq_len_k": 4096,
    }  # fmt: skip
    texts = {name: str(value) for name, value in row.items()}
    assert Workload.from_row({**texts, "kernel": "fa2"}) == workload
    assert workload.kind == ("FP16", 128, "causal")
    assert Workload.from_row(Workload(ODD).as_row()) == Workload(ODD)
    no_keys = Workload(replace(ODD, seq_len_k=0))
    assert Workload.from_row(no_keys.as_row()) == no_keys
    for name, value in (("dtype", "FP8"), ("mask", "half"), ("d_head", "x"), ("batch", "-1")):
        with pytest.raises(ValueError, match=f"{value}"):
            Workload.from_row({**texts, name: value})
    with pytest.raises(KeyError, match="seq_len"):
        Workload.from_row({name: text for name, text in texts.items() if name != "seq_len"})


def test_a_row_without_the_sizes_of_k_has_those_of_q() -> None:
    """Older files were written before these columns existed."""
    row = Workload(ODD).as_row()
    square = Workload(replace(ODD, heads_kv=6, seq_len_k=70))
    assert Workload.from_row({name: row[name] for name in ROW_COLUMNS}) == square
    assert Workload.from_row({**row, "heads_kv": "", "seq_len_k": ""}) == square


def test_rates_and_intensity_of_a_workload() -> None:
    workload = Workload(SQUARE)
    assert workload.intensity == 4096 / 2  # 4 s^2 d FLOP for 4 tensors of s d 2-byte elements
    assert Workload(SQUARE, CAUSAL).intensity == 4096 / 4
    assert workload.tflops(1.0) == pytest.approx(workload.flop / 1e-3 / 1e12)
