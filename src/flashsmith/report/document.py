"""A Report as plain data: the facts of the page, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flashsmith.report.families import family_of_time
from flashsmith.report.model import Group, KernelReport, Report, Resources, Step
from flashsmith.report.results import Profile, Time
from flashsmith.version import __version__

Document = dict[str, Any]


def document_of(report: Report) -> Document:
    """Of dicts, lists, strings, numbers and None alone. Times are milliseconds, sizes bytes."""
    return {
        "flashsmith": __version__,
        "arch": report.arch,
        "gpu": report.results.gpu or None,
        "results": str(report.results.folder) if report.results.folder else None,
        "environment": dict(report.results.environment),
        "missing": dict(report.missing),
        "groups": [_group(report, group) for group in report.groups],
    }


def _group(report: Report, group: Group) -> Document:
    first = group.kernels[0].instance
    rates = None
    if group.sweep:
        rates = report.results.ceiling(group.sweep[0].workload.kind[0], group.sweep[0].run)
    return {
        "family": group.family.name,
        "dtype": str(first.config.dtype),
        "d_head": first.config.d_head,
        "mask": first.variant.name,
        "note": group.note or None,
        "kernels": [_kernel(kernel, group) for kernel in group.kernels],
        "peers": [_time(time) | {"of_fa2": group.of_baseline(time)} for time in group.peers],
        "faster": [_time(time) | {"times_as_fast": ratio} for time, ratio in group.faster],
        "steps": [_step(step) for step in group.steps],
        "profiled_peers": [
            _profile(each) for each in group.profiles if isinstance(each.candidate, str)
        ],
        "bank_maps": [
            {"swizzled": each.swizzled, "wavefronts": each.wavefronts} for each in group.bank_maps
        ],
        "sweep": {
            name: [_time(points[length]) for length in sorted(points)]
            for name, points in group.series.items()
        },
        "rates": rates,
    }


def _kernel(kernel: KernelReport, group: Group) -> Document:
    config = kernel.instance.config
    return {
        "number": kernel.number,
        "kernel": kernel.name,
        "fields": [asdict(fact) for fact in kernel.facts],
        "shared_memory": [asdict(region) for region in kernel.regions],
        "threads_per_block": config.threads_per_block,
        "resources": _resources(kernel.resources) if kernel.resources else None,
        "time": _time(kernel.time) | {"of_fa2": group.of_baseline(kernel.time)}
        if kernel.time
        else None,
        "busy_ms": kernel.busy_ms,
        "busy_share": kernel.busy_share,
        "busiest": kernel.busiest,
        "clock_mhz": kernel.clock_mhz,
        "shared_memory_cycles_per_visit": kernel.shared_cycles,
        "counts": _counts(kernel),
        "machine_code": _code(kernel),
        "profile": _profile(kernel.profile) if kernel.profile else None,
        "profiled_conflicts": kernel.profiled_conflicts,
    }


def _resources(resources: Resources) -> Document:
    occupancy = resources.occupancy
    return {
        "registers": resources.registers,
        "spill_stores": resources.spill_stores,
        "spill_loads": resources.spill_loads,
        "shared_bytes": resources.shared_bytes,
        "roles": [asdict(role) | {"holds": dict(role.holds)} for role in resources.roles],
        "blocks_per_sm": occupancy.blocks,
        "blocks_per_sm_by": dict(occupancy.by_resource),
        "limits": occupancy.limits,
        "warps_per_sm": occupancy.warps,
        "occupancy": occupancy.share,
    }


def _counts(kernel: KernelReport) -> Document | None:
    if kernel.counts is None:
        return None
    counts = kernel.counts
    return {
        "of": str(counts.of),
        "launch": _told(counts.whole),
        "per_visit": _told(counts.per_visit),
        "per_tile": _told(counts.per_tile),
    }


def _told(counts: Mapping[str, float]) -> dict[str, float]:
    """Without what stays at zero, as the page."""
    return {name: n for name, n in sorted(counts.items()) if n}


def _code(kernel: KernelReport) -> Document | None:
    if kernel.code is None:
        return None
    loop = kernel.code.loop
    return {
        "instructions": kernel.code.whole.total,
        "classes": kernel.code.whole.classes,
        "loop": None
        if loop is None
        else {
            "instructions": loop.total,
            "at_least": kernel.code.shortest,
            "classes": loop.classes,
            "opcodes": loop.opcodes,
        },
    }


def _step(step: Step) -> Document:
    return {
        "from": step.before.number,
        "to": step.after.number,
        "changes": step.changes,
        "speedup": step.speedup,
        "headline": step.headline,
        "reason": step.reason,
        "quantities": [
            {"what": what, "before": before, "after": after}
            for what, before, after in step.quantities
        ],
    }


def _time(time: Time) -> Document:
    family = family_of_time(time)
    return {
        "name": time.name,
        "family": family.name if family else None,
        "run": time.run,
        **time.workload.as_row(),
        "ms": time.ms,
        "tflops": time.tflops,
    }


def _profile(profile: Profile) -> Document:
    return {
        "name": profile.name,
        "run": profile.run,
        **profile.workload.as_row(),
        "metrics": profile.metrics,
        "stalls": profile.stalls,
    }
