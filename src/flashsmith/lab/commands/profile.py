"""Profiles kernels and peers under Nsight Compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from flashsmith.configs import KernelId, Workload
from flashsmith.errors import DeviceError, ProfilerError
from flashsmith.lab.bench import launch, ncu
from flashsmith.lab.bench.peers import PEERS, Peer, find_peers
from flashsmith.lab.bench.profile import ALL_METRICS, KernelProfile, tabulate
from flashsmith.lab.commands.device import choose_device
from flashsmith.lab.commands.kernel_words import refuse_other_variants
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Grid, Request
from flashsmith.runtime import find_kernels
from flashsmith.runtime.device import target_of

_GRID = Grid((4096,), tokens=16384, hidden=2048)
Plan = dict[Workload, list[KernelId]]


@dataclass(frozen=True)
class Profiling:
    """A profiling run.

    Attributes:
        peers: Names of peers; None: all that are available.
        repeats: Launches of a kernel to average over.
        out: The folder for ncu's raw reports.
    """

    request: Request
    peers: Sequence[str] | None
    repeats: int
    out: Path


def profile(asked: Profiling, reporter: Reporter) -> Iterator[list[KernelProfile]]:
    """Yields the profiles of each workload, one after the other.

    Raises:
        ProfilerError: ncu is missing or failed, or it saw none of the kernels.
        DeviceError: There is no GPU.
        KernelNotFoundError: A kernel is not in the cache, and FLASHSMITH_BUILD forbids building.
    """
    plan = make_plan(asked.request)
    peers = _choose_peers(asked.peers)
    ncu.find_ncu()
    _require_gpu()
    for peer in peers:
        if why := peer.why_missing():
            reporter.note(f"without {peer.name}: {why}")
    usable = [peer.name for peer in peers if peer.is_available]
    load(plan, "cuda", reporter)
    for number, (workload, instances) in enumerate(plan.items(), 1):
        reporter.note(f"[{number}/{len(plan)}] {workload}: {len(instances)} kernels")
        yield _profile(workload, instances, usable, asked, reporter)


def make_plan(request: Request) -> Plan:
    """Returns the kernels of each workload; a workload has one dtype."""
    plan: Plan = {}
    for d_head, variant, dtype in product(
        request.d_heads, request.variants, request.dtypes or (None,)
    ):
        of_kind = replace(
            request,
            d_heads=(d_head,),
            variants=(variant,),
            dtypes=() if dtype is None else (dtype,),
        )
        instances = of_kind.instances()
        refuse_other_variants(instances, variant)
        for found in sorted({instance.config.dtype for instance in instances}):
            of_dtype = [instance for instance in instances if instance.config.dtype == found]
            for workload in replace(of_kind, dtypes=(found,)).workloads(_GRID):
                plan[workload] = of_dtype
    return plan


def _require_gpu() -> None:
    where, why_not = choose_device(None)
    if where != "cuda":
        raise DeviceError(
            f"profiling needs an NVIDIA GPU of compute capability 8.0 or newer, and {why_not}; "
            "`flashsmith run --device cpu` counts on the emulator"
        )


def _choose_peers(names: Sequence[str] | None) -> list[Peer]:
    if names is None:
        return [peer for peer in PEERS.values() if peer.is_available]
    return find_peers(names)


def load(plan: Plan, device: str, reporter: Reporter) -> None:
    """Builds the kernels before ncu starts, because ncu would also watch the compilers."""
    target = target_of(torch.device(device))
    with reporter.progress() as progress:
        for instances in {tuple(instances): None for instances in plan.values()}:
            find_kernels(instances, target, progress)


def _profile(
    workload: Workload,
    instances: Sequence[KernelId],
    peers: Sequence[str],
    asked: Profiling,
    reporter: Reporter,
) -> list[KernelProfile]:
    kernels = [instance.config.short_form() for instance in instances]
    target = launch.target_command(workload, kernels, peers, asked.repeats)
    name = "ncu_{dtype}_d{d_head}_{mask}_b{batch}_h{heads}_s{seq_len}.csv".format(
        **workload.as_row()
    )
    report = asked.out / name.lower()
    launches, stderr = ncu.profile(target, ALL_METRICS, report)
    for line in stderr.splitlines():
        if line.startswith(launch.LEFT_OUT):
            reporter.note(line)
    reporter.note(f"ncu's raw report is {report}")
    if profiles := tabulate(launches, workload):
        return profiles
    names = ", ".join(sorted({each.kernel for each in launches}))
    raise ProfilerError(f"ncu profiled no kernel that is known here, but {names}; see {report}")
