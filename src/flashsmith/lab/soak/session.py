"""Runs a soak of many kernels on many cases, and tallies the verdicts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from flashsmith.configs import KernelId
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.check import RERUNS, Verdict, check, takes
from flashsmith.lab.soak.draw import EMULATOR, Extent, gpu_extent, random_case, tile_boundary_cases
from flashsmith.lab.soak.launches import prepare_for
from flashsmith.lab.soak.load import CardLoad

RERUNS_ON_EMULATOR = 2  # finding a race there does not depend on luck
Work = tuple[SoakCase, Sequence[KernelId]]


@dataclass
class Tally:
    """The verdicts on one kernel."""

    instance: KernelId
    cases: int = 0  # including refused ones
    reruns: int = 0
    ratios: dict[str, float] = field(default_factory=dict)  # the verdicts' maximum
    failures: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.cases += 1
        self.reruns += verdict.reruns
        for name, ratio in verdict.ratios.items():
            self.ratios[name] = max(self.ratios.get(name, 0.0), ratio)
        if not verdict.ok:
            self.failures.append(verdict)


@dataclass(frozen=True, kw_only=True)
class SoakPlan:
    """The length and thoroughness of a soak.

    Attributes:
        tile_boundaries: Whether cases at each kernel's tile boundaries come first.
        random_cases: Number of random cases for each group of kernels that can share cases; None:
            as many as there is time for.
        seconds: Time limit; None: all cases are run.
        min_cases: Number of cases that each kernel gets even beyond ``seconds``: a slow or shared
            GPU makes a soak longer, not thinner.
        reruns: Number of reruns of a case; on a GPU, repeated beside another stream.
        seed: The seed of the random cases.
    """

    tile_boundaries: bool = True
    random_cases: int | None = 20
    seconds: float | None = None
    min_cases: int = 0
    reruns: int = RERUNS
    seed: int = 0


def extent_of(device: str) -> Extent:
    if device == "cpu":
        return EMULATOR
    return gpu_extent(torch.cuda.get_device_properties(device).multi_processor_count)


def soak(
    kernels: Sequence[KernelId],
    plan: SoakPlan,
    device: str,
    report: Callable[[Verdict], None] = lambda _: None,
    tallies: dict[KernelId, Tally] | None = None,
) -> dict[KernelId, Tally]:
    """Runs kernels on cases until the plan is done.

    The tensors and the reference of a case are made once for all kernels that take it. Cases at
    tile boundaries come before random ones, and groups of kernels take turns, so that a time limit
    cuts all of them alike.

    Args:
        kernels: Must be legal for ``device``; they are loaded, or built one by one.
        report: Called with every verdict.
        tallies: Filled and returned, so that a caller that is interrupted has all tallies so far.

    Raises:
        GpuLostError: A kernel broke this process's GPU context.
    """
    tallies = {} if tallies is None else tallies
    for instance in kernels:
        tallies.setdefault(instance, Tally(instance))
    load = CardLoad(device) if device.startswith("cuda") and plan.reruns else None
    end = None if plan.seconds is None else time.monotonic() + plan.seconds

    def is_due(instance: KernelId) -> bool:
        has_time = end is None or time.monotonic() <= end
        return has_time or tallies[instance].cases < plan.min_cases

    for case, takers in _work(groups_of(kernels), plan, extent_of(device)):
        if not any(map(is_due, takers)):
            if any(map(is_due, kernels)):
                continue
            break
        prepared = prepare_for(takers[0].config, case, device)
        for instance in filter(is_due, takers):
            verdict = check(instance, prepared, reruns=plan.reruns, load=load)
            tallies[instance].add(verdict)
            report(verdict)
    return tallies


def groups_of(kernels: Sequence[KernelId]) -> list[list[KernelId]]:
    """Returns groups that can share cases: equal operation, dtype, d_head and row multiple."""
    groups: dict[tuple[str, int, int, int], list[KernelId]] = {}
    for kernel in kernels:
        config = kernel.config
        kind = config.operation, config.dtype, config.d_head, config.row_multiple
        groups.setdefault(kind, []).append(kernel)
    return list(groups.values())


def in_turn(sources: Sequence[Iterator[Work]]) -> Iterator[Work]:
    """Yields one work of each source in turn until all sources are at their end."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            work = next(source, None)
            if work is None:
                waiting.remove(source)
            else:
                yield work


def _work(groups: Sequence[Sequence[KernelId]], plan: SoakPlan, extent: Extent) -> Iterator[Work]:
    """Yields cases, each with the kernels that run it."""
    if plan.tile_boundaries:
        yield from in_turn([_tile_boundaries(group, extent) for group in groups])
    yield from in_turn([_random(group, plan, extent) for group in groups])


def _random(kernels: Sequence[KernelId], plan: SoakPlan, extent: Extent) -> Iterator[Work]:
    """Yields random cases, each drawn for one kernel and run by all of the group that take it."""
    rng = Random(f"{plan.seed} {kernels[0].config.dtype} {kernels[0].config.d_head}")
    rounds = itertools.count() if plan.random_cases is None else range(plan.random_cases)
    for _ in rounds:
        drawn_for = rng.choice(kernels)
        case = random_case(rng, drawn_for.config, drawn_for.variant, extent)
        yield case, [each for each in kernels if _is_for(each, case)]


def _is_for(kernel: KernelId, case: SoakCase) -> bool:
    return takes(kernel.config, case) and case.kernel(kernel.config) == kernel


def _tile_boundaries(kernels: Sequence[KernelId], extent: Extent) -> Iterator[Work]:
    """Yields the cases at tile boundaries; kernels with the same tiles share them."""
    shared: dict[SoakCase, list[KernelId]] = {}
    of_each = [tile_boundary_cases(each.config, each.variant, extent) for each in kernels]
    # The first case of every kernel comes first, then the second: the most telling ones lead.
    for cases in itertools.zip_longest(*of_each):
        for kernel, case in zip(kernels, cases, strict=True):
            if case is not None:
                shared.setdefault(case, []).append(kernel)
    yield from shared.items()
