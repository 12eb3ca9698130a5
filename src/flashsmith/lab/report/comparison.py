"""Chooses the measured times that the page compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from flashsmith.configs import DType, KernelId, Workload
from flashsmith.lab.report.results import Profile, Time

M = TypeVar("M", Time, Profile)


def of_operation(times: Iterable[M], operation: str) -> list[M]:
    """Returns the times of all runs that measured kernels of the operation, peers included."""
    times = list(times)
    runs = {
        time.run
        for time in times
        if isinstance(time.candidate, KernelId) and time.candidate.config.operation == operation
    }
    return [time for time in times if time.run in runs]


def best_run(
    times: Sequence[M],
    kind: tuple[str, int, str],
    instances: Iterable[KernelId],
    seq_len: int | None = None,
) -> list[M]:
    """Returns the times or profiles of one run on one workload of a (dtype, d_head, mask).

    The run and workload have the most of ``instances``, and then the longest sequence. The result
    is empty if no run has any of them.

    seq_len: The only length to consider; None: all.
    """
    wanted = set(instances)
    have = Counter(
        (time.run, time.workload)
        for time in times
        if time.workload.kind == kind
        and time.candidate in wanted
        and seq_len in (None, time.workload.problem.seq_len_k)
    )
    if not have:
        return []
    run, workload = max(have, key=lambda key: (have[key], key[1].problem.seq_len_k))
    return [time for time in times if (time.run, time.workload) == (run, workload)]


def best_sweep(
    times: Sequence[Time], kind: tuple[str, int, str], instances: Iterable[KernelId]
) -> list[Time]:
    """Returns the times of one run over lengths, for a (dtype, d_head, mask).

    Runs that measured the family of ``instances`` come first, then runs with more peers, with more
    lengths, of the dtype, and with more of ``instances``. The dtype comes after the peers, because
    FP16 and BF16 differ little.
    """
    wanted = set(instances)
    families = {instance.config.family for instance in wanted}
    runs: dict[tuple[str, DType], list[Time]] = {}
    for time in times:
        if time.workload.kind[1:] == kind[1:]:
            runs.setdefault((time.run, time.workload.problem.dtype), []).append(time)

    def worth(run: list[Time]) -> tuple[bool, int, int, bool, int]:
        candidates = {time.candidate for time in run}
        ours = {each for each in candidates if isinstance(each, KernelId)}
        same_family = bool(families & {each.config.family for each in ours})
        same_dtype = run[0].workload.kind[0] == kind[0]
        lengths = {time.workload for time in run}
        return same_family, len(candidates - ours), len(lengths), same_dtype, len(ours & wanted)

    return max(runs.values(), key=worth, default=[])


def faster_families(times: Iterable[Time], sweep: Sequence[Time]) -> list[Time]:
    """Returns the fastest kernels of families that ``sweep`` lacks, in any run, one for each of its
    workloads; none if the sweep's own kernels are nowhere slower."""
    best = _fastest(time for time in sweep if time.family is not None)
    swept = {time.family for time in sweep}
    swept_on = {time.workload for time in sweep}
    others = _fastest(
        time for time in times if time.workload in swept_on and time.family not in {None, *swept}
    )
    if all(on in best and best[on].ms <= time.ms for on, time in others.items()):
        return []
    return sorted(others.values(), key=lambda time: time.workload.problem.seq_len_k)


def _fastest(times: Iterable[Time]) -> dict[Workload, Time]:
    best: dict[Workload, Time] = {}
    for time in sorted(times, key=lambda time: time.ms):
        best.setdefault(time.workload, time)
    return best


def best_at(times: Iterable[Time], workload: Workload, family: str) -> list[Time]:
    """Returns flashsmith's fastest kernel of all runs on a workload.

    If it is of ``family``, the fastest kernel of another family follows, provided that it is faster
    still. That one may have another dtype.
    """

    def is_here(time: Time) -> bool:
        problem = replace(time.workload.problem, dtype=workload.problem.dtype)
        return replace(time.workload, problem=problem) == workload

    ours = (time for time in times if time.family is not None and is_here(time))
    fastest_first = sorted(ours, key=lambda time: time.ms)
    best = [time for time in fastest_first if time.workload == workload][:1]
    if best and best[0].family != family:
        return best
    other = [time for time in fastest_first if time.family != family][:1]
    return [*best, *(time for time in other if not best or time.ms < best[0].ms)]
