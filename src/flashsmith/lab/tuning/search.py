"""Successive halving over configurations: hopeless ones cost a few launches, finalists many.

Rounds are timed in turn. Finalists are soaked, and where the grid fills the GPU timed back to back
too: under the card's power limit another kernel may be the fastest than in a short run, and an
entry serves both. Kernels that won elsewhere stay to the end, so that a portfolio can be chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from flashsmith.configs import DType, KernelId, sort_key
from flashsmith.configs.family import C, W
from flashsmith.configs.operation import Operation
from flashsmith.configs.workload import AnyWorkload, TuningKey
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.gpus import count_multiprocessors
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning.journal import Journal
from flashsmith.selection.entries import Entry, Measured

Plan = Mapping[W, Sequence[C]]  # the last one of each workload is the rule's choice
Progress = Callable[[int, int, str], None]  # done, in all, what comes now

W_contra = TypeVar("W_contra", bound=AnyWorkload, contravariant=True)

REPEATS = 30  # of the last round
_ROUNDS = (0.1, 0.3, 1.0)  # as shares of the last round's repeats
_KEEP = 1 / 3  # of the configurations, from round to round
_CHAMPIONS = 3  # that won most entries of their d_head and variant, and stay in the others


class Lab(Protocol[W_contra, C]):
    """Where kernels run. All methods take configurations of one workload."""

    def check(self, workload: W_contra, configs: Sequence[C]) -> dict[C, str]:
        """Runs each once; those that are wrong or failed, and why.

        Raises GpuLostError when a kernel took the GPU with it.
        """

    def time(
        self, workload: W_contra, configs: Sequence[C], repeats: int | None
    ) -> Mapping[C, Timing]:
        """Times them in turn, ``repeats`` times each; back to back if it is None."""

    def soak(self, workload: W_contra, configs: Sequence[C]) -> dict[C, str]:
        """Runs kernels of the workload's variant where their tiles meet, whatever its lengths.

        Those that were wrong anywhere, and where. Raises GpuLostError as ``check``.
        """


def make_plan(
    operation: Operation[W, C],
    workloads: Sequence[W],
    arch: str,
    gpu: str | None = None,
    configs: Sequence[C] | None = None,
) -> dict[W, list[C]]:
    """Returns what to try for each workload: what can run it on ``arch``, and last the rule's
    choice.

    gpu: The GPU's name; None: any of the architecture.
    configs: Of these alone, beside the rule's choice; None: the tuning spaces of the families.

    Raises:
        ValueError: No family takes a workload there, or ``configs`` has nothing for it; two
            workloads fall into one bucket, so that they would have one entry.
    """
    multiprocessors = count_multiprocessors(gpu or arch)
    plan: dict[W, list[C]] = {}
    taken: dict[TuningKey, W] = {}
    for workload in workloads:
        *fitting, rule = operation.candidates(workload, arch, gpu, configs)
        if configs is not None and not fitting and rule not in configs:
            raise ValueError(
                f"none of the kernels can run {workload} on {arch}; choose other --kernels, or "
                "narrow --dtype, --d-head or --seq-len"
            )
        other = taken.setdefault(workload.tuning_key(multiprocessors), workload)
        if other is not workload:
            raise ValueError(
                f"{other} and {workload} share one entry of the table; tune for one of them"
            )
        plan[workload] = [*fitting, rule]
    return plan


def search(
    plan: Plan[W, C],
    lab: Lab[W, C],
    journal: Journal,
    progress: Progress,
    repeats: int,
    multiprocessors: int,
) -> list[Entry[W, C]]:
    """The best configurations of each workload, from what the journal knows and the lab measures.

    Raises:
        TuningError: No candidate of a workload gives a right result.
        GpuLostError: A kernel took the GPU with it. The journal remembers which, so a new process
            goes on without it.
    """
    steps_each = 3 + len(_ROUNDS)
    entries: list[Entry[W, C]] = []
    for i, (workload, configs) in enumerate(plan.items()):
        champions = _champions(workload, configs, entries, multiprocessors)
        task = _Task(workload, configs, workload.fills(multiprocessors), champions)

        def say(step: int, what: str, i: int = i, workload: W = workload) -> None:
            progress(i * steps_each + step, len(plan) * steps_each, f"{workload}: {what}")

        entries.append(_search_one(task, lab, journal, say, repeats))
    progress(len(plan) * steps_each, len(plan) * steps_each, "")
    return entries


@dataclass(frozen=True)
class _Task(Generic[W, C]):
    """One workload, and what to try for it."""

    workload: W
    configs: Sequence[C]  # the last is the rule's choice
    fills_the_gpu: bool
    champions: Collection[C]


def _champions(
    workload: W, configs: Sequence[C], entries: Sequence[Entry[W, C]], multiprocessors: int
) -> set[C]:
    """Those of ``configs`` whose tiles won most of the entries that share a portfolio with this."""
    kind = workload.tuning_key(multiprocessors).kind
    won = Counter(
        entry.ranked[0].config.for_dtype(DType.FP16)
        for entry in entries
        if entry.workload.tuning_key(multiprocessors).kind == kind
    )
    best = {tiles for tiles, _ in won.most_common(_CHAMPIONS)}
    return {cfg for cfg in configs if cfg.for_dtype(DType.FP16) in best}


def _search_one(
    task: _Task[W, C],
    lab: Lab[W, C],
    journal: Journal,
    say: Callable[[int, str], None],
    repeats: int,
) -> Entry[W, C]:
    workload, configs = task.workload, task.configs
    say(0, f"checking {len(configs)} kernels")
    excluded = _check(workload, configs, lab, journal)
    left = [cfg for cfg in configs if cfg not in excluded]
    if not left:
        raise _nothing_left(workload, excluded)
    times: dict[C, Timing] = {}
    for step, share in enumerate(_ROUNDS, 1):
        if times:
            left = survivors(times, {configs[-1], *task.champions})
        launches = max(1, round(share * repeats))
        say(step, f"timing {len(left)} kernels, {launches} times")
        times = _time(workload, left, launches, lab, journal)
    say(1 + len(_ROUNDS), f"soaking {len(times)} kernels")
    unsound = _soak(workload, _rank(times), lab, journal)
    sound = [cfg for cfg in _rank(times) if cfg not in unsound]
    if not sound:
        raise _nothing_left(workload, unsound)
    steady: Mapping[C, Timing] = {}
    if task.fills_the_gpu:  # else it draws too little power for a limit
        say(2 + len(_ROUNDS), f"timing {len(sound)} kernels back to back")
        steady = _time(workload, sound, None, lab, journal)
    measured = [_measured(workload, cfg, times[cfg], steady.get(cfg)) for cfg in sound]
    return _entry(workload, configs, {**excluded, **unsound}, measured)


def _nothing_left(workload: W, excluded: Mapping[C, str]) -> TuningError:
    reasons = "; ".join(f"{cfg}: {why}" for cfg, why in list(excluded.items())[:3])
    return TuningError(f"no kernel can be tuned for {workload}: {reasons}")


def survivors(times: Mapping[C, Timing], staying: Collection[C]) -> list[C]:
    """Returns the fastest third, and those that stay anyway, fastest first."""
    ranked = _rank(times)
    kept = {*ranked[: math.ceil(len(ranked) * _KEEP)], *staying}
    return [cfg for cfg in ranked if cfg in kept]


def _check(workload: W, configs: Sequence[C], lab: Lab[W, C], journal: Journal) -> dict[C, str]:
    lost: dict[str, str] = journal.recall(workload=workload.as_row(), lost=True) or {}
    to_check = [cfg for cfg in configs if cfg.short_form() not in lost]
    question: dict[str, Any] = {"workload": workload.as_row(), "check": _names(to_check)}
    wrong = journal.recall(**question)
    if wrong is None:
        try:
            found = lab.check(workload, to_check)
        except GpuLostError as error:
            journal.add({**lost, error.culprit: str(error)}, workload=workload.as_row(), lost=True)
            raise
        wrong = {cfg.short_form(): why for cfg, why in found.items()}
        journal.add(wrong, **question)
    named = {**lost, **wrong}
    return {cfg: named[cfg.short_form()] for cfg in configs if cfg.short_form() in named}


def _time(
    workload: W, configs: Sequence[C], repeats: int | None, lab: Lab[W, C], journal: Journal
) -> dict[C, Timing]:
    question: dict[str, Any] = {
        "workload": workload.as_row(), "time": _names(configs), "repeats": repeats
    }  # fmt: skip
    known = journal.recall(**question)
    if known is None:
        times = lab.time(workload, configs, repeats)
        known = {cfg.short_form(): asdict(times[cfg]) for cfg in configs}
        journal.add(known, **question)
    by_name = {cfg.short_form(): cfg for cfg in configs}
    return {by_name[name]: Timing(**t) for name, t in known.items()}


def _soak(workload: W, configs: Sequence[C], lab: Lab[W, C], journal: Journal) -> dict[C, str]:
    """Those that may not enter a table, and why. Each is soaked once for all entries of a mask."""

    def question(cfg: C) -> dict[str, Any]:
        return {"soak": cfg.short_form(), "mask": workload.variant.name}

    unknown = [cfg for cfg in configs if journal.recall(**question(cfg)) is None]
    if unknown:
        try:
            found = lab.soak(workload, unknown)
        except GpuLostError as error:
            for cfg in unknown:
                if error.culprit in {KernelId(cfg, v).name for v in workload.soaked_variants}:
                    journal.add(f"soak: {error}", **question(cfg))
            raise
        for cfg in unknown:
            journal.add(f"soak: {found[cfg]}" if cfg in found else "", **question(cfg))
    answers = {cfg: journal.recall(**question(cfg)) for cfg in configs}
    return {cfg: why for cfg, why in answers.items() if why}


def _entry(
    workload: W,
    configs: Sequence[C],
    excluded: Mapping[C, str],
    measured: Sequence[Measured[C]],
) -> Entry[W, C]:
    ranked = sorted(measured, key=lambda row: (row.cost, sort_key(row.config)))
    rule = next((row for row in ranked if row.config == configs[-1]), None)
    return Entry(
        workload,
        tried=len(configs),
        excluded={cfg.short_form(): why for cfg, why in excluded.items()},
        rule_ratio=None if rule is None else round(rule.cost / ranked[0].cost, 4),
        ranked=tuple(ranked),
    )


def _measured(workload: W, cfg: C, timing: Timing, steady: Timing | None) -> Measured[C]:
    ms, low, high = (round(t, 5) for t in (timing.ms, timing.low, timing.high))
    back_to_back = None if steady is None else round(steady.ms, 5)
    speed = workload.tflops(timing.ms)
    return Measured(cfg, ms, low, high, None if speed is None else round(speed, 1), back_to_back)


def _rank(times: Mapping[C, Timing]) -> list[C]:
    return sorted(times, key=lambda cfg: (times[cfg].ms, sort_key(cfg)))


def _names(configs: Sequence[C]) -> list[str]:
    return [cfg.short_form() for cfg in configs]
