"""Checks and times the candidates of a case, beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch

from flashsmith.configs import is_kernel_name, parse_kernel_name_into_config
from flashsmith.lab.bench.candidates import why_failed
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.monitor import Sustained, sustain
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.operations.base import Given, Make, OperationBench, Run
from flashsmith.lab.bench.timer import (
    Timing,
    rotated,
    time_back_to_back,
    time_in_graph,
    time_interleaved,
)

IN_TURN, BACK_TO_BACK, IN_GRAPH = "in turn", "back to back", "in a graph"


@dataclass(frozen=True)
class CaseResult:
    """One candidate of a case.

    Attributes:
        run: Computes it once more.
        error: As the operation says it.
        times: By regime; none on the emulator.
        rival_ms: Of the peer that one of ours is compared with, by regime.
    """

    case: Case
    name: str
    is_peer: bool
    given: Given
    run: Run
    error: float
    times: Mapping[str, Timing]
    rival_ms: Mapping[str, float]

    @cached_property
    def sustained(self) -> Sustained:
        """Behind all that is timed; takes a second."""
        return sustain(self.run)

    @property
    def is_right(self) -> bool:
        return self.error < self.given.tolerance  # NaN is not


@dataclass
class Runner:
    """Measures one case after the other.

    Attributes:
        device: cuda; or cpu, where candidates are checked by the emulator and nothing is timed.
        say: Prints a line: who is left out, and why.
        repeats: In turn.
        milliseconds: Back to back, for each candidate.
    """

    device: str
    say: Callable[[str], None]
    repeats: int = 20
    milliseconds: float = 200.0
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _missing: set[str] = field(default_factory=set)

    def measure(self, case: Case, regimes: Collection[str]) -> list[CaseResult]:
        """Checks all candidates that are here and take the case, then times them.

        What a candidate raises leaves it out.

        Raises:
            GpuLostError: It broke the GPU's state for this process.
            ValueError: No candidate has such a name.
        """
        operation = BENCHES[case.operation]
        given = operation.prepare(case, self.device)
        runs = self._runs(case, operation, given)
        self._build([run for name, run in runs.items() if name not in operation.peers])
        errors: dict[str, float] = {}
        for name, run in runs.items():
            with self._leaving_out(case, name):
                errors[name] = given.error_of(run())
        runs = {name: runs[name] for name in errors}
        times = {r: self._timed(r, runs, operation) for r in regimes} if self._is_gpu else {}
        return [
            CaseResult(
                case,
                name,
                name in operation.peers,
                given,
                run,
                errors[name],
                {regime: found[name] for regime, found in times.items()},
                {
                    regime: ms
                    for regime, found in times.items()
                    if (ms := _rival_ms(operation, name, found)) is not None
                },
            )
            for name, run in runs.items()
        ]

    @property
    def _is_gpu(self) -> bool:
        return self.device == "cuda"

    def _runs(self, case: Case, operation: OperationBench[Given], given: Given) -> dict[str, Run]:
        runs = {}
        for name in dict.fromkeys(case.candidates):
            make = candidate_of(operation, name)
            peer = operation.peers.get(name)
            if peer is not None and (why := peer.package.why_missing()):
                if name not in self._missing:
                    self.say(f"left out: {name}: {why}")
                    self._missing.add(name)
                continue
            with self._leaving_out(case, name):
                if (run := make(given)) is not None:
                    runs[name] = run
        return runs

    def _build(self, runs: list[Run]) -> None:
        """Makes first calls side by side: most of one is a compiler's time. What they raise, they
        raise again."""

        def call(run: Run) -> None:
            with suppress(Exception):
                run()

        with ThreadPoolExecutor() as threads:
            list(threads.map(call, runs))

    @contextmanager
    def _leaving_out(self, case: Case, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            here = torch.empty(0, device=self.device)
            self.say(f"left out: {name}: {case}: {why_failed(name, error, here)}")

    def _timed(
        self, regime: str, runs: Mapping[str, Run], operation: OperationBench[Given]
    ) -> Mapping[str, Timing]:
        runs = rotated(runs, next(self._turns))
        if not runs:
            return {}
        if regime == BACK_TO_BACK:
            return time_back_to_back(runs, milliseconds=self.milliseconds)
        if regime == IN_GRAPH:
            return time_in_graph(runs)
        head_start, pause = operation.head_start, operation.pause
        return time_interleaved(runs, repeats=self.repeats, head_start=head_start, pause=pause)


def candidate_of(operation: OperationBench[Given], name: str) -> Make[Given]:
    """Returns what makes the run of a candidate. Raises ValueError: The operation has none of
    that name."""
    if name in operation.peers:
        return operation.peers[name].make
    if name in operation.ours:
        return operation.ours[name]
    if is_kernel_name(name):
        config = parse_kernel_name_into_config(name)
        if config.operation == operation.kernels:
            return partial(operation.of_config, config)
    supported = ", ".join((*operation.ours, *operation.peers))
    raise ValueError(
        f"candidate {name!r} is not known; supported: {supported}, "
        f"and kernels of {operation.kernels} by their names"
    )


def _rival_ms(
    operation: OperationBench[Given], name: str, times: Mapping[str, Timing]
) -> float | None:
    if name in operation.peers:
        return None
    beside = operation.beside.get(name, "")
    if beside in times:
        return times[beside].ms
    return min((times[peer].ms for peer in operation.peers if peer in times), default=None)
