"""The emulator: instructions, faults, races, counts."""

from __future__ import annotations

import re

import pytest

from support.emulator_program import CXX, SEEDS, Run
from support.paths import CSRC

pytestmark = pytest.mark.skipif(CXX is None, reason="needs a C++20 compiler (set CXX)")


def test_instructions_equal_plain_computation(run: Run) -> None:
    run("instructions")


RACE = r"race: not ordered after"
UNORDERED = rf"({RACE}|in flight|uninitialised)"  # which one comes first varies

FAULTS = {
    "shared_past_end": r"lane 3\): store_shared<16>: 16 bytes at shared-memory offset 4096 are",
    "shared_before_start": r"offset -16 are out of bounds: the block has 4096 bytes",
    "shared_misaligned": r"offset 8 is misaligned: must be a multiple of 16",
    "shared_far_away": r"shared-memory offset -?\d+ are out of bounds",
    "global_past_end": r"lane 15\): load_global<4>: .* nearest below: input, byte 4096 of 4096",
    "global_misaligned": r"global address 0x[0-9a-f]+ in input is misaligned",
    "global_read_only": r"global address 0x[0-9a-f]+ is read-only: input, byte 0",
    "sum_read_only": r"add_global<1>: global address .* is read-only: input, byte 0",
    "sum_misaligned": r"add_global<4>: global address .* in output is misaligned: must be .* of 16",
    "numbers_of_a_sum": r"add_global: 2 numbers: must be 1 or 4",
    "global_null": r"global address 0x0 are out of bounds of every tensor",
    "copy_from_past_end": r"cp_async_16: 16 bytes at global address .* input, byte 4096 of 4096",
    "size_of_access": r"store_shared: 2 bytes: must be 4, 8 or 16",
    "uninitialised_load": r"load_shared<16>: reads shared-memory offset (0|512), which is uninit",
    "uninitialised_matrix": r"lane 31\): ldmatrix_x4: reads shared-memory offset 512, .*uninit",
    "in_flight_load": r"reads .* while cp_async_16 of warp ., lane 0 is in flight there",
    "in_flight_uncommitted": r"reads .* while cp_async_16 of .* in flight",
    "in_flight_newer_group": r"reads .* while cp_async_16 of .* in flight",
    "in_flight_store": r"store_shared<16>: writes .* while cp_async_16 of .* in flight",
    "in_flight_twice": r"cp_async_16: writes .* while cp_async_16 of .* in flight",
    "read_after_write": rf"{UNORDERED}",
    "write_after_read": rf"{RACE} (load|store)_shared of warp [01], lane \d+ \(needs a barrier",
    "write_after_write": rf"writes .* {RACE} store_shared of warp [01], lane 0 \(needs a barrier",
    "copy_over_read": r"(not ordered after ldmatrix_x4 of warp 0 \(needs|in flight there)",
    "copy_without_barrier": rf"{UNORDERED}",
    "barrier_before_wait": rf"load_shared<16>: reads .* {UNORDERED}",
    "warp_sync_is_not_a_barrier": rf"load_shared<16>: reads .* {UNORDERED}",
    "lanes_read_after_write": rf"reads .* {RACE} store_shared of .* \(same warp: needs a warp_sync",
    "lanes_write_after_read": rf"writes .* {RACE} load_shared of .* \(same warp: needs a warp_sync",
    "lanes_write_after_write": rf"writes .* {RACE} store_shared of .* \(same warp: needs a warp",
    "lanes_write_one_word": rf"lane 1\): store_shared<16>: writes .* {RACE} .* lane 0 \(same warp",
    "matrix_after_write": rf"ldmatrix_x4: reads .* {RACE} store_shared of .* \(same warp",
    "write_after_matrix": rf"writes .* {RACE} ldmatrix_x4 of warp . \(same warp",
    "load_after_matrix_store": rf"reads .* {RACE} stmatrix_x4 of warp . \(same warp",
    "matrix_after_matrix_store": rf"ldmatrix_x4: reads .* {RACE} stmatrix_x4 of warp . \(same",
    "matrix_store_after_matrix": rf"stmatrix_x4: writes .* {RACE} ldmatrix_x4 of warp . \(same",
    "matrix_store_after_loads": rf"stmatrix_x4: writes .* {RACE} load_shared of warp . \(same",
    "matrix_store_after_load": rf"stmatrix_x4: writes .* {RACE} load_shared of .* \(same warp",
    "matrix_store_twice": rf"stmatrix_x4: writes .* {RACE} stmatrix_x4 of warp . \(same warp",
    "matrix_store_one_row": rf"lane 1\): stmatrix_x4: writes .* {RACE} stmatrix_x4 of .* \(same",
    "matrix_store_misaligned": r"stmatrix_x4: .*offset (8|520) is misaligned: must be a multiple",
    "matrix_after_copy": rf"ldmatrix_x4: reads .* {RACE} cp_async_16 of .* \(same warp",
    "mma_and_shuffle_order_nothing": rf"load_shared<16>: reads .* {RACE} store_shared",
    "divergence": r"shuffle_xor<1>: divergence: lane 0 of the warp is at store_shared<16>",
    "divergence_of_sites": r"warp_sync at faults.cpp:\d+:\d+: divergence: .* faults.cpp:\d+:\d+",
    "divergence_of_modifiers": r"shuffle_xor<2>: divergence: .* is at shuffle_xor<1>",
    "deadlock": r"deadlock: .*; warp 0 waits at barrier_sync at faults.cpp:.*; warp 1 has returned",
    "return_while_others_wait": r"thread (31|63) .* returns from the kernel while lane 0 .*sync",
    "arrival_after_return": r"warp_sync at faults.*: lane 0 of the warp has returned",
    "stack_overflow": r"warp_sync at faults.cpp:\d+:\d+: stack overflow",
    "shuffle_mask": r"shuffle_xor: 32 as lane mask: must be 0 to 31",
    "shuffle_lane": r"shuffle_from: 32 as lane: must be 0 to 31",
    "wait_negative": r"cp_async_wait_group: -1 groups left pending",
}  # fmt: skip


@pytest.fixture(scope="session")
def messages(run: Run) -> list[dict[str, str]]:
    """Returns, for each seed, the fault that each case reported, or ""."""
    return [run("faults", str(seed)) for seed in SEEDS]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed_in_any_warp_order(name: str, messages: list[dict[str, str]]) -> None:
    for by_name in messages:
        text = by_name[name]
        assert re.search(FAULTS[name], text), text
        head = rf"^kernel {name}, block \(0, 0, 0\), thread \d+ \(warp [01], lane \d+\): "
        assert re.search(head, text), text


def test_correct_kernels_have_no_fault(messages: list[dict[str, str]]) -> None:
    clean = {name for name in messages[0] if name.startswith("clean_")}
    assert len(clean) == 8
    assert clean | set(FAULTS) == set(messages[0])
    for by_name in messages:
        assert {by_name[name] for name in clean} == {""}


def test_dropped_synchronisation_is_noticed(run: Run) -> None:
    """The result is also the same to the bit for 10 seeds, with 1 and 3 workers."""
    noticed = run("pipeline")
    kinds = sorted(site.split(":")[0] for site in noticed)
    assert kinds == ["barrier_sync"] * 2 + ["cp_async_wait_group"] + ["warp_sync"] * 2
    for site, by_seed in noticed.items():
        assert len(by_seed) == len(SEEDS)
        assert all(by_seed), f"{site} dropped: not noticed for some seed"


@pytest.fixture(scope="session")
def counts(run: Run) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = run("counts")
    return result


FILL = 128  # wavefronts that store 64 rows of 256 bytes


@pytest.mark.parametrize(
    ("name", "wavefronts", "ideal"),
    [
        ("swizzled", FILL + 32 * 4, FILL + 32 * 4),
        ("unswizzled", FILL + 32 * 4 * 8, FILL + 32 * 4),  # eight rows fall into one bank group
        ("swizzled_uncounted", 0, 0),
        ("words_stride_1", 1, 1),
        ("words_stride_2", 2, 1),
        ("words_stride_32", 32, 1),
        ("words_stride_33", 1, 1),
        ("words_broadcast", 2, 2),
        ("pairs", 2, 2),
        ("matrices_stored_adjacent", 4, 4),
        ("matrices_stored_in_columns", 32, 4),
    ],
)
def test_wavefronts(
    counts: dict[str, dict[str, int]], name: str, wavefronts: int, ideal: int
) -> None:
    assert counts[name]["shared_wavefronts"] == wavefronts
    assert counts[name]["shared_wavefronts_ideal"] == ideal


@pytest.mark.parametrize(
    ("name", "loaded", "load_sectors", "stored", "store_sectors"),
    [
        ("global_chunks", 0, 0, 512, 16),
        ("global_words", 128, 4, 0, 0),
        ("global_scattered", 128, 32, 0, 0),
        ("global_one_word", 128, 1, 0, 0),
    ],
)
def test_global_traffic(
    counts: dict[str, dict[str, int]],
    name: str,
    loaded: int,
    load_sectors: int,
    stored: int,
    store_sectors: int,
) -> None:
    count = counts[name]
    assert (count["global_load_bytes"], count["global_load_sectors"]) == (loaded, load_sectors)
    assert (count["global_store_bytes"], count["global_store_sectors"]) == (stored, store_sectors)


def test_instruction_counts(counts: dict[str, dict[str, int]]) -> None:
    warps = 2
    expected = {
        "mma": 6 * warps,
        "ldmatrix": 6 * warps,
        "longest_ldmatrix_run": 5,
        "longest_mma_run": 3,
        "cp_async": warps,
        "cp_async_in_flight_mma": 2 * warps,
        "shuffles": warps,
        "barriers": 2,
    }
    assert {name: counts["runs"][name] for name in expected} == expected


def test_counters_of_blocks_are_added(run: Run) -> None:
    """All counters are added, in whatever order blocks end; of a longest run the maximum is
    kept."""
    text = (CSRC / "emulator/launch.h").read_text()
    names = re.findall(
        r"(\w+) = 0", text[text.index("struct Counters {") : text.index("void add(")]
    )
    expected = {
        name: (100 if name.startswith("longest") else 101) * i for i, name in enumerate(names, 1)
    }
    values = run("counter_sums")
    assert len(values) == 2 * len(names)
    for added in (values[: len(names)], values[len(names) :]):
        assert dict(zip(names, added, strict=True)) == expected


def test_scheduling(run: Run) -> None:
    result = run("scheduling")
    orders = result["orders"]
    assert len(set(orders)) == len(SEEDS)
    for order in orders:  # no warp passes the second barrier before all have passed the first
        assert sorted(order[:8]) == sorted(order[8:]) == list("01234567")
    for fault in result["first_fault"]:  # with one worker and with four
        assert fault.startswith("kernel scheduled, block (1, 2, 1), thread ")
        assert "99 as lane mask" in fault
    for refusal, reason in zip(
        result["refused"],
        [
            "threads is 48",
            "threads is 2048",
            "grid is (1, 0, 1)",
            "cluster is 2, must be 1 to 8 and divide grid.x, 3",
            "cluster is 9",
            "body is empty",
            "never ran",
        ],
        strict=True,
    ):
        assert reason in refusal


def test_more_synchronisations_than_can_be_counted(run: Run) -> None:
    """The race check follows 2^24 - 8 synchronisations in one block, and refuses 2^24."""
    followed, refused = run("many_synchronisations")
    assert followed == ""
    assert "more synchronisations in one block than the race check can count" in refused


def test_memory_that_runs_out_is_an_error_or_does_no_harm(run: Run) -> None:
    """It ends in either case, by the threads that were started before."""
    result = run("want_of_memory")
    assert result["complete"] + result["refused"] == 80
    assert result["complete"] >= 6  # without some of the other three threads


def test_many_blocks_do_not_leak(run: Run) -> None:
    assert run("many_blocks")["grown_kib"] < 4096
