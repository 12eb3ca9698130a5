"""The emulated sm_90 instructions against plain computation, their rules, and their wrappers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flashsmith.errors import ToolchainError
from flashsmith.jit import find_cuda_toolkit
from support.emulator_program import CXX, DEVICE_CASES, SEEDS, Run
from support.paths import CSRC

needs_cxx = pytest.mark.skipif(CXX is None, reason="needs a C++20 compiler (set CXX)")

RACE = r"race: not ordered after"
UNORDERED = rf"({RACE}|in flight|uninitialised)"  # which one comes first varies
READS = r"of warp [01] is in flight there: nothing has used its registers"
UNWAITED = "comes before wait_for_launch_before"
FENCE = r"has written: needs a fence_proxy_async after that"

FAULTS = {
    "barrier_not_initialised": r"no mbarrier_init has run at shared-memory offset 0",
    "barrier_init_not_ordered": rf"(no mbarrier_init has run|{RACE} mbarrier_init)",
    "barrier_init_twice": r"mbarrier_init at .* writes shared-memory offset 0, which is an mbarr",
    "barrier_loaded": r"load_shared<4>: reads shared-memory offset 0, which is an mbarrier",
    "barrier_misaligned": r"offset 4 is misaligned: must be a multiple of 8",
    "barrier_without_count": r"0 arrivals: must be 1 to 1048575",
    "barrier_of_too_many": r"1048576 arrivals: must be 1 to 1048575",
    "barrier_bytes_too_many": r"1048576 bytes: must be 0 to 1048575",
    "barrier_bytes_negative": r"-16 bytes: must be 0 to 1048575",
    "barrier_bytes_too_many_together": r"the transaction count leaves its range of 2\^20 - 1 in",
    "barrier_arrivals": r"one arrival too many in the mbarrier at shared-memory offset 0",
    "barrier_deadlock": r"deadlock: .*lane 0 waits at mbarrier_wait_parity .* lacks 1 of 2 arriv",
    "barrier_bytes_lack": r"deadlock: .* lacks 0 of 1 arrivals and 16 bytes",
    "barrier_bytes_unexpected": r"1024 bytes more than expected are copied",
    "barrier_parity": r"2 as parity: must be 0 to 1",
    "load_not_waited_for": r"reads .* while tma_load of lane 0 is in flight there: no mbarrier_w",
    "load_waited_for_by_another_warp": rf"load_shared<16>: reads .* {UNORDERED}",
    "load_waited_for_by_one_lane": rf"load_shared<16>: reads .* {RACE} tma_load",
    "load_of_another_barrier": r"reads .* while tma_load of lane 0 is in flight",
    "load_never_waited_for": r"block ends while tma_load is in flight: nobody has waited",
    "load_barrier_not_fenced": r"tma_load: no fence_mbarrier_init has made it known",
    "load_over_reads": rf"tma_load: writes .* ({RACE} load_shared|load_shared {READS})",
    "load_over_reads_of_a_lane_that_arrived": rf"tma_load: writes .* {RACE} load_shared of warp 1",
    "load_over_unfenced_stores": rf"tma_load: writes .* store_shared of warp 0, lane 0 {FENCE}",
    "read_in_flight_at_the_arrival": rf"ldmatrix_x4 {READS}",
    "read_in_flight_after_a_warp_sync": rf"ldmatrix_x4 {READS}",
    "read_in_flight_after_a_barrier": rf"ldmatrix_x4 {READS}",
    "read_used_after_the_arrival": rf"ldmatrix_x4 {READS}",
    "read_of_which_one_of_two_is_used": rf"ldmatrix_x4 {READS}",
    "read_into_registers_that_a_later_one_takes": rf"ldmatrix_x4 {READS}",
    "read_fenced_by_one_lane": rf"ldmatrix_x4 {READS}",
    "read_by_plain_loads_in_flight": rf"load_shared {READS}",
    "read_in_flight_in_another_block": rf"ldmatrix_x4 {READS}",
    "read_in_two_ways": rf"thread_store_shared: writes .* {RACE} load_shared of warp 1",
    "read_as_a_whole_and_stored_by_a_lane": rf"thread_store_shared: writes .* {RACE} ldmatrix_x4",
    "load_twice": r"tma_load: writes .* while tma_load of lane 0 is in flight",
    "load_misaligned": r"offset 1088 is misaligned: must be a multiple of 128",
    "load_past_end": r"1024 bytes at shared-memory offset 16384 are out of bounds",
    "load_half_past_end": r"1024 bytes at shared-memory offset 16256 are out of bounds",
    "load_of_a_row_half_outside": r"128 bytes at global address 0x[0-9a-f]+ are out of bounds",
    "load_rank": r"3 coordinates for a tensor map of rank 2",
    "load_outside_tensors": r"128 bytes at global address 0x[0-9a-f]+ are out of bounds",
    "load_with_bad_map": r"the tensor map has box rows that are not as long as its swizzle",
    "load_with_odd_rows": r"the tensor map has rows that are no multiple of 16 bytes",
    "load_between_chunks": r"the box begins at column 1, which is no multiple of 16 bytes",
    "store_before_the_tensor": r"tma_store: the box begins before the tensor",
    "store_not_fenced": rf"reads .* store_shared of warp 0, lane 0 {FENCE}",
    "store_before_barrier": rf"tma_store_wait_group_read at .* reads .* ({RACE}|{FENCE})",
    "store_not_waited_for": r"returns from the kernel while tma_store reads shared memory",
    "store_not_committed": r"returns from the kernel while tma_store reads shared memory",
    "store_overwritten": rf"tma_store_wait_group_read at .* ({RACE} store_sh|{FENCE})",
    "store_waited_for_by_another": rf"{RACE} (tma_store|store_shared)",
    "store_to_read_only": r"tma_store: global address 0x[0-9a-f]+ is read-only: input, byte 0",
    "row_not_waited_for": r"reads .* while bulk_load of lane 0 is in flight there: no mbarrier_w",
    "row_never_waited_for": r"block ends while bulk_load is in flight: nobody has waited",
    "row_over_reads": rf"bulk_load: writes .* ({RACE} load_shared|load_shared {READS})",
    "row_over_unfenced_stores": rf"bulk_load: writes .* store_shared of warp 0, lane 0 {FENCE}",
    "row_over_a_sum_in_flight": r"tma_store_wait_group_read at .* while bulk_load of lane 0 is in",
    "row_of_part_of_a_chunk": r"bulk_load: 24 bytes: must be a positive multiple of 16",
    "row_of_nothing": r"bulk_load: 0 bytes: must be a positive multiple of 16",
    "row_misaligned": r"bulk_load: global address .* is misaligned: must be a multiple of 16",
    "row_to_misaligned": r"bulk_load: shared-memory offset 1032 is misaligned: .* multiple of 16",
    "row_past_end": r"bulk_load: 32 bytes at global address 0x[0-9a-f]+ are out of bounds",
    "sum_not_fenced": rf"reads .* store_shared of warp 0, lane 0 {FENCE}",
    "sum_before_barrier": rf"tma_store_wait_group_read at .* reads .* ({RACE}|{FENCE})",
    "sum_not_waited_for": r"returns from the kernel while bulk_add reads shared memory",
    "sum_not_committed": r"returns from the kernel while bulk_add reads shared memory",
    "sum_overwritten": rf"tma_store_wait_group_read at .* ({RACE} store_sh|{FENCE})",
    "sum_waited_for_by_another": rf"{RACE} (bulk_add|store_shared)",
    "sum_into_read_only": r"bulk_add: global address 0x[0-9a-f]+ is read-only: input, byte 0",
    "sum_past_end": r"bulk_add: 16 bytes at global address 0x[0-9a-f]+ are out of bounds",
    "sum_of_part_of_a_chunk": r"bulk_add: 4 bytes: must be a positive multiple of 16",
    "handed_on_to_nobody": rf"{RACE} bulk_(store|add) of the same bytes in global memory",
    "handed_on_before_it_is_written": rf"bulk_add: {RACE} bulk_store of the same bytes in global",
    "handed_on_without_a_fence": rf"bulk_add: {RACE} bulk_store of the same bytes in global",
    "read_before_it_is_handed_on": rf"bulk_load: {RACE} bulk_add of the same bytes in global",
    "counted_before_it_is_written": rf"bulk_load: {RACE} bulk_add of the same bytes in global",
    "replaced_before_it_is_written": rf"bulk_load: {RACE} bulk_add of the same bytes in global",
    "waits_beside_one_who_polls": r"deadlock: .* wait_global at .* memory that is 0",
    "waits_for_one_who_has_returned": r"deadlock: .* wait_global at .* global memory that is 1",
    "waits_for_each_other": r"deadlock: .* wait_global at .* a word in global memory that is 0",
    "waits_for_a_block_that_never_starts": r"deadlock: .* wait_global at .* that is 0",
    "word_read_only": r"release_global at .*: global address 0x[0-9a-f]+ is read-only: input",
    "word_past_end": r"wait_global at .*: 4 bytes at .* are out of bounds of every tensor",
    "thread_store_read_only": r"lane 3\): thread_store_global: global address .* is read-only",
    "thread_load_past_end": r"lane 3\): thread_load_global: 2 bytes at .* are out of bounds",
    "thread_load_misaligned": r"lane 3\): thread_load_global: .* is misaligned: .* multiple of 4",
    "thread_store_past_end": r"thread_store_global: .* nearest below: output, byte 8192 of 8192",
    "wgmma_uninitialised": r"reads shared-memory offset 1024, which is uninitialised",
    "wgmma_operand_not_fenced": rf"wgmma_wait_group at .* store_shared of .* {FENCE}",
    "word_read_before_the_wait": rf"thread_load_global: {UNWAITED}",
    "word_written_before_the_wait": rf"thread_store_global: {UNWAITED}",
    "counted_before_the_wait": rf"thread_atomic_add: {UNWAITED}",
    "arrived_before_the_wait": rf"thread_arrive_global: {UNWAITED}",
    "added_to_before_the_wait": rf"thread_add_global: {UNWAITED}",
    "replaced_before_the_wait": rf"thread_replace_global: {UNWAITED}",
    "polled_before_the_wait": rf"thread_poll_global: {UNWAITED}",
    "handed_on_before_the_wait": rf"release_global: {UNWAITED}",
    "looked_for_before_the_wait": rf"wait_global: {UNWAITED}",
    "row_read_before_the_wait": rf"load_global: {UNWAITED}",
    "row_written_before_the_wait": rf"store_global: {UNWAITED}",
    "row_copied_before_the_wait": rf"cp_async_16: {UNWAITED}",
    "added_before_the_wait": rf"add_global: {UNWAITED}",
    "box_loaded_before_the_wait": rf"tma_load: {UNWAITED}",
    "bytes_loaded_before_the_wait": rf"bulk_load: {UNWAITED}",
    "box_stored_before_the_wait": rf"tma_store: {UNWAITED}",
    "bytes_stored_before_the_wait": rf"bulk_store: {UNWAITED}",
    "bytes_added_before_the_wait": rf"bulk_add: {UNWAITED}",
    "read_where_another_thread_has_waited": rf"load_global: {UNWAITED}",
    "next_launch_begins_before_the_wait": rf"let_next_launch_begin: {UNWAITED}",
    "wgmma_operand_not_ordered": rf"wgmma_wait_group at .* {UNORDERED}",
    "wgmma_operand_in_flight": rf"wgmma_wait_group at .* reads .* {UNORDERED}",
    "wgmma_operand_overwritten": rf"wgmma_wait_group .* {RACE} store_shared of .* \(needs a wait",
    "wgmma_operand_overwritten_after_one_wait": rf"({RACE} wgmma|tma_load .* in flight|{RACE} tma)",
    "wgmma_registers_not_fenced": r"wgmma: its registers were .* needs a wgmma_fence first",
    "wgmma_registers_not_fenced_again": r"wgmma: its registers were .* needs a wgmma_fence",
    "wgmma_accumulators_written": r"accumulator register 3 was written while wgmma was in flight",
    "wgmma_a_written": r"registers of a were written while wgmma was in flight",
    "wgmma_not_waited_for": r"returns from the kernel while wgmma is in flight",
    "wgmma_not_committed": r"returns from the kernel while wgmma is in flight",
    "wgmma_of_one_warp": r"deadlock: .* warp 0 waits at wgmma_wait_group .* warp 1 has returned",
    "wgmma_of_two_kinds": r"wgmma: another warp of the warpgroup executes a different one",
    "wgmma_of_two_operands": r"wgmma: the lanes of the warp give different operands",
    "wgmma_base_offset": r"a matrix descriptor with a base offset is not emulated",
    "wgmma_past_end": r"16 bytes at shared-memory offset 16384 are out of bounds",
    "wgmma_outside_warpgroup": r"the warp belongs to no warpgroup",
    "named_deadlock": r"deadlock: .*; warp 0 waits at named_barrier_sync<3> at",
    "named_barrier_of_two_sizes": r"(barrier 1 for (64|96) threads, but others|deadlock)",
    "named_barrier_of_part_of_a_warp": r"48 threads: must be whole warps",
    "named_barrier_number": r"16 as barrier: must be 0 to 15",
    "named_barrier_left_over": r"block ends while threads have arrived at barrier 1",
    "named_barrier_orders_only_its_warps": rf"load_shared<16>: reads .* {UNORDERED}",
    "named_arrival_orders_nothing_after": rf"load_shared<16>: reads .* {UNORDERED}",
    "named_barrier_forgets_the_pair_before": rf"load_shared<16>: reads .* {UNORDERED}",
    "registers_exhausted": r"deadlock: .* waits at set_register_count",
    "registers_of_one_warp": r"set_register_count has not run in all warps of the warpgroup",
    "registers_decreased_to_more": r"the threads have only 168 registers",
    "cluster_arrival_before_init": rf"(no mbarrier_init has run|{RACE} mbarrier_init .* cluster_s)",
    "cluster_arrival_nobody_waits_for": r"(the block of rank 0 has ended|may yet arrive at an mba)",
    "cluster_arrival_of_no_block": r"no block of rank 2: the cluster has 2",
    "cluster_deadlock": r"deadlock: no thread of the cluster .* rank 1; warp 0, lane 0 waits at mb",
    "multicast_to_nobody": r"a mask of no block",
    "multicast_to_no_block": r"no block of rank 2: the cluster has 2",
    "multicast_not_waited_for": rf"load_shared<16>: reads .* {UNORDERED}",
    "multicast_before_init": rf"(no mbarrier_init has run|{RACE} mbarrier_init|no fence_mbarrier)",
    "multicast_over_reads": rf"tma_load: writes .* ({RACE} (load_sh|tma_load)|load_shared {READS})",
}  # fmt: skip


@needs_cxx
@pytest.mark.parametrize(
    ("case", "tested"),
    [
        ("products", 134),
        ("copies", 61),
        ("varlen", 48),
        ("sums", 8),
        ("scores", 10),
        ("bytes", 14),
        ("barriers", 20),
        ("clusters", 80),
        ("warps", 15),
    ],
)
def test_instructions_equal_plain_computation(run: Run, case: str, tested: int) -> None:
    assert run(f"sm90_{case}") == {"tested": tested, "failed": []}


@pytest.fixture(scope="session")
def messages(run: Run) -> list[dict[str, str]]:
    """Returns, for each seed, the fault that each case reported, or ""."""
    return [run("sm90_faults", str(seed)) for seed in SEEDS]


@needs_cxx
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed_in_any_warp_order(name: str, messages: list[dict[str, str]]) -> None:
    for by_name in messages:
        assert re.search(FAULTS[name], by_name[name]), by_name[name]
        assert re.match(rf"kernel {name}, block \([01], 0, 0\), thread ", by_name[name])


@needs_cxx
def test_correct_kernels_have_no_fault(messages: list[dict[str, str]]) -> None:
    clean = {name for name in messages[0] if name.startswith("clean_")}
    assert len(clean) == 27
    assert clean | set(FAULTS) == set(messages[0])
    for by_name in messages:
        assert {by_name[name] for name in clean} == {""}


@pytest.fixture(scope="session")
def pipeline(run: Run) -> dict[str, Any]:
    """Fails unless the product is right, and the same to the bit for 10 seeds."""
    result: dict[str, Any] = run("sm90_pipeline")
    return result


@needs_cxx
def test_dropped_synchronisation_is_noticed(pipeline: dict[str, Any]) -> None:
    kinds = {site.split(":")[0] for site in pipeline["sites"]}
    assert kinds == {
        "barrier_sync", "warp_sync", "named_barrier_sync",
        "mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_wait_parity",
        "fence_mbarrier_init", "fence_proxy_async",
        "tma_store_commit_group", "tma_store_wait_group", "tma_store_wait_group_read",
        "wgmma_fence", "wgmma_commit_group", "wgmma_wait_group",
    }  # fmt: skip
    assert len(pipeline["sites"]) == 24
    for site, by_seed in pipeline["sites"].items():
        assert len(by_seed) == len(SEEDS)
        assert all(by_seed), f"{site} dropped: not noticed for some seed"


@needs_cxx
def test_counts(pipeline: dict[str, Any]) -> None:
    tiles, steps, groups, blocks, warps = 3, 2, 2, 2, 8
    draws = tiles + blocks  # each block draws once more, and finds no tile
    products = tiles * steps * groups * 4  # of 64 x 64 x 16
    expected = {
        "wgmma": products,
        "wgmma_flops": products * 2 * 64 * 64 * 16,
        "wgmma_shared_bytes": products * (64 + 64) * 16 * 2,
        "tma_loads": tiles * steps * 2,
        "tma_load_bytes": tiles * steps * (128 + 64) * 64 * 2,
        "tma_stores": tiles * groups,
        "tma_store_bytes": tiles * groups * 64 * 64 * 2,
        # The producer arrives at each tile and step, and so does one lane of each consumer warp.
        "mbarrier_arrivals": draws * (1 + warps) + tiles * steps * (1 + warps),
        "named_barriers": tiles * groups * 2,
    }
    assert {name: pipeline[name] for name in expected} == expected
    assert pipeline["mbarrier_waits"] > 0


@needs_cxx
def test_sums_of_8_bit_products_are_as_rough_as_the_cards(run: Run) -> None:
    """Nothing below 1 is kept from 8192 on, or below 2 from 16384 on, whatever its sign; this holds
    for the sums as well."""
    found = run("sm90_rough_sums")
    assert found["kept"] == [8195, 16384, 0.375]
    assert found["lost"] == [8192, 8193, 8191, 16384, 1, 31 * 240]
    assert found["not finite"] == [1, 1, 1]


def test_wrappers_compile_for_sm_90a(tmp_path: Path) -> None:
    try:
        toolkit = find_cuda_toolkit()
    except ToolchainError:
        pytest.skip("needs nvcc")
    source = DEVICE_CASES / "sm90_wrappers.cu"
    done = subprocess.run(
        [
            str(toolkit.nvcc.path), "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a",
            f"-I{CSRC / 'include'}", "-Xptxas", "-v", "-c", str(source),
            "-o", str(tmp_path / "wrappers.o"),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Performance Loss" not in done.stderr  # serialised wgmma, ignored setmaxnreg
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spills) == 17
    assert set(spills) == {"0"}
