"""The emulator's counters, split into visits and tiles: against hand calculation, against other
launches, and against a GPU's counters."""

from __future__ import annotations

from itertools import product

import pytest

from flashsmith.configs import (
    CAUSAL,
    FULL,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.lab.report.banks import bank_map
from flashsmith.lab.report.counts import count, count_launch
from flashsmith.lab.report.description import (
    CountedLaunch,
    bank_maps,
    fma_per_visit,
    samples,
    work_of,
)
from flashsmith.runtime import load_kernels
from support.report import (
    LAST_SM90,
    LAST_SM90_CAUSAL,
    PLAIN_SM90,
    SWIZZLED,
    sm80_report,
    sm90_report,
)

# The blocks of a cluster load together; three warpgroups let blocks at the diagonal pass.
CLUSTER = (
    "(BF16, 128, 128, 64, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+tiles"
    "+heads_2+cluster_2+lazy_8+stale+tma_store"
)
THREE_WARPGROUPS = (
    "(BF16, 64, 192, 16, 3): wgmma+stages_8+overlap+persistent+queue+heads_1+tma_store"
)


@pytest.mark.parametrize("row_bytes", [64, 128, 256])
@pytest.mark.parametrize("chunk", range(8))
def test_bank_map(row_bytes: int, chunk: int) -> None:
    chunk %= row_bytes // 16
    plain, swizzled = (bank_map(row_bytes, swizzled=s, chunk=chunk) for s in (False, True))
    # Rows of 128 or 256 bytes all begin at the same bank, and of rows of 64 bytes every other one
    # does.
    assert (plain.wavefronts, swizzled.wavefronts) == (4 if row_bytes == 64 else 8, 1)
    for rows in (plain.rows, swizzled.rows):
        assert all(sum(cell is not None for cell in row) == 4 for row in rows)
    used = [bank for row in swizzled.rows for bank, cell in enumerate(row) if cell is not None]
    assert sorted(used) == list(range(32))


def test_bank_map_agrees_with_the_emulator() -> None:
    """The conflicts of a visit are those of its ldmatrix, with four phases each."""
    for kernel in sm80_report().groups[0].kernels:
        assert kernel.counts
        config = kernel.instance.config
        phase = bank_maps(config)[config.swizzled]  # type: ignore[union-attr]
        expected = kernel.counts.per_visit["ldmatrix"] * 4 * (phase.wavefronts - 1)
        assert kernel.counts.conflicts == expected


def test_counts_of_an_sm80_visit() -> None:
    counts = sm80_report().groups[0].kernels[1].counts
    assert counts
    tile = 64 * 128 * 2
    wavefronts = 2 * (4 * tile + tile) // 128  # K and V: each warp reads all, copies write once
    assert counts.per_visit["shared_wavefronts"] == wavefronts
    assert counts.per_visit["mma"] == fma_per_visit(SWIZZLED.config) / (16 * 8 * 16) == 512
    assert counts.per_visit["global_load_bytes"] == 2 * tile
    # Outside of visits, Q goes in and to the registers, and O to shared memory and out.
    assert counts.per_tile["shared_wavefronts"] == 4 * tile // 128
    assert counts.per_tile["global_store_bytes"] == tile
    assert counts.per_tile["mma"] == 0
    assert counts.of == "one head, 64 rows of Q, 128 of K and V"


def test_counts_of_a_causal_sm80_kernel() -> None:
    causal = KernelId(SWIZZLED.config, CAUSAL)
    load_kernels([causal], Target.emulator())
    work = work_of(causal.config, causal.variant, 256, 256)
    assert (work.tiles, work.visits) == (4, 1 + 2 + 3 + 4)
    counts = count(causal)
    assert counts.per_visit["mma"] == 512
    assert count_launch(causal, 256, 256)["mma"] == 512 * work.visits


def test_counts_of_an_sm90_visit() -> None:
    plain, last = (kernel.counts for kernel in sm90_report().groups[0].kernels)
    assert plain
    assert last
    block = 128 * 128 * 2
    for counts in (plain, last):
        # Two warpgroups have 8 steps of Q K^T and 8 of P V.
        assert counts.per_visit["wgmma"] == 2 * (8 + 8)
        assert counts.per_visit["wgmma_flops"] == 4 * 128 * 128 * 128
        assert counts.per_visit["tma_load_bytes"] == 2 * block
        assert counts.per_tile["tma_load_bytes"] == block
        assert counts.per_tile["wgmma"] == 0
        # Consumers wait at two full barriers, the producer at two empty ones.
        assert counts.per_visit["mbarrier_waits"] == 2 * 256 + 2
        # The producer arrives at two full barriers, and one lane of each of eight warps at two
        # empty ones.
        assert counts.per_visit["mbarrier_arrivals"] == 2 + 2 * 8
        assert counts.of == "one head, 128 rows of Q, 256 of K and V"
    # Each warpgroup reads K and V, and its 64 rows of Q unless they are in registers.
    assert plain.per_visit["wgmma_shared_bytes"] == 2 * (2 * block + block // 2)
    assert last.per_visit["wgmma_shared_bytes"] == 2 * 2 * block
    assert (plain.per_tile["tma_store_bytes"], last.per_tile["tma_store_bytes"]) == (0, block)
    assert plain.per_tile["global_store_bytes"] == block
    assert plain.per_visit["shuffles"] == 8 * 2 * 2  # the maxima of two rows over a quad
    assert last.per_visit["shuffles"] == 0  # a stale maximum is not exchanged


@pytest.mark.parametrize(
    "instance",
    [
        PLAIN_SM90,
        LAST_SM90,
        LAST_SM90_CAUSAL,
        KernelId(parse_kernel_name_into_config(CLUSTER), FULL),
        KernelId(parse_kernel_name_into_config(CLUSTER), CAUSAL),
        KernelId(parse_kernel_name_into_config(THREE_WARPGROUPS), CAUSAL),
    ],
    ids=str,
)
def test_counts_of_an_sm90_launch_follow_from_those_of_its_tiles(
    instance: KernelId,
) -> None:
    load_kernels([instance], Target.emulator())
    counts = count(instance)
    for seq_len in (512, 700):
        launch = CountedLaunch(counts, work_of(instance.config, instance.variant, seq_len, seq_len))
        seen = count_launch(instance, seq_len, seq_len)
        for name in ("wgmma", "wgmma_flops", "wgmma_shared_bytes", "tma_loads", "tma_load_bytes"):
            assert launch[name] == pytest.approx(seen[name]), (name, seq_len)
        assert launch["tma_store_bytes"] == pytest.approx(seen["tma_store_bytes"])


OTHERS = (
    "(FP16, 64, 64, 64, 4): backward+stages_1",
    "(FP16, 64, 64, 64, 4): backward+sums+stages_1",
    "(FP16, 64, 64, 192, 3): backward+wgmma+q_stages_3+do_stages_3+turns_1+persistent+in_order",
    "(FP16, 64, 16, 32, 4): decode+stages_2+blocks_1",
    "(FP16, 128, 64, 64, 1): wgmma+decode+stages_5",
)


BACKWARDS = [name for name in OTHERS if "backward" in name]


@pytest.mark.parametrize(
    ("name", "variant"), [*product(OTHERS, [FULL]), *product(BACKWARDS, [CAUSAL])]
)
def test_counts_of_other_operations_follow_from_those_of_their_tiles(
    name: str, variant: Variant
) -> None:
    """The launch has more keys than the counted one, and more queries if both numbers are equal.
    The counts agree within 2% in a kernel that adds dQ in order, whose first block of keys has no
    sums to read."""
    instance = KernelId(parse_kernel_name_into_config(name), variant)
    counts = count(instance)
    (rows, keys), _ = samples(instance.config)
    rows, keys = (2 * rows, 2 * keys) if rows == keys else (rows, 4 * keys)
    launch = CountedLaunch(counts, work_of(instance.config, variant, rows, keys))
    seen = count_launch(instance, rows, keys)
    for each in (
        *("mma", "wgmma_flops", "shared_wavefronts", "wgmma_shared_bytes"),
        *("tma_load_bytes", "global_load_bytes"),
    ):
        assert launch[each] == pytest.approx(
            seen[each], rel=0.02 if "in_order" in name else 1e-6
        ), each
    visit = instance.config.B_r * instance.config.B_c * instance.config.d_head
    products = {OTHERS[0]: 7, OTHERS[1]: 5, OTHERS[2]: 5}.get(name, 2)
    assert counts.fma_per_visit == products * visit
    assert counts.conflicts == 0


def test_emulator_counts_the_bank_conflicts_that_ncu_measures() -> None:
    """The counts agree within 1% with those of an H200 for the same launch."""
    plain, swizzled = sm80_report().groups[0].kernels
    assert plain.profile
    assert swizzled.profile
    assert plain.profiled_conflicts == pytest.approx(
        plain.profile.metrics["bank_conflicts"], rel=0.01
    )
    assert swizzled.profiled_conflicts == 0
    assert swizzled.profile.metrics["bank_conflicts"] < plain.profiled_conflicts / 5000
    assert next(iter(plain.profile.stalls)) == "short_scoreboard"
