"""Successive halving over configurations: hopeless ones cost a few launches, finalists many.

Rounds are timed in turn. Finalists are soaked, and timed back to back too: under the card's power
limit another kernel may be the fastest than in a short run, and an entry serves both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from flashsmith.bench import Timing
from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    Workload,
    parse_kernel_name_into_config,
    sort_key,
)
from flashsmith.configs.families import serving
from flashsmith.configs.workload import TuningKey
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.selection.tables import Entry, Measured
from flashsmith.tuning.journal import Journal

Config = ForwardKernelConfig
Plan = Mapping[Workload, Sequence[Config]]  # the last one of each workload is the rule's choice
Progress = Callable[[int, int, str], None]  # done, in all, what comes now

REPEATS = 30  # of the last round
_ROUNDS = (0.1, 0.3, 1.0)  # as shares of the last round's repeats
_KEEP = 1 / 3  # of the configurations, from round to round


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
    workloads: Sequence[Workload], configs: Sequence[Config], arch: str
) -> dict[Workload, list[Config]]:
    """What to try for each workload: what can run it on ``arch``, and last the rule's choice.

    Raises:
        ValueError: No family takes a workload there, or ``configs`` has nothing for it; two lengths
            fall into one bucket, so that they would have one entry.
    """
    plan: dict[Workload, list[Config]] = {}
    taken: dict[TuningKey, Workload] = {}
    for workload in workloads:
        served = serving(workload, arch)
        fitting = [cfg for cfg in configs if not served.why_not(cfg) and not cfg.problems(arch)]
        if not fitting:
            raise ValueError(
                f"none of the kernels can run {workload} on {arch}; choose other --kernels, or "
                "narrow --dtype, --d-head or --seq-len"
            )
        other = taken.setdefault(workload.tuning_key, workload)
        if other is not workload:
            lengths = f"{other.problem.seq_len_k} and {workload.problem.seq_len_k}"
            raise ValueError(
                f"lengths {lengths} share one entry of the table; tune for one of them"
            )
        rule = served.rule_config
        plan[workload] = [*(cfg for cfg in dict.fromkeys(fitting) if cfg != rule), rule]
    return plan


def search(
    plan: Plan, lab: Lab, journal: Journal, progress: Progress, repeats: int = REPEATS
) -> list[Entry]:
    """The best configurations of each workload, from what the journal knows and the lab measures.

    Raises:
        TuningError: No candidate of a workload gives a right result.
        GpuLostError: A kernel took the GPU with it. The journal remembers which, so a new process
            goes on without it.
    """
    steps_each = 3 + len(_ROUNDS)
    entries = []
    for i, (workload, configs) in enumerate(plan.items()):

        def say(step: int, what: str, i: int = i, workload: Workload = workload) -> None:
            progress(i * steps_each + step, len(plan) * steps_each, f"{workload}: {what}")

        entries.append(_search_one(workload, configs, lab, journal, say, repeats))
    progress(len(plan) * steps_each, len(plan) * steps_each, "")
    return entries


def _search_one(
    workload: Workload,
    configs: Sequence[Config],
    lab: Lab,
    journal: Journal,
    say: Callable[[int, str], None],
    repeats: int,
) -> Entry:
    say(0, f"checking {len(configs)} kernels")
    excluded = _check(workload, configs, lab, journal)
    left = [cfg for cfg in configs if cfg not in excluded]
    if not left:
        raise _nothing_left(workload, excluded)
    rule = configs[-1]
    times: dict[Config, Timing] = {}
    for step, share in enumerate(_ROUNDS, 1):
        if times:
            left = survivors(times, rule)
        launches = max(1, round(share * repeats))
        say(step, f"timing {len(left)} kernels, {launches} times")
        times = _time(workload, left, launches, lab, journal)
    say(1 + len(_ROUNDS), f"soaking {len(times)} kernels")
    unsound = _soak(workload, _rank(times), lab, journal)
    sound = [cfg for cfg in _rank(times) if cfg not in unsound]
    if not sound:
        raise _nothing_left(workload, unsound)
    say(2 + len(_ROUNDS), f"timing {len(sound)} kernels back to back")
    steady = _time(workload, sound, None, lab, journal)
    measured = [_measured(workload, cfg, times[cfg], steady[cfg]) for cfg in sound]
    return _entry(workload, configs, {**excluded, **unsound}, measured)


def _nothing_left(workload: Workload, excluded: Mapping[Config, str]) -> TuningError:
    reasons = "; ".join(f"{cfg}: {why}" for cfg, why in list(excluded.items())[:3])
    return TuningError(f"no kernel can be tuned for {workload}: {reasons}")


def survivors(times: Mapping[Config, Timing], rule: Config) -> list[Config]:
    """The fastest third and the rule's choice, fastest first."""
    ranked = _rank(times)
    kept = {*ranked[: math.ceil(len(ranked) * _KEEP)], rule}
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


def _measured(workload: Workload, cfg: Config, timing: Timing, steady: Timing) -> Measured:
    ms, low, high, back_to_back = (
        round(t, 5) for t in (timing.ms, timing.low, timing.high, steady.ms)
    )
    return Measured(cfg, ms, low, high, round(workload.tflops(timing.ms), 1), back_to_back)


def _rank(times: Mapping[Config, Timing]) -> list[Config]:
    return sorted(times, key=lambda cfg: (times[cfg].ms, sort_key(cfg)))


def _names(configs: Sequence[Config]) -> list[str]:
    return [cfg.short_form() for cfg in configs]
