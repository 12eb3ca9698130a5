"""The calls of attention that go to split-KV kernels: few queries, where tiles leave a GPU idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsmith.configs import CAUSAL, FULL, DecodeKernelConfig, DType, Variant, Workload
from flashsmith.configs.few_queries import decode_cost, forward_cost, is_for_decode, prefer_split_kv
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose, choose_for

H200 = "NVIDIA H200"


def problem(
    batch: int, n_q: int, n_k: int, heads: tuple[int, int] = (32, 8), d_head: int = 128
) -> Problem:
    return Problem(DType.BF16, d_head, batch, *heads, n_q, n_k)


def rows_chosen(given: Problem, variant: Variant = CAUSAL, gpu: str | None = H200) -> int:
    """Returns B_r of the split-KV configuration, or 0 if a forward configuration is chosen."""
    config = choose(Workload(given, variant), gpu).config
    return config.B_r if isinstance(config, DecodeKernelConfig) else 0


@pytest.mark.parametrize(
    "batch, n_q, n_k, B_r",
    [
        (4, 1, 8192, 16),
        (4, 4, 8192, 16),
        (4, 8, 8192, 32),
        (4, 16, 8192, 64),
        (4, 64, 8192, 128),
        (1, 64, 8192, 128),
        (1, 256, 8192, 128),
        (1, 512, 8192, 0),
        (4, 128, 8192, 0),
        (4, 512, 8192, 0),
        (1, 16, 32768, 64),
        (1, 64, 32768, 128),
        (1, 256, 32768, 128),
        (1, 512, 32768, 0),
        (4, 128, 32768, 0),
        (1, 1, 256, 0),
    ],
)
def test_an_h200_serves_few_queries_by_what_is_faster(
    batch: int, n_q: int, n_k: int, B_r: int
) -> None:
    for variant in (FULL, CAUSAL):
        assert rows_chosen(problem(batch, n_q, n_k), variant) == B_r


@pytest.mark.parametrize(
    "given, B_r",
    [
        (problem(2, 20, 12000), 128),  # memory-bound, in eight splits that wait for each other
        (problem(2, 16, 9000, (64, 8)), 128),
        (problem(1, 20, 12000), 128),  # memory-bound, in sixteen splits that wait
        (problem(1, 16, 16384), 64),  # up to 64 rows
        (problem(4, 48, 5000), 128),  # 192 rows are bound by products
        (problem(1, 100, 4000), 128),
        (problem(1, 256, 1282, (14, 2), 64), 64),  # two splits of six KV steps, not four of three
        (problem(2, 77, 30000), 128),  # long splits
        (problem(1, 256, 9671, (16, 8), 256), 128),
        (problem(2, 20, 1282, (16, 8), 256), 64),  # fewer than 65 rows
        (problem(1, 20, 1282, (64, 8), 256), 128),  # d_heads for which nothing was measured
    ],
)
def test_small_tiles_serve_short_splits(given: Problem, B_r: int) -> None:
    """few_queries_splits.csv and few_queries_schedules.csv have what was measured."""
    assert rows_chosen(given) == B_r


def test_one_warpgroup_takes_128_keys_of_128_elements_at_a_time() -> None:
    config = choose(Workload(problem(4, 16, 8192), CAUSAL), H200).config
    assert (config.B_r, config.B_c) == (64, 128)


def test_a_tile_that_is_mostly_empty_does_not_serve_few_queries() -> None:
    """The forward chooses a smaller tile where split-KV kernels do not serve the call."""
    for variant, n_q in ((FULL, 128), (CAUSAL, 128), (FULL, 64), (CAUSAL, 1)):
        for n_k in (8192, 32768):
            config = choose_for(FORWARD, Workload(problem(4, n_q, n_k), variant), H200).config
            assert config.B_r <= max(64, n_q)


def test_what_decode_lacks_is_not_for_it() -> None:
    few = problem(4, 16, 8192)
    assert is_for_decode(few, Variant(causal=True, softcap=True, alibi=True, sinks=True))
    for name in ("window", "bias", "dropout"):
        assert not is_for_decode(few, replace(FULL, **{name: True}))
    assert not is_for_decode(few, Variant(score=7))
    for other in (
        problem(4, 0, 8192), problem(0, 16, 8192), problem(4, 16, 63), problem(1, 513, 65536),
    ):  # fmt: skip
        assert not is_for_decode(other, FULL)
    workload = Workload(few, Variant(varlen=True))
    assert isinstance(choose(workload, H200, is_cache=True).config, DecodeKernelConfig)
    assert not isinstance(choose(workload, H200).config, DecodeKernelConfig)
    assert not isinstance(choose(workload, H200, is_cache=False).config, DecodeKernelConfig)


def test_on_a_cpu_length_and_rows_decide() -> None:
    assert rows_chosen(problem(1, 16, 512), gpu=None) == 64
    assert rows_chosen(problem(1, 17, 512), gpu=None) == 0
    assert rows_chosen(problem(1, 16, 481), gpu=None) == 64, "whose size class is that of 512"
    assert rows_chosen(problem(1, 16, 480), gpu=None) == 0


def test_the_model_grows_with_what_is_done() -> None:
    forward = SM90_FORWARD.heuristic(Workload.square(DType.BF16, 128, 8192))
    found = prefer_split_kv(Workload(problem(4, 16, 8192)), forward, 132, (9, 0))
    assert found is not None
    config, share = found

    def cost(given: Problem, num_sms: int = 132) -> float:
        return decode_cost(config, given, num_sms, 1.0)

    base = problem(4, 16, 8192)
    assert share == cost(base) / forward_cost(forward, base, 132)
    assert cost(base) < cost(problem(4, 64, 8192)) < cost(problem(4, 128, 8192))
    assert cost(base) < cost(problem(8, 16, 8192))
    assert cost(base) < cost(problem(4, 16, 16384))
    assert cost(base, 132) < cost(base, 66)
    # Memory bounds both kernels where queries fill the tiles and heads fill the GPU.
    many = problem(128, 1, 8192, (8, 8))
    assert forward_cost(forward, many, 132) >= 8192 * 128 * 8 * 176 / 132


def test_decode_of_few_queries_names_what_it_stands_before() -> None:
    workload = Workload(problem(4, 16, 8192), FULL)
    choice = choose(workload, H200)
    forward = choose_for(FORWARD, workload, H200)
    assert "few queries" in choice.reason
    assert str(forward.config) in choice.passed_over[-1]
    assert "about 43% of its time" in choice.passed_over[-1]
