"""Checks the candidates of a case, and times them together."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from flashsmith.configs import is_kernel_name, parse_kernel_name_into_config
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.monitor import Sample, Sustained, sustain
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.operations.base import Given, Make, OperationBench, OperationPeer, Run
from flashsmith.lab.bench.results import BACK_TO_BACK, FAILED, IN_TURN, MISSING, OK, WRONG
from flashsmith.lab.bench.timer import (
    PERIOD_MS,
    WARMUP_MS,
    Timing,
    rotated,
    time_back_to_back,
    time_in_graph,
    time_interleaved,
)
from flashsmith.reference import Comparison
from flashsmith.runtime.device import gpu_answers

IN_GRAPH = "in-graph"
REGIMES = (IN_TURN, BACK_TO_BACK, IN_GRAPH)
UNFIT = "unfit"  # the status of a candidate that does not support the problem
_REASON_LENGTH = 400  # compilers' messages are longer
MakeRun = Callable[[], Run | None]


@dataclass(frozen=True)
class Checked:
    """A candidate after its first run.

    Attributes:
        reason: Why the status is not OK.
        run: Computes the result once more, if the status is OK.
        comparison: The comparison of the result with the truth; None if the candidate did not run.
        counters: The emulator's counts.
    """

    status: str
    reason: str = ""
    run: Run | None = None
    comparison: Comparison | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseResult:
    """The result of one candidate of a case.

    Attributes:
        together: The times of all right candidates, by regime; none on the emulator.
        samples: The GPU's clock and power during the timing, by regime.
    """

    case: Case
    name: str
    operation: OperationBench[Any]
    given: Given
    checked: Checked
    together: Mapping[str, Mapping[str, Timing]]
    samples: Mapping[str, Sample]

    @property
    def times(self) -> Mapping[str, Timing]:
        """The candidate's times, by regime."""
        return {
            regime: times[self.name]
            for regime, times in self.together.items()
            if self.name in times
        }

    def rival_ms(self, regime: str) -> float | None:
        """Returns the time of the peer with which our candidate is compared; None for a peer."""
        if self.name in self.operation.peers:
            return None
        times = self.together[regime]
        beside = [n for n in self.operation.beside.get(self.name, ()) if n in times]
        return min((times[n].ms for n in beside), default=self.best_peer_ms(regime))

    def best_peer_ms(self, regime: str) -> float | None:
        times = self.together[regime]
        return min((times[name].ms for name in self.operation.peers if name in times), default=None)

    @property
    def is_right(self) -> bool:
        return self.checked.status == OK

    @property
    def error(self) -> float:
        """The error of the result, in the operation's measure."""
        assert self.checked.comparison is not None
        return self.checked.comparison.error

    @property
    def run(self) -> Run:
        """The function that runs the candidate, which must be right."""
        assert self.checked.run is not None
        return self.checked.run

    @cached_property
    def sustained(self) -> Sustained:
        """The rate of one second of work, measured when first read, after all timing."""
        return sustain(self.run)


@dataclass
class Runner:
    """Measures one case after the other.

    Attributes:
        device: cuda; or cpu, where the emulator runs and nothing is timed.
        repeats: The number of turns of each candidate in turn.
        milliseconds: The time of each candidate back to back.
        sample: Returns the GPU's clock and power since a time.monotonic().
    """

    device: str
    repeats: int = 20
    milliseconds: float = PERIOD_MS
    sample: Callable[[float], Sample] = lambda start: Sample()
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def measure(self, case: Case, regimes: Collection[str]) -> list[CaseResult]:
        """Checks all candidates that support the case, then times the right ones together.

        Raises:
            GpuLostError: A candidate broke the GPU's state for this process.
            ValueError: The operation does not know a candidate.
        """
        operation = BENCHES[case.operation]
        given = operation.prepare(case, self.device)
        makes = {n: partial(candidate_of(operation, n), given) for n in case.candidates}
        if operation.first_calls_compile:
            self._build([make for n, make in makes.items() if n not in operation.peers])
        checked = {n: self._check(operation.peers.get(n), n, makes[n], given) for n in makes}
        times: dict[str, Mapping[str, Timing]] = {}
        samples = {}
        for regime in regimes if self.times_anything else ():
            start = time.monotonic()
            try:
                times[regime] = self._timed(regime, checked, operation, given)
            except Exception as error:
                why = f"while it was timed with others: {type(error).__name__}: {error}"
                checked = {n: Checked(FAILED, why) if c.run else c for n, c in checked.items()}
            samples[regime] = self.sample(start)
        return [
            CaseResult(case, name, operation, given, each, times, samples)
            for name, each in checked.items()
            if each.status != UNFIT
        ]

    @property
    def times_anything(self) -> bool:
        return self.device == "cuda"

    def _build(self, makes: Sequence[MakeRun]) -> None:
        """Makes the first calls in parallel, because compilers take most of their time. Errors are
        ignored here: the check makes the calls again and reports them."""

        def call(make: MakeRun) -> None:
            with suppress(Exception):
                if run := make():
                    run()

        with ThreadPoolExecutor() as threads:
            list(threads.map(call, makes))

    def _check(
        self, peer: OperationPeer[Any] | None, name: str, make: MakeRun, given: Given
    ) -> Checked:
        if peer is not None and (why := peer.package.why_missing()):
            return Checked(MISSING, why)
        checked = check(name, make, given.compare, self.device)
        return replace(checked, counters=given.counters()) if checked.run else checked

    def _timed(
        self,
        regime: str,
        checked: Mapping[str, Checked],
        operation: OperationBench[Given],
        given: Given,
    ) -> Mapping[str, Timing]:
        runs = {name: each.run for name, each in checked.items() if each.run is not None}
        if not runs:
            return {}
        runs = rotated(runs, next(self._turns))
        if regime == BACK_TO_BACK:
            warmup_ms = min(WARMUP_MS, 2 * self.milliseconds)  # short runs stay short
            return time_back_to_back(runs, milliseconds=self.milliseconds, warmup_ms=warmup_ms)
        if regime == IN_GRAPH:
            _, *others = given.layers()
            return time_in_graph(
                {n: (run, *_runs(operation, n, others)) for n, run in runs.items()}
            )
        head_start, pause = operation.head_start, operation.pause
        return time_interleaved(runs, repeats=self.repeats, head_start=head_start, pause=pause)


def _runs(operation: OperationBench[Given], name: str, others: Sequence[Given]) -> Iterator[Run]:
    """Yields a candidate's runs with other inputs of a case."""
    for given in others:
        run = candidate_of(operation, name)(given)
        assert run is not None, "inputs of the same sizes are supported"
        yield run


def check(
    name: str,
    make: MakeRun,
    compare: Callable[[Any], Comparison],
    device: str,
) -> Checked:
    """Makes the run of a candidate, runs it once, and compares the result.

    Raises:
        GpuLostError: The run broke the GPU's state for this process.
    """
    try:
        if (run := make()) is None:
            return Checked(UNFIT)
        found = compare(run())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
        if device == "cuda" and not gpu_answers():
            raise GpuLostError(name, reason) from error
        return Checked(FAILED, reason)
    if found.ok:
        return Checked(OK, run=run, comparison=found)
    why = f"error {found.error:.3g}, allowed {found.tolerance:.3g}"
    return Checked(WRONG, "; ".join(filter(None, (why, found.worst))), comparison=found)


def candidate_of(operation: OperationBench[Given], name: str) -> Make[Given]:
    """Returns the function that makes a candidate's run.

    Raises:
        ValueError: The operation does not know the candidate.
    """
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
