"""The sm90 family's decode: many packed rows by wgmma, keys by bulk copies, two ways to combine."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig, DType, KernelId, Sm90DecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.jit import Target
from flashsmith.lab.soak.prepared import extras_of
from flashsmith.reference import Packing, Semantics
from flashsmith.runtime import CallArgs, DecodeTensors, Splitting, emulation, find_decode
from flashsmith.runtime.emulation import Emulation
from support.decoding import (
    WGMMA,
    Placed,
    Requests,
    assert_bits_are_of_each_request,
    assert_near_truth,
    assert_right,
    assert_same_bits,
    assert_wild_page_is_not_followed,
    in_pages,
    in_slots,
    launch_on,
    requests,
    run,
)

ONE, TWO = WGMMA[:2]  # one warpgroup and two
LENGTHS = (0, 1, 127, 128, 129, 400)


@pytest.mark.parametrize("cfg", WGMMA, ids=str)
def test_lengths_around_every_tile_boundary_are_right(cfg: DecodeKernelConfig) -> None:
    for n_q, splits in ((1, 0), (40, 2)):
        asked = requests(cfg, LENGTHS, n_q=n_q)
        assert_right(cfg, asked, Semantics(causal=n_q > 1), splits=splits)


@pytest.mark.parametrize("cfg", [ONE, TWO], ids=str)
def test_any_number_of_rows_is_right(cfg: DecodeKernelConfig) -> None:
    for n_q, heads in product((1, 9, 32, 33, 65, 130), ((4, 2), (5, 1), (3, 3))):
        asked = requests(cfg, (0, 1, 200, 64), n_q=n_q, heads=heads)
        assert_right(cfg, asked, Semantics(causal=bool(n_q % 2)), splits=n_q % 3)


def counted(cfg: DecodeKernelConfig, asked: Requests) -> dict[str, int]:
    """Returns what the emulator counted in a right call with one split."""
    assert_right(cfg, asked, splits=1)
    return Emulation(find_decode(KernelId(cfg), Target.emulator())).counters()


@pytest.mark.parametrize("cfg", WGMMA, ids=str)
def test_four_steps_of_rows_of_256_elements_take_Q_from_registers(cfg: DecodeKernelConfig) -> None:
    assert isinstance(cfg, Sm90DecodeKernelConfig)
    loads = 4 if cfg.d_head == 256 else 0
    assert cfg.held_registers["Q"] == 4 * loads
    found = counted(cfg, requests(cfg, (200,), n_q=cfg.B_r, heads=(1, 1)))
    assert found["ldmatrix"] == loads * 4 * cfg.n_warpgroups


def rows_of_work_tiles(n_q: int) -> list[int]:
    """Returns the rows of each work tile of one head, by the partial results of two splits."""
    asked = requests(TWO, (256,), n_q=n_q, heads=(1, 1), behind=0)
    kernel = find_decode(KernelId(TWO), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    plan = kernel.plan(tensors, how=Splitting(2))
    workspace = torch.full((plan.workspace_bytes,), 255, dtype=torch.uint8)  # NaN
    counters = torch.zeros(plan.counter_bytes, dtype=torch.uint8)
    kernel(tensors, 0.125, how=Splitting(2), counters=counters, workspace=workspace)
    tiles = -(-n_q // TWO.B_r)
    sums = workspace.view(torch.float32)[: 2 * tiles * TWO.B_r * TWO.d_head]
    written = ~sums.view(tiles, 2, TWO.B_r, TWO.d_head).isnan().any(-1)
    assert torch.equal(written[:, 0], written[:, 1])
    return [int(rows) for rows in written[:, 0].sum(-1)]


def test_work_tiles_of_a_head_have_equally_many_rows() -> None:
    """Thread blocks with few rows would run ahead of those that visit the same keys."""
    assert rows_of_work_tiles(65) == [65]
    assert rows_of_work_tiles(129) == [65, 64]
    assert rows_of_work_tiles(160) == [80, 80]
    assert rows_of_work_tiles(260) == [87, 87, 86]


@pytest.mark.parametrize("cfg", WGMMA[1::2], ids=str)
def test_splits_of_unlike_lengths_follow_each_other(cfg: DecodeKernelConfig) -> None:
    """Thread blocks visit splits of several work tiles, one after the other."""
    for splits in (0, 1, 3, 40):
        asked = requests(cfg, (700, 90, 0, 333), n_q=100, heads=(6, 3))
        assert_right(cfg, asked, Semantics(causal=True), splits=splits)


@pytest.mark.parametrize("cfg", [ONE, TWO], ids=str)
@pytest.mark.parametrize("splits", [0, 1, 2, 4, 5, 9])
def test_few_and_many_splits_are_combined(cfg: DecodeKernelConfig, splits: int) -> None:
    """Splits that wait for each other combine, the last of two, or the combine kernel."""
    semantics = Semantics(causal=True, sinks=torch.linspace(-3, 6, 4))
    assert_right(cfg, requests(cfg, (1100, 3, 600), n_q=20), semantics, splits=splits)
    assert_right(cfg, requests(cfg, (1500,), n_q=70, heads=(2, 1)), semantics=None, splits=splits)


@pytest.mark.parametrize("cfg", [ONE, TWO], ids=str)
def test_one_long_request_among_short_ones_is_shared_out(cfg: DecodeKernelConfig) -> None:
    assert_right(cfg, requests(cfg, (1, 5000, 2, 0, 64, 100), n_q=20, heads=(2, 1)))


@pytest.mark.parametrize("cfg", WGMMA[:4], ids=str)
def test_pages_have_the_bits_of_entries_whatever_lies_behind_keys(cfg: DecodeKernelConfig) -> None:
    asked = requests(cfg, (70, 0, 131, 1, 320), n_q=9, heads=(6, 2))
    found = assert_right(cfg, asked, splits=2)
    for page_size in (16, 48, 64, 256):
        assert_same_bits(found, run(cfg, asked, placed=in_pages(asked, page_size), splits=2))


def test_a_page_that_is_nowhere_is_not_followed() -> None:
    assert_wild_page_is_not_followed(TWO)


def test_entries_of_any_order_with_padding_are_read() -> None:
    asked = requests(ONE, (90, 33, 0), n_q=12)
    order, pads = torch.tensor([2, 0, 1]), torch.tensor([7, 0, 3])
    k, v = (torch.full((3, 140, *t.shape[2:]), math.nan, dtype=t.dtype) for t in (asked.k, asked.v))
    for i, (entry, pad) in enumerate(zip(order, pads, strict=True)):
        for cache, t in ((k, asked.k), (v, asked.v)):
            cache[entry, pad : pad + asked.lengths[i]] = t[i, : asked.lengths[i]]
    placed = Placed(k, v, asked.seqlens + pads.int(), None, order.int(), pads.int())
    found = run(ONE, asked, placed=placed)
    assert_near_truth(found, asked)
    assert_same_bits(found, run(ONE, asked))


def test_scores_are_changed_and_masked_in_packed_rows() -> None:
    asked = requests(TWO, (190, 40, 11), n_q=21, heads=(6, 2))
    semantics = Semantics(
        causal=True, softcap=2.0, alibi_slopes=torch.rand(6), sinks=torch.linspace(-3, 6, 6)
    )
    for splits in (0, 3):
        assert_right(TWO, asked, semantics, splits=splits)


@pytest.mark.parametrize("splits", [3, 6])
def test_bits_depend_on_no_other_request_and_no_order_of_warps(splits: int) -> None:
    assert_bits_are_of_each_request(TWO, requests(TWO, (700, 17, 0, 190), n_q=20), splits)


def test_a_plan_has_a_kernel_to_combine_many_splits() -> None:
    asked = requests(TWO, (900,), n_q=40, heads=(8, 2))
    kernel = find_decode(KernelId(TWO), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    tiles = 2 * -(-40 * 4 // TWO.B_r)
    sums = tiles * TWO.B_r * (TWO.d_head + 2) * 4
    of_model = [(cfg.max_combined_splits, cfg.max_waiting_splits) for cfg in (ONE, TWO)]
    assert of_model == [(2, 32), (2, 32)], "which the cost model counts"
    few, many = (kernel.plan(tensors, how=Splitting(n)) for n in (2, 3))
    assert (len(few.launches), len(many.launches)) == (1, 2)
    assert (few.workspace_bytes, few.counter_bytes) == (2 * sums, tiles * TWO.n_warpgroups * 4)
    assert (many.workspace_bytes, many.counter_bytes) == (3 * sums + tiles * 44, 0)
    assert kernel.plan(tensors, how=Splitting(1)).workspace_bytes == 0
    for heads, splits, launches in ((2, 2, 1), (1, 4, 1), (1, 5, 2), (2, 3, 2)):  # for four SMs
        asked = requests(TWO, (900,), n_q=20, heads=(4 * heads, heads))
        tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
        assert len(kernel.plan(tensors, how=Splitting(splits)).launches) == launches


def slots_and_blocks(heads_kv: int, n_q: int, n_k: int) -> tuple[int, int]:
    """Returns the partial results for which one request's plan has memory, and its blocks."""
    dtype = TWO.dtype.to_torch_dtype()
    q, k = (torch.zeros(1, n, heads_kv, TWO.d_head, dtype=dtype) for n in (n_q, n_k))
    kernel = find_decode(KernelId(TWO), Target.emulator())
    plan = kernel.plan(DecodeTensors(q, k, k, torch.empty_like(q)))
    return plan.workspace_bytes // (TWO.B_r * (TWO.d_head + 2) * 4), plan.launches[0].grid[0]


@pytest.mark.parametrize(("steps", "slots"), [(16, 24 * 5), (17, 2 * 132)])
def test_short_splits_are_equal_whatever_the_lengths_are(steps: int, slots: int) -> None:
    """24 work tiles on 132 SMs have five splits each, or 132 work ranges with two partial results
    each."""
    asked = requests(TWO, (1, 1, 1), n_q=20, heads=(32, 8))
    dtype = TWO.dtype.to_torch_dtype()
    k = torch.empty(3, 5 * steps * TWO.B_c, 8, TWO.d_head, dtype=dtype)
    kernel = find_decode(KernelId(TWO), Target.emulator())
    tensors = DecodeTensors(asked.q, k, k, torch.empty_like(asked.q))
    with emulation(kernel, num_sms=132):
        plan = kernel.plan(tensors, extras=CallArgs(seqused_k=asked.seqlens))
    assert len(plan.launches) == 1
    assert plan.workspace_bytes == slots * TWO.B_r * (TWO.d_head + 2) * 4


def test_splits_that_share_keys_take_the_fewest_steps_in_rounds() -> None:
    """The emulator has four SMs; a head has three work tiles here, or two. What is not split needs
    no memory."""
    assert slots_and_blocks(1, 384, 128 * 80) == (12, 4), "three rounds of 20 steps, not one of 80"
    assert slots_and_blocks(1, 384, 128 * 40) == (0, 3), "three of 10 gain less than an eighth"
    assert slots_and_blocks(1, 384, 128 * 8) == (0, 3), "one of 8 steps, not three of 2"
    assert slots_and_blocks(1, 256, 128 * 40) == (4, 4)
    assert slots_and_blocks(3, 256, 128) == (0, 4), "six work tiles, each as long as another"
    assert slots_and_blocks(2, 256, 128) == (0, 4)


def test_requests_of_equal_lengths_that_share_keys_are_split_in_rounds() -> None:
    asked = requests(TWO, (128 * 30,) * 2, n_q=150, heads=(2, 1), behind=0)
    kernel = find_decode(KernelId(TWO), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    slot = TWO.B_r * (TWO.d_head + 2) * 4
    lengths = Packing(seqused_k=asked.seqlens)
    read = kernel.plan(tensors, extras=extras_of(Semantics(), lengths, (150, 0)))
    assert kernel.plan(tensors).workspace_bytes == 2 * 3 * 2 * slot, "two splits of six work tiles"
    assert read.workspace_bytes == 2 * 4 * slot, "stream-K may serve"
    for causal in (False, True):
        found = launch_on(TWO, asked.q, Placed(asked.k, asked.v, None), Semantics(causal=causal))
        assert_near_truth(found, asked, Semantics(causal=causal))


def test_what_bulk_copies_cannot_bring_is_refused() -> None:
    asked = requests(TWO, (90, 33), n_q=20)
    whole = in_slots(asked)
    apart = torch.zeros(2, 95 * 128 + 8, dtype=asked.k.dtype).as_strided(
        asked.k.shape, (asked.k.stride(0) + 8, *asked.k.stride()[1:])
    )
    backwards = asked.k.flip(0).as_strided(asked.k.shape, (0, *asked.k.stride()[1:]))
    padded = replace(in_pages(asked, 16), leftpad=torch.zeros(2, dtype=torch.int32))
    for placed, words in (
        (in_pages(asked, 24), "pages of 24 rows; the sm90 family reads pages of a multiple of 16"),
        (replace(whole, k=apart), "no multiple of its sequence stride"),
        (replace(whole, k=backwards), "k_cache has batch stride 0"),
        (padded, "cache_leftpad was passed with block_table"),
    ):
        with pytest.raises(ValueError, match=words):
            run(TWO, asked, placed=placed)


def test_a_window_is_refused_before_anything_is_built() -> None:
    asked = requests(TWO, (90, 33), n_q=20)
    with pytest.raises(ValueError, match=r"cfg is .*wgmma.*no kernels for .*window"):
        flashsmith.decode(
            TWO, asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens, window_size=(5, 0)
        )


def test_the_newest_family_serves_many_rows_that_lie_in_boxes() -> None:
    def chosen(rows: int, in_boxes: bool = False, fp8_cache: bool = False) -> tuple[str, int]:
        workload = DecodeWorkload(DType.BF16, 128, rows, fp8_cache, in_boxes=in_boxes)
        config = DECODE.choose_by_heuristic(workload, (9, 0))
        return config.family, config.B_r

    assert [chosen(rows, in_boxes=True) for rows in (16, 17, 32, 33, 64, 65, 4096)] == [
        ("sm80", 16), ("sm80", 32), ("sm80", 32), ("sm90", 64), ("sm90", 64), ("sm90", 128),
        ("sm90", 128),
    ]  # fmt: skip
    assert chosen(64) == ("sm80", 64)
    assert chosen(64, in_boxes=True, fp8_cache=True) == ("sm80", 64)
    newer = DECODE.choose_by_heuristic(
        DecodeWorkload(DType.BF16, 128, rows=64, in_boxes=True), (10, 0)
    )
    assert newer.family == "sm80"  # wgmma exists on 9.0 alone


def test_new_keys_are_appended_and_seen() -> None:
    asked = requests(ONE, (50, 90), n_q=12, behind=20)
    new_k, new_v = (torch.randn(2, 4, 2, ONE.d_head).to(asked.k.dtype) for _ in "kv")
    found = flashsmith.decode(
        ONE, asked.q, asked.k.clone(), asked.v.clone(), cache_seqlens=asked.seqlens,
        k_new=new_k, v_new=new_v, causal=True,
    )  # fmt: skip
    for i, length in enumerate(asked.lengths):
        asked.k[i, length : length + 4], asked.v[i, length : length + 4] = new_k[i], new_v[i]
    longer = replace(asked, lengths=tuple(n + 4 for n in asked.lengths))
    expected, _ = run(ONE, longer, Semantics(causal=True))
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"n_warpgroups": 3, "B_r": 192}, "n_warpgroups is 3; supported are 1 to 2"),
        ({"B_r": 64}, "B_r is 64"),
        ({"B_c": 24}, "B_c is 24"),
        ({"n_stages": 1}, "2 stages"),
        ({"n_stages": 8}, "bytes of shared memory"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_said(changed: dict[str, int], words: str) -> None:
    assert isinstance(TWO, Sm90DecodeKernelConfig)
    assert not TWO.problems()
    assert words in " ".join(replace(TWO, **changed).problems())
