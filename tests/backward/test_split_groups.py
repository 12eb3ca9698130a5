"""Query heads that share a KV head are split over tiles, and dK and dV of the parts are added: in
memory, in any order, or by a kernel, in the order of the parts, where dQ is in order, too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice

import pytest
import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    KernelId,
    Sm90BackwardKernelConfig,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.lab.soak import EMULATOR, random_case
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.reference import Packing, Semantics
from flashsmith.runtime import emulation, find_backward, load_kernels
from support.backward_kernels import BAND
from support.gradient_calls import Call, call_of, drawn_call
from support.gradients import assert_near_truth, differing, launch, launch_loaded, plan_of
from support.semantics import packing_of

# Blocks of one tile and persistent ones, two and three warpgroups, dQ in order and in any order.
CONFIGS = {
    way: parse_kernel_name_into_config(f"{name}+split_groups")
    for way, name in {
        "two": "(FP16, 64, 64, 128, 2): backward+wgmma+q_stages_2+do_stages_1",
        "three": "(BF16, 64, 64, 192, 3): backward+wgmma+q_stages_3+do_stages_3+turns_1+persistent"
        "+in_order",
        "96": "(BF16, 96, 64, 128, 2): backward+wgmma+q_stages_1+do_stages_2+v_regs_3+persistent",
        "128": "(FP16, 128, 64, 128, 2): backward+wgmma+q_stages_3+do_stages_2+v_regs_4+turns_2"
        "+persistent+in_order+skip_unseen",
    }.items()
}
IN_ORDER = [cfg for cfg in CONFIGS.values() if cfg.dQ_in_order]
VARIANTS = [
    *(FULL, CAUSAL, BAND, MIXED_VARIANTS[0]),
    *map(Variant.from_name, ("varlen", "causal+varlen", "causal+dropout", "softcap", "sinks")),
]
KERNELS = [
    KernelId(cfg, variant)
    for cfg in CONFIGS.values()
    for variant in VARIANTS
    if cfg.serves_variant(variant)
]
GROUPS = (2, 3, 5, 7, 8)
DRAWN = 40  # calls for each group at most, until two split it, which are made
SUMMED_KEYS = 64
EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
EACH_IN_ORDER = pytest.mark.parametrize("cfg", IN_ORDER, ids=lambda cfg: f"d{cfg.d_head}")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    whole = [replace(each, config=not_split(each.config)) for each in KERNELS]
    load_kernels([*KERNELS, *whole], Target.emulator())


def not_split(cfg: Sm90BackwardKernelConfig) -> Sm90BackwardKernelConfig:
    return replace(cfg, split_groups=False)


def bytes_of_sums(cfg: Sm90BackwardKernelConfig, call: Call) -> int:
    """Returns the bytes of the workspace that are there for the parts."""
    split, whole = (plan_of(call.kernel(each), call) for each in (cfg, not_split(cfg)))
    return split.workspace_bytes - whole.workspace_bytes


def parts_of(cfg: Sm90BackwardKernelConfig, call: Call) -> int:
    """Returns the number of parts of a call, which takes memory for its sums: those of each part,
    or those to which all add. Packed sequences have a block of keys more each."""
    offsets, (*batch, n_k, heads, _) = call.packing.cu_seqlens_k, call.k.shape
    blocks = -(-n_k // SUMMED_KEYS) * (batch[0] if batch else 1)
    blocks += 0 if offsets is None else len(offsets) - 1
    of_sums = blocks * heads * SUMMED_KEYS * 2 * cfg.d_head * torch.float32.itemsize
    n_parts = plan_of(call.kernel(cfg), call).n_parts
    n_sums = 0 if n_parts == 1 else 1 if cfg.adds_parts else n_parts
    assert bytes_of_sums(cfg, call) == n_sums * of_sums
    return n_parts


def grouped(
    cfg: Sm90BackwardKernelConfig, group: int, n_q: int, n_k: int, heads: int = 1, batch: int = 1
) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """Returns the dtype and the shapes of q and k."""
    of_q, of_k = (batch, n_q, group * heads, cfg.d_head), (batch, n_k, heads, cfg.d_head)
    return cfg.dtype.to_torch_dtype(), of_q, of_k


def planned_call(
    dtype: torch.dtype, of_q: tuple[int, ...], of_k: tuple[int, ...], *, causal: bool
) -> Call:
    """Returns a call of these shapes to be planned alone: its tensors hold anything."""
    q, k, v, o, do = (torch.empty(of, dtype=dtype) for of in (of_q, of_k, of_k, of_q, of_q))
    lse = torch.empty(of_q[0], of_q[2], of_q[1])
    return Call(q, k, v, o, lse, do, None, Semantics(causal=causal), Packing())


# The emulated GPU has four SMs. Tiles of a whole group would leave some of them idle; or one would
# end late, as the first keys have the most queries under a causal mask.
PARTS = {
    False: [(3, 1, 3), (5, 1, 3), (5, 2, 2), (7, 1, 4), (7, 2, 2), (8, 1, 4), (8, 3, 4)],
    True: [(5, 1, 3), (7, 1, 4), (8, 3, 4)],
}


@EACH
@pytest.mark.parametrize(
    ("causal", "group", "tiles", "parts"),
    [(causal, *each) for causal, of_mask in PARTS.items() for each in of_mask],
)
def test_parts_of_groups(
    cfg: Sm90BackwardKernelConfig, causal: bool, group: int, tiles: int, parts: int
) -> None:
    call = call_of(*grouped(cfg, group, 200, tiles * cfg.B_c - 30), causal=causal)
    assert parts_of(cfg, call) == parts
    assert_near_truth(launch(call.kernel(cfg), call, gaps=True), call)


@EACH
@pytest.mark.parametrize(("tiles", "split"), [(3, True), (17, False)])
def test_windows_split_groups_only_where_tiles_are_few(
    cfg: Sm90BackwardKernelConfig, tiles: int, split: bool
) -> None:
    """The host does not know how many products a window hides, so that sums may take longer than
    these. Without a window both are split."""
    shapes = grouped(cfg, 7, 400, cfg.B_c - 30, heads=tiles)
    assert parts_of(cfg, call_of(*shapes)) > 1
    assert (parts_of(cfg, call_of(*shapes, window_size=(9, 5))) > 1) == split


@EACH
@pytest.mark.parametrize("causal", [True, False])
def test_tiles_of_long_rows_have_few_heads(cfg: Sm90BackwardKernelConfig, causal: bool) -> None:
    """Parts are not for the balance here. Tiles of unlike lengths drift apart, so that L2 would
    have to hold the queries of all heads of a group; rows of 64 elements fit it. Parts that add to
    the same sums take time to begin and to end, which longer tiles repay."""
    length = (48 if cfg.adds_parts else 2) * cfg.B_c
    shapes = grouped(cfg, 8, length, length, heads=4 if cfg.adds_parts else 16)
    parts = parts_of(cfg, planned_call(*shapes, causal=causal))
    assert (parts > 1) == (causal and cfg.d_head > 64)


@EACH
def test_the_knob_stays_where_a_call_needs_another_configuration(
    cfg: Sm90BackwardKernelConfig,
) -> None:
    assert cfg.made_deterministic() == replace(cfg, dQ_in_order=True)
    assert cfg.adapted_to(Variant(softcap=True)).split_groups


@EACH
def test_one_part_is_stored_at_once(cfg: Sm90BackwardKernelConfig) -> None:
    """With tiles for all SMs, or with no shared keys, there is nothing to split or to add."""
    for group, heads in ((2, 4), (1, 1)):
        call = call_of(*grouped(cfg, group, 130, cfg.B_c - 3, heads, batch=2))
        assert parts_of(cfg, call) == 1
        found, whole = (launch(call.kernel(each), call) for each in (cfg, not_split(cfg)))
        assert not differing(not_split(cfg), found, whole)


def random_calls(kernel: KernelId, rng: random.Random, group: int) -> Iterator[Call]:
    """Yields calls of random lengths and semantics, with one and two KV heads in turn."""
    small = replace(EMULATOR, max_scores=60_000, max_length=500)
    for heads in cycle((1, 2)):
        case = random_case(rng, kernel.config, kernel.variant, small)
        problem = replace(case.problem, heads=group * heads, heads_kv=heads)
        yield drawn_call(replace(case, problem=problem))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.slug)
def test_random_calls_with_split_groups(kernel: KernelId) -> None:
    """Each kernel has two sizes of groups, in turn, and each size a third of the kernels."""
    cfg, rng, place = kernel.config, random.Random(kernel.name), KERNELS.index(kernel)
    n_split = 0
    for i, group in enumerate(GROUPS[(place + step) % len(GROUPS)] for step in (0, 2)):
        drawn = islice(random_calls(kernel, rng, group), DRAWN)
        split = list(islice((call for call in drawn if parts_of(cfg, call) > 1), 2))
        n_split += len(split)
        for call in split or islice(random_calls(kernel, rng, group), 1):
            found = launch(kernel, call, gaps=i % 2 == 1, seed=i)
            assert_near_truth(found, call, group)
            if i % 2 == 0:
                again = launch(kernel, call, seed=i + 1)
                assert not differing(cfg, again, found), (group, call)
    assert n_split > 0 or kernel.variant.varlen  # see the tests of packed sequences below


@EACH
@pytest.mark.parametrize(("causal", "batch"), [(False, 1), (False, 2), (True, 1)])
def test_keys_that_no_query_sees_have_zeros(
    cfg: Sm90BackwardKernelConfig, causal: bool, batch: int
) -> None:
    """The workspace is NaN before the call: each part of such keys is stored as zeros."""
    shapes = grouped(cfg, 8, 250, 2 * cfg.B_c + 20, batch=batch)
    window = {} if causal else {"window_size": (5, 0)}
    call = call_of(*shapes, causal=causal, top_left=True, **window)
    assert parts_of(cfg, call) > 1
    found = launch(call.kernel(cfg), call, gaps=True)
    assert_near_truth(found, call)
    assert found.k[:, :250].any()
    assert not found.k[:, 250:].any()
    assert not found.v[:, 250:].any()


@EACH
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_have_sums_of_their_own_keys(
    cfg: Sm90BackwardKernelConfig, causal: bool
) -> None:
    """Sequences begin within blocks of keys; one has no queries, and one no keys."""
    longest = (3 if causal else 2) * cfg.B_c - 30
    lengths_q, lengths_k = [70, 0, 700, 5, 33], [30, 20, longest, 0, 1]
    packing = packing_of(lengths_q, lengths_k)
    dtype, *_ = grouped(cfg, 7, 1, 1)
    of_q, of_k = (sum(lengths_q), 7, cfg.d_head), (sum(lengths_k), 1, cfg.d_head)
    call = call_of(dtype, of_q, of_k, None, packing, causal=causal)
    assert parts_of(cfg, call) > 1
    assert_near_truth(launch(call.kernel(cfg), call, gaps=True), call)


@EACH_IN_ORDER
@pytest.mark.parametrize("causal", [False, True])
def test_every_run_has_the_same_bits(cfg: Sm90BackwardKernelConfig, causal: bool) -> None:
    """No thread block waits for one that may not have begun, however many run at a time; and dQ has
    the bits of whole groups, because blocks of keys add to each head in the same order."""
    call = call_of(*grouped(cfg, 7, 200, 3 * cfg.B_c - 20), causal=causal)
    assert parts_of(cfg, call) > 1
    found = launch(call.kernel(cfg), call)
    assert_near_truth(found, call)
    whole = launch(call.kernel(not_split(cfg)), call)
    assert torch.equal(found.q, whole.q)
    loaded = find_backward(call.kernel(cfg), Target.emulator())
    for seed in range(2):
        for workers in (1, 4):
            with emulation(loaded, seed=seed, count=False, workers=workers):
                again = launch_loaded(loaded, call)
            assert not differing(cfg, again, found), (workers, seed)
