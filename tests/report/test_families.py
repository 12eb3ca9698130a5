"""The description of a configuration, for every operation and family: its fields in words, its
shared memory, and the registers of its warps."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from flashsmith.configs import (
    CONFIG_CLASSES,
    KernelConfig,
    KernelId,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.descriptions import how_it_works
from flashsmith.configs.sm90.forward_legality import TO_TRANSPOSE
from flashsmith.configs.sm90.hardware import register_split
from flashsmith.gpus import REGISTERS_PER_SM
from flashsmith.lab.report import Report
from flashsmith.lab.report.description import explain, regions, roles
from flashsmith.lab.report.model import Step
from flashsmith.lab.report.occupancy import compute_occupancy
from support.paths import ROOT
from support.report import PLAIN, SWIZZLED, sm80_report, sm90_report
from support.sm90_kernels import CONFIGS, LAST

OF_OTHER_OPERATIONS = [cfg for key in ("backward", "decode") for cfg in get_kernel_configs(key)]
ONE_OF_EACH = list({type(cfg): cfg for cfg in OF_OTHER_OPERATIONS}.values())
ALL: list[KernelConfig] = [
    *OF_OTHER_OPERATIONS,
    *get_autotuning_kernel_configs(),
    *get_sm90_autotuning_kernel_configs(),
    *CONFIGS,
]


@pytest.mark.parametrize("config", [PLAIN.config, LAST, *CONFIGS, *ONE_OF_EACH], ids=str)
def test_each_field_has_its_sentence(config: KernelConfig) -> None:
    facts = explain(config)
    assert [fact.field for fact in facts] == [field.name for field in fields(config)]
    for fact in facts:
        assert fact.meaning.endswith(".")
        assert fact.meaning[0].isupper()
        value = getattr(config, fact.field)
        assert fact.value == (str(value) if not isinstance(value, bool) else ("off", "on")[value])


@pytest.mark.parametrize("kind", CONFIG_CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_says_how_its_kernels_work(kind: type[KernelConfig]) -> None:
    said = how_it_works(kind)
    assert said.endswith(".") and ("block" in said or "warpgroups" in said)
    assert not re.search(r"\bdtype:|Raises", said)


def test_regions_are_all_of_shared_memory() -> None:
    for config in ALL:
        found = regions(config)
        assert sum(region.bytes for region in found) == config.shared_memory_bytes
        assert all(region.bytes > 0 for region in found), config


def test_regions_of_the_last_sm90_kernel() -> None:
    found = {r.name: r.bytes for r in regions(LAST)}
    rows = 128 * 2  # bytes of 128 columns
    assert found == {
        "Q": 128 * rows, "K": 2 * 128 * rows, "V": 2 * 128 * rows, "O staging": 128 * rows,
        "queue": 16, "barriers": 8 * (2 * 2 + 4 * 2 + 2),
    }  # fmt: skip
    without = {r.name for r in regions(replace(LAST, tma_store=False))}
    assert "O staging" not in without


def test_producer_registers_are_those_of_the_kernel() -> None:
    source = ROOT / "src/flashsmith/csrc/include/flashsmith/sm90/traits.cuh"
    text = source.read_text()
    cases = {int(n): int(r) for n, r in re.findall(r"case (\d):\s+return \{(\d+), \d+\};", text)}
    default = re.search(r"default:\s+return \{(\d+), \d+\};", text)
    assert default
    ours = {n: (register_split(n) or (0,))[0] for n in (2, 3, 4)}
    assert cases | {4: int(default[1])} == ours
    assert f"kToTranspose = {TO_TRANSPOSE};" in text


def test_with_one_consumer_warpgroup_every_thread_keeps_its_registers() -> None:
    configs = [cfg for cfg in get_sm90_autotuning_kernel_configs() if cfg.n_warpgroups == 1]
    assert configs
    for config in configs:
        loads, computes = roles(config, 112)
        assert loads.registers == computes.registers == 112


def test_roles_take_no_more_registers_than_there_are() -> None:
    for config in get_sm90_autotuning_kernel_configs():
        if config.n_warpgroups == 1:
            continue  # no register moves
        at_launch = 65536 // config.threads_per_block // 8 * 8
        loads, computes = roles(config, at_launch)
        taken = 32 * (loads.warps * loads.registers + computes.warps * computes.registers)
        assert taken <= 32 * (loads.warps + computes.warps) * at_launch <= REGISTERS_PER_SM
        assert loads.warps + computes.warps == config.threads_per_block // 32
        assert sum(computes.holds.values()) < computes.registers
        assert loads.registers < at_launch < computes.registers
        # One thread block fits an SM.
        occupancy = compute_occupancy(
            "sm_90a", at_launch, config.threads_per_block, config.shared_memory_bytes
        )
        assert occupancy.blocks == 1


def test_registers_of_the_last_sm90_kernel() -> None:
    loads, computes = roles(LAST, 168)
    assert (loads.warps, loads.registers, dict(loads.holds)) == (4, 24, {})
    assert (computes.warps, computes.registers) == (8, 240)
    assert dict(computes.holds) == {"O": 64, "S": 64, "P": 32, "Q": 32}
    # If one warpgroup computes, no register moves.
    (alone,) = [c for c in CONFIGS if c.short_form() == "(FP16, 64, 64, 64, 1): wgmma+stages_1"]
    assert [role.registers for role in roles(alone, 200)] == [200, 200]


def test_steps_between_tiles_compare_the_same_work() -> None:
    kernel = sm80_report().groups[0].kernels[1]
    large = KernelId(replace(SWIZZLED.config, B_r=128))
    told = Step(kernel, replace(kernel, instance=large)).quantities
    # The counts are equal, and the mma are twice as many.
    name = "shared-memory wavefronts for 10^6 multiply-adds"
    (found,) = [(before, after) for what, before, after in told if what == name]
    products = 2 * 64 * 64 * 128 / 1e6
    assert found == pytest.approx((1280 / products, 1280 / (2 * products)))


def _told(report: Report) -> dict[str, tuple[float, float]]:
    (step,) = report.groups[0].steps
    return {name: (before, after) for name, before, after in step.quantities}


def test_a_step_of_the_sm90_family_is_told_in_its_counts() -> None:
    told = _told(sm90_report())
    assert told["bytes that wgmma reads of shared memory a visit"] == (163840, 131072)
    assert told["bytes that TMA stores a tile"] == (0, 32768)
    assert told["shuffles a visit"] == (32, 0)
    assert not any("cp.async" in name or "mma with copies" in name for name in told)
    assert not any("wgmma" in name or "TMA" in name for name in _told(sm80_report()))


def test_resources_as_the_results_have_them() -> None:
    """Without nvcc, the figures of resources are those in the results."""
    for report, blocks in ((sm80_report(), 3), (sm90_report(), 1)):
        used = report.groups[0].kernels[1].resources
        assert used
        assert used.occupancy.blocks == blocks
