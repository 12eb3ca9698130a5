"""The combine kernel of the sm80 family, which combines the splits of a work tile that has many."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.reference import Semantics
from support.decoding import (
    PLAIN,
    assert_bits_are_of_each_request,
    assert_right,
    assert_same_bits,
    in_pages,
    plan_of,
    requests,
    run,
)
from support.fp8_caches import SMALL, Quantised

_heuristic = DECODE.families[0].heuristic
# Rows of 12, 16 and 32 chunks: the threads that share the splits hold whole rows, or parts of rows.
CONFIGS = [_heuristic(DecodeWorkload(DType.FP16, d_head)) for d_head in (96, 128, 256)]
LONG = CONFIGS[-1]  # combined by the kernel with few splits and few SMs already
WIDE = _heuristic(DecodeWorkload(DType.FP16, 256, rows=64))  # with two teams
EVERYTHING = Semantics(causal=True, softcap=20.0, sinks=torch.tensor([0.5, -3.0, 40.0, -40.0]))


def combine_grid(
    cfg: DecodeKernelConfig, n_q: int, splits: int, n_requests: int = 1, *, full: bool = False
) -> Any:
    """Returns the grid of the combine kernel for 4 heads over a KV head with 900 keys a request;
    None if the last split combines.

    full: Whether requests have no lengths.
    """
    asked = requests(cfg, (900,) * n_requests, n_q, heads=(4, 1))
    plan = plan_of(cfg, asked, splits, full=full)
    assert (plan.counter_bytes > 0) == (len(plan.launches) == 1 and plan.workspace_bytes > 0)
    return plan.launches[1].grid[:2] if len(plan.launches) > 1 else None


def test_the_last_split_combines_few_splits_and_few_rows() -> None:
    assert combine_grid(PLAIN, 1, splits=48) is None  # 32 chunks of 8 elements, 4 at a time
    assert combine_grid(PLAIN, 1, splits=49) == (1, 1)
    assert combine_grid(PLAIN, 4, splits=12) is None
    assert combine_grid(PLAIN, 4, splits=13, n_requests=3) == (3, 1)  # two threads share 13 splits
    assert combine_grid(PLAIN, 4, splits=130) == (1, 4)  # 16 threads share 130
    assert combine_grid(LONG, 4, splits=1) is None
    assert combine_grid(LONG, 4, splits=2) == (1, 1)
    assert combine_grid(LONG, 4, splits=0) == (1, 1)  # 4 SMs share one work tile
    for n_requests, expected in ((4, None), (2, (2, 4)), (1, (1, 4))):
        assert combine_grid(WIDE, 16, splits=0, n_requests=n_requests) == expected
    assert combine_grid(WIDE, 16, splits=0, n_requests=2, full=True) == (2, 4)  # no stream-K


@pytest.mark.parametrize("splits", [16, 33, 200])
@pytest.mark.parametrize("cfg", CONFIGS, ids=str)
def test_many_splits_are_added_up(cfg: DecodeKernelConfig, splits: int) -> None:
    """The requests have all splits, some of them, one, and no key at all."""
    asked = requests(cfg, (1500, 300, 1, 0, 64), n_q=4, heads=(4, 1))
    found = assert_right(cfg, asked, EVERYTHING, splits=splits)
    assert_same_bits(found, run(cfg, asked, EVERYTHING, in_pages(asked, 16), splits))


@pytest.mark.parametrize("lengths", [(2000,), (1300, 40), (3, 1900, 2)])
def test_splits_that_keep_all_blocks_busy_are_added_up(lengths: tuple[int, ...]) -> None:
    """Thread blocks have one work tile or two, or follow a stream-K schedule in which one tile is
    not split."""
    assert_right(LONG, requests(LONG, lengths, n_q=4, heads=(4, 1)))


def test_bits_depend_on_no_other_request_and_no_order_of_warps() -> None:
    assert_bits_are_of_each_request(LONG, requests(LONG, (700, 17, 0, 190), n_q=2), splits=9)


@pytest.mark.parametrize("per", ["tensor", "head", "request"])
def test_values_of_8_bits_have_their_scale(per: str) -> None:
    Quantised(SMALL, (900, 70), n_q=4, heads=(4, 2), per=per).assert_right(SMALL, splits=24)
