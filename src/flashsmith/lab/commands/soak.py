"""Soaks kernels on many problems, or on one, and reports each verdict."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from flashsmith.configs import KernelConfig, KernelId
from flashsmith.configs.features import warn_of_former_name
from flashsmith.configs.registry import FORWARD
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.lab.commands.device import choose_device, where_it_is
from flashsmith.lab.commands.files import write_whole
from flashsmith.lab.commands.kernel_words import select_instances
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Request
from flashsmith.lab.soak import (
    RERUNS,
    Prepared,
    SoakCase,
    SoakPlan,
    Tally,
    Verdict,
    check,
    log,
    prepare_for,
    soak,
    soaked_kernels,
    table_configs,
    that_run_on,
)
from flashsmith.lab.soak.load import CardLoad
from flashsmith.lab.soak.session import RERUNS_ON_EMULATOR
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of

_SECONDS_BETWEEN_NOTES = 10
_TABLE, _HEURISTIC = "table", "heuristic"  # kernel words: what attention() takes by either
_FORMER = "rule"  # the deprecated word for heuristic


@dataclass(frozen=True)
class Soak:
    """A soak: its kernels and problems; None where the user leaves an option open.

    Attributes:
        case: One problem, in place of many.
        cases: Number of random problems, which follow those at tile boundaries.
    """

    request: Request
    case: str | None = None
    tile_boundaries: bool = True
    cases: int | None = None
    seconds: float | None = None
    reruns: int | None = None
    seed: int | None = None

    def configs(self, device: str) -> list[KernelConfig]:
        """Returns the configurations that the words choose. Raises ValueError if a word chooses
        none, or if none runs on the device."""
        words = self.request.words or (_TABLE, _HEURISTIC)
        chosen: list[KernelConfig] = []
        for word in words:
            chosen += self._of_word(word, device)
        configs = that_run_on(chosen, device)
        if not configs:
            raise ValueError(f"none of the kernels of {', '.join(words)} runs on {device}")
        return configs

    def _of_word(self, word: str, device: str) -> list[KernelConfig]:
        if word == _FORMER:
            warn_of_former_name(word, word := _HEURISTIC)
        if word not in (_TABLE, _HEURISTIC):
            ((dtype, d_head),) = self.request.kinds
            instances = select_instances([word], dtype=dtype, d_head=d_head, forward_only=False)
            return [instance.config for instance in instances]
        gpu = torch.cuda.get_device_name() if device == "cuda" else None
        configs: list[KernelConfig] = [
            *(FORWARD.heuristic_configs() if word == _HEURISTIC else table_configs(gpu))
        ]
        return [cfg for cfg in configs if self.request.takes(cfg.dtype, cfg.d_head)]


@dataclass
class SoakReport:
    """The tallies of a soak so far."""

    device: str
    tallies: dict[KernelId, Tally] = field(default_factory=dict)
    seconds: float = 0

    @property
    def ok(self) -> bool:
        return not any(tally.failures for tally in self.tallies.values())


def run(asked: Soak, reporter: Reporter) -> SoakReport:
    """Soaks the kernels; an interruption ends the soak early and keeps its tallies."""
    device, why = choose_device(asked.request.device)
    configs = asked.configs(device)
    reporter.note(f"on {where_it_is(device)}: {why}")
    case = None if asked.case is None else SoakCase.parse(asked.case)
    kernels = soaked_kernels(configs) if case is None else [case.kernel(cfg) for cfg in configs]
    with reporter.progress() as progress:
        load_kernels(kernels, target_of(torch.device(device)), progress)
    report = SoakReport(device)
    started = time.monotonic()
    try:
        if case is None:
            _run_many(asked, kernels, device, report, reporter)
        else:
            _run_case(case, asked, kernels, device, report, reporter)
    except KeyboardInterrupt:
        reporter.note("interrupted")
    report.seconds = time.monotonic() - started
    return report


def write_log(path: Path, report: SoakReport) -> None:
    """Writes a CSV file with a row for each kernel."""
    stamp = environment_stamp(report.device)
    write_whole(path, lambda staged: log.write_csv(staged, report.tallies.values(), stamp))


def _reruns(asked: Soak, device: str) -> int:
    if asked.reruns is not None:
        return asked.reruns
    return RERUNS if device == "cuda" else RERUNS_ON_EMULATOR


def is_log(path: Path) -> bool:
    """Returns whether ``write_log`` wrote a file, judged by its first columns."""
    head = ",".join(log.COLUMNS).encode()
    with path.open("rb") as file:
        return file.read(len(head)) == head


def _run_many(
    asked: Soak,
    kernels: list[KernelId],
    device: str,
    report: SoakReport,
    reporter: Reporter,
) -> None:
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    reporter.note(f"{len(kernels)} kernels; --seed {seed}")
    plan = SoakPlan(
        tile_boundaries=asked.tile_boundaries,
        random_cases=asked.cases,
        seconds=asked.seconds,
        reruns=_reruns(asked, device),
        seed=seed,
    )
    soak(kernels, plan, device, _Listener(report, reporter), report.tallies)


def _run_case(
    case: SoakCase,
    asked: Soak,
    kernels: list[KernelId],
    device: str,
    report: SoakReport,
    reporter: Reporter,
) -> None:
    reruns = _reruns(asked, device)
    load = CardLoad() if device == "cuda" and reruns else None
    prepared: dict[str, Prepared] = {}  # by operation
    for instance in kernels:
        report.tallies[instance] = tally = Tally(instance)
        operation = instance.config.operation
        if operation not in prepared:
            prepared[operation] = prepare_for(instance.config, case, device)
        verdict = check(instance, prepared[operation], reruns=reruns, load=load)
        tally.add(verdict)
        reporter.note(verdict.sentence)


class _Listener:
    """Reports a failure at once, and the progress every few seconds."""

    def __init__(self, report: SoakReport, reporter: Reporter) -> None:
        self._tallies, self._note = report.tallies, reporter.note
        self._next = time.monotonic() + _SECONDS_BETWEEN_NOTES

    def __call__(self, verdict: Verdict) -> None:
        if not verdict.ok:
            self._note(f"WRONG: {verdict.sentence}")
            kernel = verdict.instance.config.short_form()
            self._note(f"  {log.reproduce(kernel, verdict.case)}")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_NOTES
            cases = sum(tally.cases for tally in self._tallies.values())
            failures = sum(len(tally.failures) for tally in self._tallies.values())
            self._note(f"{cases} problems, {failures} wrong; now {verdict.case}")
