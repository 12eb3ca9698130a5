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
from typing import Any, Protocol

from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    KernelId,
    Workload,
    parse_kernel_name_into_config,
    sort_key,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import TuningKey
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.gpus import count_multiprocessors, get_gpu_architecture
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning.journal import Journal
from flashsmith.problem import FILL_BUCKETS
from flashsmith.selection.entries import Entry, Measured

Config = ForwardKernelConfig
Plan = Mapping[Workload, Sequence[Config]]  # the last one of each workload is the rule's choice
Progress = Callable[[int, int, str], None]  # done, in all, what comes now

REPEATS = 30  # of the last round
_ROUNDS = (0.1, 0.3, 1.0)  # as shares of the last round's repeats
_KEEP = 1 / 3  # of the configurations, from round to round
_CHAMPIONS = 3  # that won most entries of their d_head and variant, and stay in the others


class Lab(Protocol):
    """Where kernels run. All methods take configurations of one workload."""

    def check(self, workload: Workload, configs: Sequence[Config]) -> dict[Config, str]:
        """Runs each once; those that are wrong or failed, and why.

        Raises GpuLostError when a kernel took the GPU with it.
        """

    def time(
        self, workload: Workload, configs: Sequence[Config], repeats: int | None
    ) -> Mapping[Config, Timing]:
        """Times them in turn, ``repeats`` times each; back to back if it is None."""

    def soak(self, workload: Workload, configs: Sequence[Config]) -> dict[Config, str]:
        """Runs kernels of the workload's variant where their tiles meet, whatever its lengths.

        Those that were wrong anywhere, and where. Raises GpuLostError as ``check``.
        """


def make_plan(
    workloads: Sequence[Workload], configs: Sequence[Config], arch: str, gpu: str | None = None
) -> dict[Workload, list[Config]]:
    """What to try for each workload: what can run it on ``arch``, and last the rule's choice.

    gpu: The GPU's name; None: any of the architecture.

    Raises:
        ValueError: No family takes a workload there, or ``configs`` has nothing for it; two
            workloads fall into one bucket, so that they would have one entry.
    """
    gpu, capability = gpu or arch, get_gpu_architecture(arch).compute_capability
    multiprocessors = count_multiprocessors(gpu)
    plan: dict[Workload, list[Config]] = {}
    taken: dict[TuningKey, Workload] = {}
    for workload in workloads:
        served = FORWARD.serving(workload, gpu, capability)
        fitting = [cfg for cfg in configs if not served.why_not(cfg) and cfg.is_buildable(arch)]
        if not fitting:
            raise ValueError(
                f"none of the kernels can run {workload} on {arch}; choose other --kernels, or "
                "narrow --dtype, --d-head or --seq-len"
            )
        other = taken.setdefault(workload.tuning_key(multiprocessors), workload)
        if other is not workload:
            raise ValueError(
                f"{other} and {workload} share one entry of the table; tune for one of them"
            )
        rule = served.rule_config
        plan[workload] = [*(cfg for cfg in dict.fromkeys(fitting) if cfg != rule), rule]
    return plan


def search(
    plan: Plan,
    lab: Lab,
    journal: Journal,
    progress: Progress,
    repeats: int,
    multiprocessors: int,
) -> list[Entry]:
    """The best configurations of each workload, from what the journal knows and the lab measures.

    Raises:
        TuningError: No candidate of a workload gives a right result.
        GpuLostError: A kernel took the GPU with it. The journal remembers which, so a new process
            goes on without it.
    """
    steps_each = 3 + len(_ROUNDS)
    entries: list[Entry] = []
    for i, (workload, configs) in enumerate(plan.items()):
        fills_the_gpu = workload.problem.bucket(multiprocessors).fill == FILL_BUCKETS[-1]
        task = _Task(workload, configs, fills_the_gpu, _champions(workload, configs, entries))

        def say(step: int, what: str, i: int = i, workload: Workload = workload) -> None:
            progress(i * steps_each + step, len(plan) * steps_each, f"{workload}: {what}")

        entries.append(_search_one(task, lab, journal, say, repeats))
    progress(len(plan) * steps_each, len(plan) * steps_each, "")
    return entries


@dataclass(frozen=True)
class _Task:
    """One workload, and what to try for it."""

    workload: Workload
    configs: Sequence[Config]  # the last is the rule's choice
    fills_the_gpu: bool
    champions: Collection[Config]


def _champions(
    workload: Workload, configs: Sequence[Config], entries: Sequence[Entry]
) -> set[Config]:
    """Those of ``configs`` whose tiles won most of the entries that share a portfolio with this."""
    kind = workload.problem.d_head, workload.variant.tuning_key()
    won = Counter(
        entry.ranked[0].config.for_dtype(DType.FP16)
        for entry in entries
        if (entry.workload.problem.d_head, entry.workload.variant.tuning_key()) == kind
    )
    best = {tiles for tiles, _ in won.most_common(_CHAMPIONS)}
    return {cfg for cfg in configs if cfg.for_dtype(DType.FP16) in best}


def _search_one(
    task: _Task,
    lab: Lab,
    journal: Journal,
    say: Callable[[int, str], None],
    repeats: int,
) -> Entry:
    workload, configs = task.workload, task.configs
    say(0, f"checking {len(configs)} kernels")
    excluded = _check(workload, configs, lab, journal)
    left = [cfg for cfg in configs if cfg not in excluded]
    if not left:
        raise _nothing_left(workload, excluded)
    times: dict[Config, Timing] = {}
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
    steady: Mapping[Config, Timing] = {}
    if task.fills_the_gpu:  # else it draws too little power for a limit
        say(2 + len(_ROUNDS), f"timing {len(sound)} kernels back to back")
        steady = _time(workload, sound, None, lab, journal)
    measured = [_measured(workload, cfg, times[cfg], steady.get(cfg)) for cfg in sound]
    return _entry(workload, configs, {**excluded, **unsound}, measured)


def _nothing_left(workload: Workload, excluded: Mapping[Config, str]) -> TuningError:
    reasons = "; ".join(f"{cfg}: {why}" for cfg, why in list(excluded.items())[:3])
    return TuningError(f"no kernel can be tuned for {workload}: {reasons}")


def survivors(times: Mapping[Config, Timing], staying: Collection[Config]) -> list[Config]:
    """The fastest third, and those that stay anyway, fastest first."""
    ranked = _rank(times)
    kept = {*ranked[: math.ceil(len(ranked) * _KEEP)], *staying}
    return [cfg for cfg in ranked if cfg in kept]


def _check(
    workload: Workload, configs: Sequence[Config], lab: Lab, journal: Journal
) -> dict[Config, str]:
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
    workload: Workload, configs: Sequence[Config], repeats: int | None, lab: Lab, journal: Journal
) -> dict[Config, Timing]:
    question: dict[str, Any] = {
        "workload": workload.as_row(), "time": _names(configs), "repeats": repeats
    }  # fmt: skip
    known = journal.recall(**question)
    if known is None:
        times = lab.time(workload, configs, repeats)
        known = {cfg.short_form(): asdict(times[cfg]) for cfg in configs}
        journal.add(known, **question)
    return {parse_kernel_name_into_config(name): Timing(**t) for name, t in known.items()}


def _soak(
    workload: Workload, configs: Sequence[Config], lab: Lab, journal: Journal
) -> dict[Config, str]:
    """Those that may not enter a table, and why. Each is soaked once for all entries of a mask."""

    def question(cfg: Config) -> dict[str, Any]:
        return {"soak": cfg.short_form(), "mask": workload.variant.name}

    unknown = [cfg for cfg in configs if journal.recall(**question(cfg)) is None]
    if unknown:
        try:
            found = lab.soak(workload, unknown)
        except GpuLostError as error:
            for cfg in unknown:
                if error.culprit == KernelId(cfg, workload.variant).name:
                    journal.add(f"soak: {error}", **question(cfg))
            raise
        for cfg in unknown:
            journal.add(f"soak: {found[cfg]}" if cfg in found else "", **question(cfg))
    answers = {cfg: journal.recall(**question(cfg)) for cfg in configs}
    return {cfg: why for cfg, why in answers.items() if why}


def _entry(
    workload: Workload,
    configs: Sequence[Config],
    excluded: Mapping[Config, str],
    measured: Sequence[Measured],
) -> Entry:
    ranked = sorted(measured, key=lambda row: (row.cost, sort_key(row.config)))
    rule = next((row for row in ranked if row.config == configs[-1]), None)
    return Entry(
        workload,
        tried=len(configs),
        excluded={cfg.short_form(): why for cfg, why in excluded.items()},
        rule_ratio=None if rule is None else round(rule.cost / ranked[0].cost, 4),
        ranked=tuple(ranked),
    )


def _measured(workload: Workload, cfg: Config, timing: Timing, steady: Timing | None) -> Measured:
    ms, low, high = (round(t, 5) for t in (timing.ms, timing.low, timing.high))
    back_to_back = None if steady is None else round(steady.ms, 5)
    return Measured(cfg, ms, low, high, round(workload.tflops(timing.ms), 1), back_to_back)


def _rank(times: Mapping[Config, Timing]) -> list[Config]:
    return sorted(times, key=lambda cfg: (times[cfg].ms, sort_key(cfg)))


def _names(configs: Sequence[Config]) -> list[str]:
    return [cfg.short_form() for cfg in configs]
