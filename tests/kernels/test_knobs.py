"""Each knob changes what the kernel executes, as the emulator counts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashsmith.configs import FlashForwardKernelConfig, KernelId
from flashsmith.runtime import Kernel, emulation
from flashsmith.runtime.counters import COUNTERS
from support.problems import random_qkv, run
from support.sm80_kernels import BASE, KNOBS

Counts = dict[str, int]
SEQ_LEN = 256
WARPS, BLOCKS, VISITS = (
    4,
    SEQ_LEN // 64,
    SEQ_LEN // 64,
)  # a grid of BLOCKS, each visits VISITS tiles


@pytest.fixture(scope="module")
def counts(
    emulated: Callable[[KernelId], Kernel],
) -> Callable[[FlashForwardKernelConfig], Counts]:
    def count(cfg: FlashForwardKernelConfig) -> Counts:
        kernel = emulated(KernelId(cfg))
        with emulation(kernel) as emulator:
            run(kernel, random_qkv(cfg, SEQ_LEN))
            return emulator.counters()

    return count


def bank_conflicts(c: Counts) -> int:
    return c["shared_wavefronts"] - c["shared_wavefronts_ideal"]


def test_every_counter_is_counted(counts: Callable[..., Counts]) -> None:
    assert set(counts(BASE)) == set(COUNTERS) - {"bank_conflicts"}


def test_every_kernel_does_the_same_mma(counts: Callable[..., Counts]) -> None:
    expected = 2 * SEQ_LEN * SEQ_LEN * 128 // (16 * 8 * 16)
    assert {counts(cfg)["mma"] for cfg in (BASE, *KNOBS.values())} == {expected}


def test_swizzle_removes_all_bank_conflicts(counts: Callable[..., Counts]) -> None:
    assert bank_conflicts(counts(BASE)) == 0
    plain = counts(KNOBS["not swizzled"])
    # ldmatrix reads eight rows that all start at the same bank, and O is stored in the same way.
    assert plain["shared_wavefronts"] > 6 * plain["shared_wavefronts_ideal"]


def test_async_copy_uses_cp_async(counts: Callable[..., Counts]) -> None:
    tiles = BLOCKS * (1 + 2 * VISITS)  # Q, and K and V of every visit
    assert counts(BASE)["cp_async"] == tiles * 64 * 128 * 2 // (16 * 32)
    synchronous = counts(KNOBS["synchronous"])
    assert synchronous["cp_async"] == 0
    assert synchronous["global_load_bytes"] == counts(BASE)["global_load_bytes"]
    # st.shared and cp.async write the same bytes to the same banks.
    assert synchronous["shared_wavefronts"] == counts(BASE)["shared_wavefronts"]


def test_eager_loads_are_in_flight_during_the_mma(counts: Callable[..., Counts]) -> None:
    eager = counts(BASE)
    # Loads are in flight during all products but P V of the last visit, when no block of K is left.
    assert eager["cp_async_in_flight_mma"] == eager["mma"] * (2 * VISITS - 1) // (2 * VISITS)
    assert counts(KNOBS["not eager"])["cp_async_in_flight_mma"] == 0


def test_whole_Q_is_loaded_once(counts: Callable[..., Counts]) -> None:
    loads_of_Q = BLOCKS * WARPS * 128 // 16
    difference = counts(BASE)["ldmatrix"] - counts(KNOBS["Q whole"])["ldmatrix"]
    assert difference == loads_of_Q * (VISITS - 1)


@pytest.mark.parametrize(
    ("knob", "run"), [("K whole", 4 * 8 + 2), ("K four", 4 * 4 + 2), ("V whole", 8 * 4)]
)
def test_fragments_loaded_at_a_time(knob: str, run: int, counts: Callable[..., Counts]) -> None:
    """The longest run of ldmatrix without an mma in between is the load of one group of fragments.
    A fragment of K takes 4 instructions, of V 8, of Q 1; two fragments of Q come first."""
    assert counts(BASE)["longest_ldmatrix_run"] == 2 * 8
    assert counts(KNOBS[knob])["longest_ldmatrix_run"] == run
    assert counts(KNOBS[knob])["ldmatrix"] == counts(BASE)["ldmatrix"]


def test_double_buffer_loads_one_group_ahead(counts: Callable[..., Counts]) -> None:
    base, buffered = counts(BASE), counts(KNOBS["buffer"])
    assert buffered["longest_ldmatrix_run"] == 2 * base["longest_ldmatrix_run"]
    assert buffered["longest_mma_run"] == 2 * base["longest_mma_run"]
    assert buffered["ldmatrix"] == base["ldmatrix"]


def test_double_buffer_of_a_whole_operand_trickles_in(counts: Callable[..., Counts]) -> None:
    """All of K still has registers, but no longer arrives before the first mma."""
    buffered = counts(KNOBS["buffer, K whole"])
    assert buffered["longest_ldmatrix_run"] < counts(KNOBS["K whole"])["longest_ldmatrix_run"]


def test_optimized_softmax_reduces_row_sums_once(counts: Callable[..., Counts]) -> None:
    reduction = 2 * 2  # rows r and r + 8, two shuffles each
    warps = BLOCKS * WARPS
    assert counts(BASE)["shuffles"] == warps * VISITS * 2 * reduction
    assert counts(KNOBS["optimized softmax"])["shuffles"] == warps * (VISITS + 1) * reduction


def test_output_leaves_in_whole_sectors(counts: Callable[..., Counts]) -> None:
    c = counts(BASE)
    assert c["global_store_bytes"] == SEQ_LEN * 128 * 2
    assert c["global_store_sectors"] * 32 == c["global_store_bytes"]
    assert c["global_load_sectors"] * 32 == c["global_load_bytes"]
