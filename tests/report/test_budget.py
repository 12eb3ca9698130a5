"""The minimum time of each unit, against arithmetic that shares nothing with the package."""

from __future__ import annotations

import pytest

from flashsmith.configs import DType, KernelId, Workload, parse_kernel_name_into_config
from flashsmith.lab.report.budget import UNITS, busy_ms, find_machine
from flashsmith.lab.report.description import Counts
from flashsmith.lab.report.sass import MachineCode, Mix
from support.report import LAST_SM90, LAST_SM90_CAUSAL, PLAIN, SWIZZLED, sm80_report, sm90_report
from support.workloads import square

WORKLOAD = square(DType.BF16, 128, "full", batch=4, heads=16, seq_len=4096)
CAUSAL_WORKLOAD = square(DType.BF16, 128, "causal", batch=4, heads=16, seq_len=4096)
SCORES = 4 * 16 * 4096 * 4096
GHZ = 1.0  # a cycle takes a nanosecond
SMS = 132


def ms(cycles_of_one_sm: float) -> float:
    """Returns milliseconds, for a number of cycles of one SM that all SMs share."""
    return cycles_of_one_sm / SMS / (GHZ * 1e9) * 1e3


def code(shortest: int) -> MachineCode:
    empty = Mix({}, {})
    return MachineCode(empty, empty, shortest)


def counts_of(visit: dict[str, float], tile: dict[str, float]) -> Counts:
    names = (
        "shared_wavefronts", "wgmma_shared_bytes", "tma_load_bytes", "tma_store_bytes",
        "global_load_bytes", "mma", "wgmma_flops",
    )  # fmt: skip
    zero = dict.fromkeys(names, 0.0)
    return Counts("one head", {}, zero | visit, zero | tile)


def busy(
    instance: KernelId, workload: Workload, counts: Counts | None, shortest: int = 0
) -> dict[str, float]:
    machine = find_machine("NVIDIA H200", "sm_90a", 1e3 * GHZ)
    assert machine
    return busy_ms(instance, workload, machine, counts, code(shortest))


def test_busy_time_of_an_sm80_kernel() -> None:
    # A tile of 64 rows visits 64 blocks of 64 keys: 8448 wavefronts each, and 300 beside them.
    counts = counts_of(
        {"shared_wavefronts": 8448, "global_load_bytes": 32768},
        {"shared_wavefronts": 300, "global_load_bytes": 16384},
    )
    found = busy(PLAIN, WORKLOAD, counts, shortest=500)
    assert list(found) == list(UNITS)
    tiles = 4 * 16 * 64
    assert found["shared memory"] == pytest.approx(ms(tiles * (64 * 8448 + 300)))
    # 4 FLOP for each score and column of d_head; 4096 FLOP a cycle.
    assert found["tensor cores"] == pytest.approx(ms(4 * SCORES * 128 / 4096))
    # Four warps have 500 instructions for a visit; four are issued a cycle.
    assert found["issue slots"] == pytest.approx(ms(tiles * 64 * 500))
    # There is one exponential for each score, and 16 a cycle.
    assert found["exponentials"] == pytest.approx(ms(SCORES / 16))
    # All SMs together load 5120 bytes a cycle.
    loaded = tiles * (64 * 32768 + 16384)
    assert found["L2 cache"] == pytest.approx(loaded / 5120 / 1e9 * 1e3)


def test_busy_time_of_an_sm90_kernel() -> None:
    # A tile of 128 rows visits 32 blocks of 128 keys.
    counts = counts_of(
        {"wgmma_shared_bytes": 131072, "tma_load_bytes": 65536},
        {"tma_load_bytes": 32768, "tma_store_bytes": 32768, "shared_wavefronts": 512},
    )
    found = busy(LAST_SM90, WORKLOAD, counts, shortest=344)
    assert list(found) == list(UNITS)
    tiles = 4 * 16 * 32
    in_visits, beside = 131072 + 65536, 32768 + 32768 + 512 * 128
    assert found["shared memory"] == pytest.approx(ms(tiles * (32 * in_visits + beside) / 128))
    assert found["tensor cores"] == pytest.approx(ms(4 * SCORES * 128 / 4096))
    # Eight warps compute.
    assert found["issue slots"] == pytest.approx(ms(tiles * 32 * 8 * 344 / 4))
    assert found["exponentials"] == pytest.approx(ms(SCORES / 16))
    loaded = tiles * (32 * 65536 + 32768)
    assert found["L2 cache"] == pytest.approx(loaded / 5120 / 1e9 * 1e3)


def test_polynomials_take_work_from_the_special_function_units() -> None:
    name = "(BF16, 128, 128, 128, 2): wgmma+stages_2+overlap+lazy_8+fma_exp_4"
    some = KernelId(parse_kernel_name_into_config(name))
    assert busy(some, WORKLOAD, None)["exponentials"] == pytest.approx(ms(SCORES / 16 * 12 / 16))


def test_a_multicast_is_loaded_once_and_lands_twice() -> None:
    name = (
        "(BF16, 128, 128, 64, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+tiles"
        "+heads_2+cluster_2+lazy_8+stale+tma_store"
    )
    cluster = KernelId(parse_kernel_name_into_config(name))
    found = busy(cluster, WORKLOAD, counts_of({"tma_load_bytes": 16384}, {"tma_load_bytes": 32768}))
    tiles = 4 * 16 * 32
    assert found["shared memory"] == pytest.approx(ms(tiles * (64 * 2 * 16384 + 32768) / 128))
    loaded = tiles * (64 * 16384 + 32768)
    assert found["L2 cache"] == pytest.approx(loaded / 5120 / 1e9 * 1e3)


def test_a_causal_mask_leaves_the_blocks_at_and_below_the_diagonal() -> None:
    # Tile i of 128 rows visits i + 1 of 32 blocks of 128 keys.
    scores = 4 * 16 * 128 * 128 * (32 * 33 // 2)
    found = busy(LAST_SM90_CAUSAL, CAUSAL_WORKLOAD, None)
    assert found == {
        "tensor cores": pytest.approx(ms(4 * scores * 128 / 4096)),
        "exponentials": pytest.approx(ms(scores / 16)),
    }


def test_warpgroups_that_let_blocks_pass_do_not_work_on_them() -> None:
    """Three warpgroups have 64 rows each, and blocks have 16 keys: in the tile with rows 0 to 191
    they compute the first 4, 8 and 12 blocks."""
    name = "(BF16, 64, 192, 16, 3): wgmma+stages_8+overlap+persistent+queue+heads_1+tma_store"
    config = parse_kernel_name_into_config(name)
    instance = KernelId(config, LAST_SM90_CAUSAL.variant)
    workload = square(DType.BF16, 64, "causal", batch=1, heads=1, seq_len=192)
    # At most n_stages - 1 = 7 blocks may be skipped, so that the first warpgroup computes one too
    # many.
    scores = 64 * 16 * (5 + 8 + 12)
    assert busy(instance, workload, None)["exponentials"] == pytest.approx(ms(scores / 16))


def test_an_unknown_machine_has_no_budget() -> None:
    assert find_machine("NVIDIA H200", "sm_90a", None) is None
    assert find_machine("Some GPU", "sm_90a", 1000.0) is None
    h100 = find_machine("NVIDIA H100 PCIe", "sm_90a", 1000.0)
    assert h100
    assert h100.sm_count == 114


def test_no_unit_is_busy_for_longer_than_the_kernel_took() -> None:
    for report in (sm80_report(), sm90_report()):
        for kernel in report.groups[0].kernels:
            assert kernel.time
            assert kernel.busy_ms
            assert all(0 < share < 1 for share in kernel.busy_share.values()), kernel.name


def test_bank_conflicts_explain_the_first_step() -> None:
    """Kernel 1 waits for shared memory."""
    (group,) = sm80_report().groups
    (step,) = group.steps
    assert step.changes == ["swizzled off to on"]
    assert step.headline == "5.9 times as fast"
    assert step.before.busiest == "shared memory"
    assert 0.9 < step.before.busy_share["shared memory"] < 1
    assert "85% less work" in step.reason
    told = {name: (before, after) for name, before, after in step.quantities}
    assert told["of these bank conflicts"] == (7168, 0)
    assert step.after.instance == SWIZZLED
