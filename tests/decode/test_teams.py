"""Teams of warps, which share the keys of 32 or 64 packed rows, are right at every number of
rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig, DType, Variant
from flashsmith.configs.decode import work_tiles
from flashsmith.configs.registry import DECODE
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.workload import D_HEADS, DecodeWorkload, WorkTiles
from flashsmith.dtype import ELEMENT_BYTES
from flashsmith.errors import DeviceError
from flashsmith.ops import decode_calls
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.kv_cache import KVCache
from flashsmith.reference import Semantics
from flashsmith.runtime import CallArgs
from support.decoding import (
    PLAIN,
    TEAMS,
    assert_bits_are_of_each_request,
    assert_right,
    assert_same_bits,
    assert_wild_page_is_not_followed,
    in_pages,
    plan_of,
    requests,
)
from support.decoding import run as run_one

LENGTHS = (0, 1, 33, 200, 64)
# With two heads each, these queries have about 16, 32, 64 and more packed rows.
QUERIES = (1, 8, 9, 17, 33, 70)
WIDE = TEAMS[0]


@pytest.mark.parametrize("cfg", TEAMS, ids=str)
def test_any_number_of_rows_is_right(cfg: DecodeKernelConfig) -> None:
    for n_q, splits in product(QUERIES if cfg.d_head == 64 else (1, 9, 33), (0, 2)):
        asked = requests(cfg, LENGTHS, n_q=n_q, heads=(4, 2))
        assert_right(cfg, asked, Semantics(causal=bool(n_q % 2)), splits=splits)


@pytest.mark.parametrize("cfg", TEAMS, ids=str)
def test_pages_have_the_bits_of_entries_whatever_lies_behind_keys(cfg: DecodeKernelConfig) -> None:
    asked = requests(cfg, (70, 0, 131, 1), n_q=9, heads=(6, 2))
    found = assert_right(cfg, asked, splits=2)
    for page_size in (1, 16, 100):
        assert_same_bits(found, run_one(cfg, asked, placed=in_pages(asked, page_size), splits=2))


def test_a_page_that_is_nowhere_is_not_followed() -> None:
    assert_wild_page_is_not_followed(WIDE)


def test_scores_are_changed_and_masked_in_the_rows_of_each_warp() -> None:
    asked = requests(WIDE, (90, 40), n_q=11, heads=(6, 2))
    semantics = Semantics(
        causal=True, window_size=(33, 0), softcap=2.0, alibi_slopes=torch.rand(6),
        sinks=torch.linspace(-3, 6, 6),
    )  # fmt: skip
    for splits in (0, 3):
        assert_right(WIDE, asked, semantics, splits=splits)


def test_bits_depend_on_no_other_request_and_no_order_of_warps() -> None:
    assert_bits_are_of_each_request(WIDE, requests(WIDE, (200, 17, 0, 90), n_q=20), splits=3)


@pytest.mark.parametrize("cfg", [PLAIN, *TEAMS[:2]], ids=str)
def test_a_plan_has_a_tile_for_each_B_r_rows(cfg: DecodeKernelConfig) -> None:
    n_q, heads, splits = 20, (8, 2), 3
    asked = requests(cfg, (40, 40), n_q=n_q, heads=heads)
    plan = plan_of(cfg, asked, splits, full=True)
    tiles = 2 * heads[1] * -(-n_q * (heads[0] // heads[1]) // cfg.B_r)
    assert plan.counter_bytes == tiles * 4
    assert plan.workspace_bytes == tiles * splits * cfg.B_r * (cfg.d_head + 2) * 4


def test_the_heuristic_has_room_for_the_rows_of_a_head() -> None:
    for d_head, fp8 in product(D_HEADS, (False, True)):
        chosen = {
            rows: DECODE.choose_by_heuristic(
                DecodeWorkload(DType.BF16, d_head, rows, fp8), None
            ).B_r
            for rows in (1, 16, 17, 32, 33, 64, 65, 4096)
        }
        assert chosen == {1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 64: 64, 65: 64, 4096: 64}


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_no_queries_have_a_kernel_too(capability: tuple[int, int]) -> None:
    for in_boxes in (False, True):
        workload = DecodeWorkload(DType.BF16, 128, rows=0, in_boxes=in_boxes)
        assert DECODE.choose_by_heuristic(workload, capability).B_r == 16


def test_a_gpu_that_is_too_old_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"compute capability 7\.5; the kernels need 8\.0"):
        DECODE.choose_by_heuristic(DecodeWorkload(DType.BF16, 128), (7, 5))


def test_where_many_rows_do_not_fit_the_heuristic_takes_fewer() -> None:
    """Rows of 256 elements and their partial results need more shared memory than a block has
    there."""
    workload = DecodeWorkload(DType.FP16, 256, rows=64)
    assert DECODE.choose_by_heuristic(workload, (9, 0)).B_r == 64
    assert DECODE.choose_by_heuristic(workload, (8, 6)).B_r == 16


def test_the_number_of_work_tiles_and_small_gpus_decide_about_blocks() -> None:
    def chosen(
        d_head: int, tiles: WorkTiles, capability: tuple[int, int] = (9, 0), rows: int = 1
    ) -> tuple[int, int, int]:
        workload = DecodeWorkload(DType.BF16, d_head, rows, tiles=tiles)
        config = DECODE.choose_by_heuristic(workload, capability)
        assert isinstance(config, FlashDecodeKernelConfig)
        return config.B_r, config.n_warps, config.blocks_per_SM

    ANY, _, SOME, FILLING, SEVERAL, MANY = WorkTiles
    of_128 = [chosen(128, tiles) for tiles in WorkTiles]
    assert of_128 == [(16, 4, 2), (16, 4, 2), (16, 8, 1), (16, 4, 2), (16, 2, 3), (16, 4, 2)]
    of_20_rows = [chosen(128, tiles, rows=20) for tiles in (SOME, FILLING, SEVERAL)]
    assert of_20_rows == [(32, 4, 2), (32, 8, 1), (32, 8, 1)]
    assert [chosen(256, tiles) for tiles in (FILLING, MANY)] == [(16, 4, 1), (16, 2, 3)]
    # Older GPUs have no room for blocks of 8 warps, and at d_head 256 only for the smallest blocks.
    assert [chosen(128, SOME, each) for each in ((8, 0), (8, 9))] == [chosen(128, ANY)] * 2
    assert chosen(256, SOME, (8, 6)) == (16, 2, 3)


@pytest.mark.parametrize(
    ("batch", "tiles"),
    [
        (1, WorkTiles.FEW),
        (2, WorkTiles.SOME),
        (4, WorkTiles.SOME),
        (5, WorkTiles.FILLING),
        (16, WorkTiles.FILLING),
        (17, WorkTiles.SEVERAL),
        (49, WorkTiles.SEVERAL),
        (50, WorkTiles.MANY),
    ],
)
def test_work_tiles_are_counted_beside_sms(batch: int, tiles: WorkTiles) -> None:
    """An H200 has 132 SMs."""
    assert work_tiles(batch, 8, 132) is tiles
    assert work_tiles(batch, 8, None) is WorkTiles.ANY


def test_splits_that_are_given_take_the_same_kernel_for_every_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the bits would depend on the number of other requests."""
    monkeypatch.setattr(decode_calls, "gpu_of", lambda _: ("NVIDIA H200", (9, 0)))

    def chosen(batch: int, splits: int) -> DecodeKernelConfig:
        q = torch.zeros(batch, 1, 8, 64).half()
        asked = DecodeOptions(None, False, (-1, -1), 0.0, splits)
        call = DecodeCall(q, KVCache(q, q), None, None, False, None, None)
        return decode_calls._choose(asked, call, CallArgs(), 64).config

    assert chosen(16, 0) == chosen(32, 0) != chosen(132, 0)
    assert chosen(132, 3) == chosen(16, 3) == chosen(1, 3)


def test_a_call_takes_the_kernel_for_its_queries_and_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def kernel_for(config: DecodeKernelConfig, variant: Variant, device: torch.device) -> object:
        taken.append(config.B_r)
        return find(config, variant, device)

    find = decode_calls._kernel_for
    monkeypatch.setattr(decode_calls, "_kernel_for", kernel_for)
    for n_q, heads in ((4, (8, 2)), (5, (8, 2)), (9, (4, 1))):
        asked = requests(PLAIN, (65, 3), n_q=n_q, heads=heads)
        flashsmith.decode(None, asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens)
    assert taken == [16, 32, 64]


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"B_r": 48}, "B_r"),
        ({"n_warps": 2}, "n_warps is 2; 4 warps are a team for 64 rows"),
        ({"B_c": 16}, ""),
        ({"B_c": 64, "B_r": 16}, "a lane looks up the page of one key"),
        ({"d_head": 96, "B_c": 16}, "copies 8 rows at a time"),
        ({"d_head": 192, "B_c": 16, "n_stages": 4, "n_warps": 4}, "A team's ring has"),
    ],
    ids=str,
)
def test_what_teams_cannot_do_is_said(changed: dict[str, int], words: str) -> None:
    problems = replace(WIDE, **changed).problems("sm_90")
    assert bool(problems) == bool(words)
    assert words in " ".join(problems)


def test_a_team_has_one_ring() -> None:
    stage = 2 * WIDE.B_c * WIDE.d_head * ELEMENT_BYTES
    teams = WIDE.n_warps // (WIDE.B_r // 16)
    assert WIDE.shared_memory_bytes - teams * WIDE.n_stages * stage == 2 * 128
