"""Successive halving over configurations: hopeless ones cost a few launches, finalists many.

Rounds are timed in turn. Finalists are soaked, and timed back to back too: under the card's power
limit another kernel may be the fastest than in a short run, and an entry serves both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from flashsmith.bench import Problem, Timing
from flashsmith.configs import (
    ForwardKernelConfig,
    ForwardKernelInstance,
    parse_kernel_name_into_config,
)
from flashsmith.configs.families import families_for, rule_config, serves
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.selection.tables import Entry, Key, Measured, length_bucket
from flashsmith.tuning.journal import Journal

Config = ForwardKernelConfig
Plan = Mapping[Problem, Sequence[Config]]  # the last one of each problem is the rule's choice
Progress = Callable[[int, int, str], None]  # done, in all, what comes now

REPEATS = 30  # of the last round
_ROUNDS = (0.1, 0.3, 1.0)  # as shares of the last round's repeats
_KEEP = 1 / 3  # of the configurations, from round to round


class Lab(Protocol):
    """Where kernels run. All methods take configurations of one problem."""

    def check(self, problem: Problem, configs: Sequence[Config]) -> dict[Config, str]:
        """Runs each once; those that are wrong or failed, and why.

        Raises GpuLostError when a kernel took the GPU with it.
        """

    def time(
        self, problem: Problem, configs: Sequence[Config], repeats: int | None
    ) -> Mapping[Config, Timing]:
        """Times them in turn, ``repeats`` times each; back to back if it is None."""

    def soak(self, problem: Problem, configs: Sequence[Config]) -> dict[Config, str]:
        """Runs kernels of the problem's mask where their tiles meet, whatever its lengths.

        Those that were wrong anywhere, and where. Raises GpuLostError as ``check``.
        """


def make_plan(
    problems: Sequence[Problem], configs: Sequence[Config], arch: str
) -> dict[Problem, list[Config]]:
    """What to try for each problem: what can run it on ``arch``, and last the rule's choice.

    Raises:
        ValueError: No blocks divide a length, or ``configs`` has nothing for a problem; two lengths
            fall into one bucket, so that they would have one entry.
    """
    families = families_for(arch)
    plan: dict[Problem, list[Config]] = {}
    buckets: dict[Key, Problem] = {}
    for problem in problems:
        rule = rule_config(families, problem.dtype, problem.d_head, problem.seq_len)
        fitting = [
            cfg
            for cfg in configs
            if (cfg.dtype, cfg.d_head) == (problem.dtype, problem.d_head)
            and serves(cfg, families, problem.seq_len)
            and not cfg.problems(arch)
        ]
        if not fitting:
            raise ValueError(
                f"none of the kernels can run {problem} on {arch}; choose other --kernels, or "
                "narrow --dtype, --d-head or --seq-len"
            )
        key = (problem.dtype, problem.d_head, problem.mask, length_bucket(problem.seq_len))
        other = buckets.setdefault(key, problem)
        if other is not problem:
            raise ValueError(
                f"lengths {other.seq_len} and {problem.seq_len} share one entry of the table; "
                "tune for one of them"
            )
        plan[problem] = [*(cfg for cfg in dict.fromkeys(fitting) if cfg != rule), rule]
    return plan


def search(
    plan: Plan, lab: Lab, journal: Journal, progress: Progress, repeats: int = REPEATS
) -> list[Entry]:
    """The best configurations of each problem, from what the journal knows and the lab measures.

    Raises:
        TuningError: No candidate of a problem gives a right result.
        GpuLostError: A kernel took the GPU with it. The journal remembers which, so a new process
            goes on without it.
    """
    steps_each = 3 + len(_ROUNDS)
    entries = []
    for i, (problem, configs) in enumerate(plan.items()):

        def say(step: int, what: str, i: int = i, problem: Problem = problem) -> None:
            progress(i * steps_each + step, len(plan) * steps_each, f"{problem}: {what}")

        entries.append(_search_one(problem, configs, lab, journal, say, repeats))
    progress(len(plan) * steps_each, len(plan) * steps_each, "")
    return entries


def _search_one(
    problem: Problem,
    configs: Sequence[Config],
    lab: Lab,
    journal: Journal,
    say: Callable[[int, str], None],
    repeats: int,
) -> Entry:
    say(0, f"checking {len(configs)} kernels")
    excluded = _check(problem, configs, lab, journal)
    left = [cfg for cfg in configs if cfg not in excluded]
    if not left:
        raise _nothing_left(problem, excluded)
    rule = configs[-1]
    times: dict[Config, Timing] = {}
    for step, share in enumerate(_ROUNDS, 1):
        if times:
            left = survivors(times, rule)
        launches = max(1, round(share * repeats))
        say(step, f"timing {len(left)} kernels, {launches} times")
        times = _time(problem, left, launches, lab, journal)
    say(1 + len(_ROUNDS), f"soaking {len(times)} kernels")
    unsound = _soak(problem, _rank(times), lab, journal)
    sound = [cfg for cfg in _rank(times) if cfg not in unsound]
    if not sound:
        raise _nothing_left(problem, unsound)
    say(2 + len(_ROUNDS), f"timing {len(sound)} kernels back to back")
    steady = _time(problem, sound, None, lab, journal)
    measured = [_measured(problem, cfg, times[cfg], steady[cfg]) for cfg in sound]
    return _entry(problem, configs, {**excluded, **unsound}, measured)


def _nothing_left(problem: Problem, excluded: Mapping[Config, str]) -> TuningError:
    reasons = "; ".join(f"{cfg}: {why}" for cfg, why in list(excluded.items())[:3])
    return TuningError(f"no kernel can be tuned for {problem}: {reasons}")


def survivors(times: Mapping[Config, Timing], rule: Config) -> list[Config]:
    """The fastest third, the fastest of each tile, and the rule's choice, fastest first.

    A slower tile may be the only one that divides another length of the same bucket.
    """
    ranked = _rank(times)
    kept = set(ranked[: math.ceil(len(ranked) * _KEEP)])
    tiles: dict[tuple[int, int], Config] = {}
    for cfg in ranked:
        tiles.setdefault((cfg.B_r, cfg.B_c), cfg)
    kept |= {*tiles.values(), rule}
    return [cfg for cfg in ranked if cfg in kept]


def _check(
    problem: Problem, configs: Sequence[Config], lab: Lab, journal: Journal
) -> dict[Config, str]:
    lost: dict[str, str] = journal.recall(problem=_plain(problem), lost=True) or {}
    to_check = [cfg for cfg in configs if cfg.short_form() not in lost]
    question: dict[str, Any] = {"problem": _plain(problem), "check": _names(to_check)}
    wrong = journal.recall(**question)
    if wrong is None:
        try:
            found = lab.check(problem, to_check)
        except GpuLostError as error:
            journal.add({**lost, error.culprit: str(error)}, problem=_plain(problem), lost=True)
            raise
        wrong = {cfg.short_form(): why for cfg, why in found.items()}
        journal.add(wrong, **question)
    named = {**lost, **wrong}
    return {cfg: named[cfg.short_form()] for cfg in configs if cfg.short_form() in named}


def _time(
    problem: Problem, configs: Sequence[Config], repeats: int | None, lab: Lab, journal: Journal
) -> dict[Config, Timing]:
    question: dict[str, Any] = {
        "problem": _plain(problem), "time": _names(configs), "repeats": repeats
    }  # fmt: skip
    known = journal.recall(**question)
    if known is None:
        times = lab.time(problem, configs, repeats)
        known = {cfg.short_form(): asdict(times[cfg]) for cfg in configs}
        journal.add(known, **question)
    return {parse_kernel_name_into_config(name): Timing(**t) for name, t in known.items()}


def _soak(
    problem: Problem, configs: Sequence[Config], lab: Lab, journal: Journal
) -> dict[Config, str]:
    """Those that may not enter a table, and why. Each is soaked once for all entries of a mask."""

    def question(cfg: Config) -> dict[str, Any]:
        return {"soak": cfg.short_form(), "mask": problem.mask}

    unknown = [cfg for cfg in configs if journal.recall(**question(cfg)) is None]
    if unknown:
        try:
            found = lab.soak(problem, unknown)
        except GpuLostError as error:
            for cfg in unknown:
                if error.culprit == ForwardKernelInstance(cfg, problem.variant).name:
                    journal.add(f"soak: {error}", **question(cfg))
            raise
        for cfg in unknown:
            journal.add(f"soak: {found[cfg]}" if cfg in found else "", **question(cfg))
    answers = {cfg: journal.recall(**question(cfg)) for cfg in configs}
    return {cfg: why for cfg, why in answers.items() if why}


def _entry(
    problem: Problem,
    configs: Sequence[Config],
    excluded: Mapping[Config, str],
    measured: Sequence[Measured],
) -> Entry:
    ranked = sorted(measured, key=lambda row: (row.cost, row.config.sort_key))
    rule = next((row for row in ranked if row.config == configs[-1]), None)
    return Entry(
        **asdict(problem),
        tried=len(configs),
        excluded={cfg.short_form(): why for cfg, why in excluded.items()},
        rule_ratio=None if rule is None else round(rule.cost / ranked[0].cost, 4),
        ranked=tuple(ranked),
    )


def _measured(problem: Problem, cfg: Config, timing: Timing, steady: Timing) -> Measured:
    ms, low, high, back_to_back = (
        round(t, 5) for t in (timing.ms, timing.low, timing.high, steady.ms)
    )
    return Measured(cfg, ms, low, high, round(problem.tflops(timing.ms), 1), back_to_back)


def _rank(times: Mapping[Config, Timing]) -> list[Config]:
    return sorted(times, key=lambda cfg: (times[cfg].ms, cfg.sort_key))


def _names(configs: Sequence[Config]) -> list[str]:
    return [cfg.short_form() for cfg in configs]


def _plain(problem: Problem) -> dict[str, Any]:
    return asdict(problem) | {"dtype": str(problem.dtype)}
