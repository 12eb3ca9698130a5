"""Successive halving over configurations: slow ones cost a few launches, finalists many.

In each round, configurations are timed in turn. Candidates that a table already has, of which none
is hopeless, are timed in one round instead. Finalists are soaked, and if the grid fills the
GPU, also timed back to back: under the power limit the fastest kernel may be another one than in a
short run, and an entry serves both. Kernels that won other entries stay to the end, so that a
portfolio can be chosen.
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
from flashsmith.gpus import count_sms
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning.journal import Journal
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table

Plan = Mapping[W, Sequence[C]]  # the last configuration of each workload is the heuristic's choice
Progress = Callable[[int, int, str], None]  # steps done, steps in all, the next step in words

W_contra = TypeVar("W_contra", bound=AnyWorkload, contravariant=True)

REPEATS = 30  # timed runs in the last round
ROUNDS = (0.1, 0.3, 1.0)  # as shares of the last round's repeats
ONE_ROUND = (1.0,)
_KEEP = 1 / 3  # of the configurations, from round to round
_CHAMPIONS = 3  # winners of most entries of a d_head and variant, which stay in the other entries


class Lab(Protocol[W_contra, C]):
    """A place where kernels run. All methods take configurations of one workload."""

    def check(self, workload: W_contra, configs: Sequence[C]) -> dict[C, str]:
        """Runs each configuration once, and returns the wrong or failed ones with the reason.

        Raises GpuLostError when a kernel broke the GPU context.
        """

    def time(
        self, workload: W_contra, configs: Sequence[C], repeats: int | None
    ) -> Mapping[C, Timing]:
        """Times configurations in turn, ``repeats`` times each; if it is None, back to back."""

    def soak(self, workload: W_contra, configs: Sequence[C]) -> dict[C, str]:
        """Soaks kernels of the workload's variant at tile boundaries, whatever its lengths.

        Returns the kernels that failed, with a failure of each. Raises GpuLostError like ``check``.
        """


def make_plan(
    operation: Operation[W, C],
    workloads: Sequence[W],
    arch: str,
    gpu: str | None = None,
    configs: Sequence[C] | None = None,
) -> dict[W, list[C]]:
    """Returns the configurations to try for each workload: the candidates that run on ``arch``, and
    last the heuristic's choice.

    gpu: The GPU's name; None: any of the architecture.
    configs: The only candidates beside the heuristic's choice; None: the families' tuning spaces.

    Raises:
        ValueError: No family takes a workload there, or ``configs`` has nothing for it; or two
            workloads fall into one bucket, so that they would share an entry.
    """
    num_sms = count_sms(gpu or arch)
    plan: dict[W, list[C]] = {}
    taken: dict[TuningKey, W] = {}
    for workload in workloads:
        *fitting, heuristic = operation.candidates(workload, arch, gpu, configs)
        if configs is not None and not fitting and heuristic not in configs:
            raise ValueError(
                f"none of the kernels can run {workload} on {arch}; choose other --kernels, or "
                "narrow --dtype, --d-head or --seq-len"
            )
        other = taken.setdefault(workload.tuning_key(num_sms), workload)
        if other is not workload:
            raise ValueError(
                f"{other} and {workload} share one entry of the table; tune for one of them"
            )
        plan[workload] = [*fitting, heuristic]
    return plan


def plan_again(table: Table[W, C], arch: str) -> dict[W, list[C]]:
    """Returns the configurations to try at each workload of a table: those that the table measured
    there, those that it may choose for the workload's kind, and last the heuristic's choice.

    Raises ValueError like ``make_plan``.
    """
    plan: dict[W, list[C]] = {}
    for entry in table.entries.values():
        configs = dict.fromkeys(row.config for row in entry.ranked)
        configs |= dict.fromkeys(table.portfolio(entry))
        gpu = table.stamp.get("gpu")
        plan |= make_plan(table.operation, [entry.workload], arch, gpu, list(configs))
    return plan


def search(
    plan: Plan[W, C],
    lab: Lab[W, C],
    journal: Journal,
    progress: Progress,
    repeats: int,
    num_sms: int,
    rounds: Sequence[float] = ROUNDS,
) -> list[Entry[W, C]]:
    """Returns the best configurations of each workload, from the journal's and new measurements.

    rounds: For each round, its repeats as a share of ``repeats``.

    Raises:
        TuningError: No candidate of a workload gives a right result.
        GpuLostError: A kernel broke the GPU context. The journal remembers which, so that a new
            process resumes without it.
    """
    steps_each = 3 + len(rounds)
    entries: list[Entry[W, C]] = []
    for i, (workload, configs) in enumerate(plan.items()):
        champions = _champions(workload, configs, entries, num_sms)
        task = _Task(workload, configs, workload.fills(num_sms), champions, rounds)

        def say(step: int, what: str, i: int = i, workload: W = workload) -> None:
            progress(i * steps_each + step, len(plan) * steps_each, f"{workload}: {what}")

        entries.append(_search_one(task, lab, journal, say, repeats))
    progress(len(plan) * steps_each, len(plan) * steps_each, "")
    return entries


@dataclass(frozen=True)
class _Task(Generic[W, C]):
    """One workload, and the configurations to try for it."""

    workload: W
    configs: Sequence[C]  # the last is the heuristic's choice
    fills_the_gpu: bool
    champions: Collection[C]
    rounds: Sequence[float]


def _champions(
    workload: W, configs: Sequence[C], entries: Sequence[Entry[W, C]], num_sms: int
) -> set[C]:
    """Returns the ``configs`` whose tiles won the most entries of the workload's portfolio."""
    kind = workload.tuning_key(num_sms).kind
    won = Counter(
        entry.ranked[0].config.for_dtype(DType.FP16)
        for entry in entries
        if entry.workload.tuning_key(num_sms).kind == kind
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
    for step, share in enumerate(task.rounds, 1):
        if times:
            left = survivors(times, {configs[-1], *task.champions})
        launches = max(1, round(share * repeats))
        say(step, f"timing {len(left)} kernels, {launches} times")
        times = _time(workload, left, launches, lab, journal)
    say(1 + len(task.rounds), f"soaking {len(times)} kernels")
    unsound = _soak(workload, _rank(times), lab, journal)
    sound = [cfg for cfg in _rank(times) if cfg not in unsound]
    if not sound:
        raise _nothing_left(workload, unsound)
    steady: Mapping[C, Timing] = {}
    if task.fills_the_gpu:  # a smaller grid draws too little power to reach the limit
        say(2 + len(task.rounds), f"timing {len(sound)} kernels back to back")
        steady = _time(workload, sound, None, lab, journal)
    measured = [_measured(workload, cfg, times[cfg], steady.get(cfg)) for cfg in sound]
    return _entry(workload, configs, {**excluded, **unsound}, measured)


def _nothing_left(workload: W, excluded: Mapping[C, str]) -> TuningError:
    reasons = "; ".join(f"{cfg}: {why}" for cfg, why in list(excluded.items())[:3])
    return TuningError(f"no kernel can be tuned for {workload}: {reasons}")


def survivors(times: Mapping[C, Timing], staying: Collection[C]) -> list[C]:
    """Returns the fastest third and ``staying``, fastest first."""
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
    """Returns the kernels that may not enter a table, and why.

    Each kernel is soaked once for all entries with the same mask; the journal keeps the verdict.
    """

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
    heuristic = next((row for row in ranked if row.config == configs[-1]), None)
    return Entry(
        workload,
        tried=len(configs),
        excluded={cfg.short_form(): why for cfg, why in excluded.items()},
        heuristic_ratio=None if heuristic is None else round(heuristic.cost / ranked[0].cost, 4),
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
