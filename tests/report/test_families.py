"""What a configuration says by itself, of both families: its fields in words, its shared memory,
the registers of its warps."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.sm90.forward import TO_TRANSPOSE
from flashsmith.report import Report
from flashsmith.report.families import FAMILIES, family_of
from flashsmith.report.model import Step
from flashsmith.report.occupancy import REGISTERS_PER_SM, compute_occupancy
from flashsmith.report.sm90 import PRODUCER_REGISTERS
from support.paths import ROOT
from support.report import PLAIN, SWIZZLED, sm80_report, sm90_report
from support.sm90_kernels import CONFIGS, LAST, PROGRESSION

ALL: list[ForwardKernelConfig] = [
    *get_autotuning_kernel_configs(),
    *get_sm90_autotuning_kernel_configs(),
    *CONFIGS,
]


def test_every_family_is_known() -> None:
    assert {config.family for config in ALL} == set(FAMILIES)


@pytest.mark.parametrize("config", [PLAIN.config, LAST, *CONFIGS], ids=str)
def test_each_field_has_its_sentence(config: ForwardKernelConfig) -> None:
    facts = family_of(config).explain(config)
    assert [fact.field for fact in facts] == [field.name for field in fields(config)]
    for fact in facts:
        assert fact.meaning.endswith(".")
        assert len(fact.meaning) > 20


def test_sentences_follow_the_values() -> None:
    """Where a field differs, so does what is said of it."""
    for other in PROGRESSION[:-1]:
        family = family_of(other)
        for mine, last in zip(family.explain(other), family.explain(LAST), strict=True):
            assert (mine.value == last.value) == (mine.meaning == last.meaning), mine.field


def test_sm80_fragments_are_loaded_some_at_a_time_or_all_at_once() -> None:
    at_a_time = replace(
        PLAIN.config, Q_mma_load_K_tiles=2, K_mma_load_K_tiles=2, V_mma_load_K_tiles=1
    )
    at_once = replace(
        PLAIN.config, Q_mma_load_K_tiles=0, K_mma_load_K_tiles=0, V_mma_load_K_tiles=0
    )
    assert [_said_of_fragments(config) for config in (at_a_time, at_once)] == [
        {
            "Q": "2 of the 8 fragments of Q are loaded at a time.",
            "K": "2 of the 8 fragments of K are loaded at a time.",
            "V": "1 of the 4 fragments of V are loaded at a time.",
        },
        {
            "Q": "All 8 fragments of Q are loaded once, and stay in registers.",
            "K": "All 8 fragments of K are loaded at once, at every visit.",
            "V": "All 4 fragments of V are loaded at once, at every visit.",
        },
    ]


def _said_of_fragments(config: ForwardKernelConfig) -> dict[str, str]:
    facts = family_of(config).explain(config)
    return {
        fact.field[0]: fact.meaning for fact in facts if fact.field.endswith("_mma_load_K_tiles")
    }


def test_regions_are_all_of_shared_memory() -> None:
    for config in ALL:
        regions = family_of(config).shared_memory(config)
        assert sum(region.bytes for region in regions) == config.shared_memory_bytes
        assert all(region.bytes > 0 for region in regions), config


def test_regions_of_the_last_sm90_kernel() -> None:
    regions = {r.name: r.bytes for r in family_of(LAST).shared_memory(LAST)}
    rows = 128 * 2  # bytes of 128 columns
    assert regions == {
        "Q": 128 * rows, "K": 2 * 128 * rows, "V": 2 * 128 * rows, "O staging": 128 * rows,
        "queue": 16, "barriers": 8 * (2 * 2 + 4 * 2 + 2),
    }  # fmt: skip
    without = {r.name for r in family_of(LAST).shared_memory(replace(LAST, tma_store=False))}
    assert "O staging" not in without


def test_producer_registers_are_those_of_the_kernel() -> None:
    source = ROOT / "src/flashsmith/csrc/include/flashsmith/sm90/traits.cuh"
    text = source.read_text()
    cases = {int(n): int(r) for n, r in re.findall(r"case (\d):\s+return \{(\d+), \d+\};", text)}
    default = re.search(r"default:\s+return \{(\d+), \d+\};", text)
    assert default
    assert cases | {4: int(default[1])} == PRODUCER_REGISTERS
    assert f"kToTranspose = {TO_TRANSPOSE};" in text


def test_with_one_consumer_warpgroup_every_thread_keeps_its_registers() -> None:
    configs = [cfg for cfg in get_sm90_autotuning_kernel_configs() if cfg.n_warpgroups == 1]
    assert configs
    for config in configs:
        loads, computes = family_of(config).roles(config, 112)
        assert loads.registers == computes.registers == 112


def test_roles_take_no_more_registers_than_there_are() -> None:
    for config in get_sm90_autotuning_kernel_configs():
        if config.n_warpgroups == 1:
            continue  # no register moves
        at_launch = 65536 // config.threads_per_block // 8 * 8
        loads, computes = family_of(config).roles(config, at_launch)
        taken = 32 * (loads.warps * loads.registers + computes.warps * computes.registers)
        assert taken <= 32 * (loads.warps + computes.warps) * at_launch <= REGISTERS_PER_SM
        assert loads.warps + computes.warps == config.threads_per_block // 32
        assert sum(computes.holds.values()) < computes.registers
        assert loads.registers < at_launch < computes.registers
        # One block a multiprocessor.
        occupancy = compute_occupancy(
            "sm_90a", at_launch, config.threads_per_block, config.shared_memory_bytes
        )
        assert occupancy.blocks == 1


def test_registers_of_the_last_sm90_kernel() -> None:
    loads, computes = family_of(LAST).roles(LAST, 168)
    assert (loads.warps, loads.registers, dict(loads.holds)) == (4, 24, {})
    assert (computes.warps, computes.registers) == (8, 240)
    assert dict(computes.holds) == {"O": 64, "S": 64, "P": 32, "Q": 32}
    # With one warpgroup that computes no register moves.
    (alone,) = [c for c in CONFIGS if c.short_form() == "(FP16, 64, 64, 64, 1): wgmma+stages_1"]
    assert [role.registers for role in family_of(alone).roles(alone, 200)] == [200, 200]


def test_steps_between_tiles_compare_the_same_work() -> None:
    kernel = sm80_report().groups[0].kernels[1]
    large = KernelId(replace(SWIZZLED.config, B_r=128))
    told = Step(kernel, replace(kernel, instance=large)).quantities
    # The same counts for twice the mma.
    name = "shared-memory wavefronts for 1000 mma"
    assert (name, 1280 / 512 * 1000, 1280 / 1024 * 1000) in told


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
    """Where there is no nvcc."""
    for report, blocks in ((sm80_report(), 3), (sm90_report(), 1)):
        used = report.groups[0].kernels[1].resources
        assert used
        assert used.occupancy.blocks == blocks
