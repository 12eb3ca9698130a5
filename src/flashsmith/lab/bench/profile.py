"""The table of ncu's measurements: a row for each kernel and shape, averaged over its runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashsmith.configs import (
    KernelId,
    Workload,
    is_cpp_name,
    parse_kernel_name_into_instance,
)
from flashsmith.lab.bench.ncu import ProfiledLaunch

# Each column takes the first of its metrics that the GPU has. Percentages of throughput and
# utilisation are relative to what the unit could do in the kernel's whole time.
METRICS = {
    "duration_us": ("gpu__time_duration.sum",),
    "cycles": ("gpc__cycles_elapsed.max",),
    "registers": ("launch__registers_per_thread",),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    # The second metric also counts accesses to global and local memory.
    "bank_conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "l1tex__data_bank_conflicts_pipe_lsu.sum",
    ),
    "dram_percent": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_percent": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "tensor_percent": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    # ex2 runs on the transcendental unit, XU.
    "ex2_percent": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",),
    "issue_percent": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
}
ALL_METRICS = tuple(metric for metrics in METRICS.values() for metric in metrics)
_WHOLE = ("cycles", "registers", "bank_conflicts")

# The metric is the mean number of warps that wait for a reason whenever a warp issues. The warp
# that issues is "selected", which is no stall.
_STALL = re.compile(
    r"smsp__average_warps_issue_stalled_(?!selected_)(\w+?)(?:_stall)?_per_issue_active\.ratio"
)

# A peer's other kernels, which schedule or combine, do not count as its attention.
_PEER_KERNELS = {
    "fa2": re.compile(r"\bflash_fwd(_splitkv)?_kernel\b"),
    "cudnn": re.compile(r"cudnn\w*_sdpa_\w*fprop"),
    "fa3": re.compile(r"\bFlashAttnFwdSm\d+"),
    "fa4": re.compile(r"FlashAttentionForwardSm\d+"),
    "flex": re.compile(r"triton_\w*flex_attention"),
}
_BASELINE = "fa2"
_FLOP_PER_US_AND_TFLOPS = 1e6


@dataclass(frozen=True)
class KernelProfile:
    """The mean of a kernel's runs on one workload; None is what the GPU does not report."""

    kernel: str
    workload: Workload
    runs: int
    metrics: dict[str, float | None]  # by METRICS' names
    stalls: dict[str, float]  # by reason, the largest first
    tflops: float | None  # softmax included; None for a peer, whose blocks are not known
    attn_tflops: float | None  # the matrix products
    percent_of_baseline: float | None

    def as_row(self) -> dict[str, Any]:
        """Returns a flat row for CSV and JSON, with stalls as `stall_<reason>`."""
        return {
            "kernel": self.kernel,
            **self.workload.as_row(),
            "runs": self.runs,
            **self.metrics,
            "tflops": _rounded(self.tflops),
            "attn_tflops": _rounded(self.attn_tflops),
            "percent_of_baseline": _rounded(self.percent_of_baseline),
            **{f"stall_{reason}": self.stalls[reason] for reason in sorted(self.stalls)},
        }


def identify(kernel: str) -> KernelId | str | None:
    """Returns our kernel with this name, or the name of the peer that has such kernels, or None.

    Raises:
        ValueError: The kernel is ours, but its configuration cannot be read.
    """
    if is_cpp_name(kernel):
        return parse_kernel_name_into_instance(kernel)
    return next((peer for peer, name in _PEER_KERNELS.items() if name.search(kernel)), None)


def tabulate(launches: Sequence[ProfiledLaunch], workload: Workload) -> list[KernelProfile]:
    """Returns a profile of each kernel of a workload, in the order of their first launches.

    The baseline is FA2 if it ran, else the first kernel. Unknown kernels are left out.
    """
    groups: dict[KernelId | str, list[ProfiledLaunch]] = {}
    for launch in launches:
        owner = identify(launch.kernel)
        if owner is not None:
            groups.setdefault(owner, []).append(launch)
    averages = {owner: _average(group) for owner, group in groups.items()}
    baseline = _BASELINE if _BASELINE in averages else next(iter(averages), None)
    baseline_us = averages[baseline]["duration_us"] if baseline else None
    return [
        _make_profile(owner, workload, group, averages[owner], baseline_us)
        for owner, group in groups.items()
    ]


def _make_profile(
    owner: KernelId | str,
    workload: Workload,
    group: list[ProfiledLaunch],
    metrics: dict[str, float | None],
    baseline_us: float | None,
) -> KernelProfile:
    duration_us = metrics["duration_us"]
    tflops = attn_tflops = percent = None
    if duration_us:
        attn_tflops = workload.flop / duration_us / _FLOP_PER_US_AND_TFLOPS
        percent = 100 * baseline_us / duration_us if baseline_us else None
        if isinstance(owner, KernelId):
            problem = workload.problem
            shape = (problem.batch, problem.heads, problem.seq_len_q)
            softmax_share = owner.config.total_flop(*shape) / owner.config.attn_flop(*shape)
            tflops = attn_tflops * softmax_share
    return KernelProfile(
        str(owner), workload, len(group), metrics, _stalls(group), tflops, attn_tflops, percent
    )


def _average(group: Sequence[ProfiledLaunch]) -> dict[str, float | None]:
    return {
        column: _rounded(_mean(group, names), 0 if column in _WHOLE else 3)
        for column, names in METRICS.items()
    }


def _mean(group: Sequence[ProfiledLaunch], names: Sequence[str]) -> float | None:
    for name in names:
        values = [launch.metrics[name] for launch in group if name in launch.metrics]
        if values:
            return statistics.fmean(values)
    return None


def _stalls(group: Sequence[ProfiledLaunch]) -> dict[str, float]:
    """Returns the mean number of waiting warps whenever a warp issues, by reason."""
    means = {
        match[1]: round(_mean(group, [name]) or 0.0, 3)
        for name in group[0].metrics
        if (match := _STALL.fullmatch(name))
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _rounded(value: float | None, digits: int = 2) -> float | None:
    if value is None:
        return None
    return round(value, digits or None)  # round(value, None) is an int
