"""A Report as plain data: the facts of the page, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flashsmith.configs.descriptions import how_it_works
from flashsmith.lab.report.description import Counts, explain, regions
from flashsmith.lab.report.model import Group, KernelReport, Report, Resources, Step
from flashsmith.lab.report.results import Measured, Profile, Time
from flashsmith.lab.report.sass import MachineCode
from flashsmith.version import __version__

Document = dict[str, Any]


def document_of(report: Report) -> Document:
    """Returns a report as dicts, lists, strings, numbers and None; times are milliseconds, sizes
    bytes."""
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
    rates = None
    if group.sweep:
        rates = report.results.ceiling(group.sweep[0].workload.kind[0], group.sweep[0].run)
    return {
        "operation": group.config.operation,
        "family": group.family,
        "dtype": str(group.config.dtype),
        "d_head": group.config.d_head,
        "mask": group.kernels[0].instance.variant.name,
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
        "how_it_works": how_it_works(type(config)),
        "fields": [asdict(fact) for fact in explain(config)],
        "shared_memory": [asdict(region) for region in regions(config)],
        "threads_per_block": config.threads_per_block,
        "functions": [vars(each) | {"code": _code(each.code)} for each in kernel.functions],
        "resources": _resources(kernel.resources) if kernel.resources else None,
        "time": _time(kernel.time) | {"of_fa2": group.of_baseline(kernel.time)}
        if kernel.time
        else None,
        "busy_ms": kernel.busy_ms,
        "busy_share": kernel.busy_share,
        "busiest": kernel.busiest,
        "clock_mhz": kernel.clock_mhz,
        "shared_memory_cycles_per_visit": kernel.shared_cycles,
        "counts": _counts(kernel.counts),
        "machine_code": _code(kernel.code),
        "profile": _profile(kernel.profile) if kernel.profile else None,
        "profiled_conflicts": kernel.profiled_conflicts,
    }


def _resources(resources: Resources) -> Document:
    occupancy = resources.occupancy
    return asdict(resources) | {
        "occupancy": occupancy.share,
        "blocks_per_sm": occupancy.blocks,
        "blocks_per_sm_by": dict(occupancy.by_resource),
        "limits": occupancy.limits,
        "warps_per_sm": occupancy.warps,
    }


def _counts(counts: Counts | None) -> Document | None:
    """Returns the counts without zeros, as on the page."""
    if counts is None:
        return None
    parts: dict[str, Mapping[str, float]] = {
        "launch": counts.whole, "per_visit": counts.per_visit, "per_tile": counts.per_tile
    }  # fmt: skip
    told = {of: {name: n for name, n in sorted(part.items()) if n} for of, part in parts.items()}
    return {"of": counts.of, **told}


def _code(code: MachineCode | None) -> Document | None:
    if code is None:
        return None
    loop = code.loop and {"instructions": code.loop.total, "at_least": code.shortest} | asdict(
        code.loop
    )
    return {"instructions": code.whole.total, "classes": code.whole.classes, "loop": loop}


def _step(step: Step) -> Document:
    return {
        "from": step.before.number,
        "to": step.after.number,
        "changes": step.changes,
        "speedup": step.speedup,
        "headline": step.headline,
        "reason": step.reason,
        "quantities": [
            dict(zip(("what", "before", "after"), each, strict=True)) for each in step.quantities
        ],
    }


def _time(time: Time) -> Document:
    return _measured(time) | {"family": time.family, "ms": time.ms, "tflops": time.tflops}


def _profile(profile: Profile) -> Document:
    return _measured(profile) | {"metrics": profile.metrics, "stalls": profile.stalls}


def _measured(one: Measured) -> Document:
    return {"name": one.name, "run": one.run, **one.workload.as_row()}
