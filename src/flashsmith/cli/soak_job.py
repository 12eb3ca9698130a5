"""What `flashsmith soak` does."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from flashsmith import settings
from flashsmith.bench import environment_stamp
from flashsmith.cli.files import check_output, write_whole
from flashsmith.cli.job import choose_device
from flashsmith.cli.selection import select_instances
from flashsmith.cli.tables import build_progress, note, print_json, print_table
from flashsmith.configs import DType, ForwardKernelConfig, ForwardKernelInstance
from flashsmith.soak import (
    RERUNS,
    SoakCase,
    SoakPlan,
    Tally,
    Verdict,
    check,
    load_all,
    log,
    prepare,
    rule_configs,
    soak,
    table_configs,
    that_run_on,
)
from flashsmith.soak.load import CardLoad
from flashsmith.soak.session import RERUNS_ON_EMULATOR

_SECONDS_BETWEEN_NOTES = 10
Tallies = dict[ForwardKernelInstance, Tally]


@dataclass(frozen=True)
class Request:
    """The options of the command; None where one was not given."""

    kernels: list[str] | None
    dtype: DType | None
    d_head: int | None
    seconds: float | None
    cases: int | None
    seams: bool
    reruns: int | None
    seed: int | None
    case: str | None
    device: str | None

    def __post_init__(self) -> None:
        if self.case is None:
            return
        if not self.kernels:
            raise ValueError("--case is for one kernel; name it with --kernels")
        names = ("dtype", "d_head", "seconds", "cases", "seed")
        if given := [name for name in names if getattr(self, name) is not None]:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"--case says all; leave out {options}")

    def configs(self, device: str) -> list[ForwardKernelConfig]:
        """What the words choose. Raises ValueError where a word or the device leaves nothing."""
        default = settings.KERNELS.get()
        words = self.kernels or ([default] if default else ["table", "rule"])
        chosen: list[ForwardKernelConfig] = []
        for word in words:
            chosen += self._of_word(word, device)
        configs = that_run_on(chosen, device)
        if not configs:
            raise ValueError(f"none of the kernels of {', '.join(words)} runs on {device}")
        return configs

    def _of_word(self, word: str, device: str) -> list[ForwardKernelConfig]:
        if word not in ("table", "rule"):
            instances = select_instances([word], dtype=self.dtype, d_head=self.d_head)
            return [instance.config for instance in instances]
        gpu = torch.cuda.get_device_name() if device == "cuda" else None
        return [
            cfg
            for cfg in (rule_configs() if word == "rule" else table_configs(gpu))
            if self.dtype in (None, cfg.dtype) and self.d_head in (None, cfg.d_head)
        ]


def run(request: Request, out: Path | None, as_json: bool, *, force: bool = False) -> bool:
    """Soaks, prints what came of it, writes ``out``; whether every result was right."""
    if out is not None:
        check_output("--out", out, force=force, is_own=_is_log)
    device, why = choose_device(request.device)
    configs = request.configs(device)
    note(f"on {'the GPU' if device == 'cuda' else 'the emulator'}: {why}")
    with build_progress() as progress:
        load_all(configs, device, progress)
    reruns = request.reruns
    if reruns is None:
        reruns = RERUNS if device == "cuda" else RERUNS_ON_EMULATOR
    tallies: Tallies = {}
    started = time.monotonic()
    try:
        if request.case is None:
            _run_many(request, configs, device, reruns, tallies)
        else:
            _run_case(SoakCase.parse(request.case), configs, device, reruns, tallies)
    except KeyboardInterrupt:
        note("interrupted")
    _summarise(tallies, time.monotonic() - started, as_json)
    if out is not None:
        stamp = environment_stamp(device)
        write_whole(out, lambda staged: log.write_csv(staged, tallies.values(), stamp))
    return not any(tally.failures for tally in tallies.values())


def _is_log(path: Path) -> bool:
    """Whether a file is of this command, going by its first columns."""
    head = ",".join(log.COLUMNS).encode()
    with path.open("rb") as file:
        return file.read(len(head)) == head


def _run_many(
    request: Request,
    configs: list[ForwardKernelConfig],
    device: str,
    reruns: int,
    tallies: Tallies,
) -> None:
    seed = random.randrange(1 << 31) if request.seed is None else request.seed
    note(f"{len(configs)} kernels, each full and causal; --seed {seed}")
    plan = SoakPlan(request.seams, request.cases, request.seconds, reruns, seed)
    soak(configs, plan, device, _Reporter(tallies), tallies)


def _run_case(
    case: SoakCase, configs: list[ForwardKernelConfig], device: str, reruns: int, tallies: Tallies
) -> None:
    prepared = prepare(case, device)
    load = CardLoad() if device == "cuda" and reruns else None
    for cfg in configs:
        instance = ForwardKernelInstance(cfg, case.variant)
        tallies[instance] = tally = Tally(instance)
        verdict = check(instance, prepared, reruns=reruns, load=load)
        tally.add(verdict)
        note(verdict.sentence)


class _Reporter:
    """Says failures at once, and every few seconds how far the soak is."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies
        self._next = time.monotonic() + _SECONDS_BETWEEN_NOTES

    def __call__(self, verdict: Verdict) -> None:
        if not verdict.ok:
            note(f"WRONG: {verdict.sentence}")
            note(f"  {log.reproduce(verdict.instance.config.short_form(), verdict.case)}")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_NOTES
            cases = sum(tally.cases for tally in self._tallies.values())
            failures = sum(len(tally.failures) for tally in self._tallies.values())
            note(f"{cases} problems, {failures} wrong; now {verdict.case}")


def _summarise(tallies: Tallies, seconds: float, as_json: bool) -> None:
    rows = log.rows(tallies.values())
    if as_json:
        print_json([dict(zip(log.COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table(log.COLUMNS, rows)
    wrong = [tally for tally in tallies.values() if tally.failures]
    cases = [tally.cases for tally in tallies.values()]
    note(
        f"{sum(cases)} problems in {seconds:.0f} s, {min(cases, default=0)} to "
        f"{max(cases, default=0)} a kernel: {len(wrong)} of {len(tallies)} kernels were wrong"
    )
