"""Runs mutants in several sandboxes at a time, until the time is over."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tools.mutants.areas import BY_NAME, Stage
from tools.mutants.mutant import Mutant, change_between
from tools.mutants.results import Result, Table
from tools.mutants.sample import Queue
from tools.mutants.sandbox import NO_TEST, Sandbox, Workshop

_MAX_SUBSTITUTES = 8
_BASELINE_SECONDS = 3600.0
_FACTOR, _SLACK_SECONDS = 5.0, 60.0  # time limit = factor * time without a mutant + slack


@dataclass(frozen=True)
class Baseline:
    """A stage without a mutant: its time, and the tests that fail on this machine anyway."""

    seconds: float
    failing: tuple[str, ...]
    empty: bool  # no tests, or none that can run here

    @property
    def limit(self) -> float:
        return _FACTOR * self.seconds + _SLACK_SECONDS


class Baselines:
    """The baselines of stages: each runs when first needed, fills the store of objects, and is kept
    on disk."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._tree = _hash_of_tree(workshop.root)
        self._locks: dict[Stage, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()

    def of(self, stage: Stage) -> Baseline | None:
        """Returns the baseline of a stage; None if the run was stopped."""
        with self._guard:
            lock = self._locks[stage]
        with lock:
            path = self._workshop.store / f"baseline-{self._key(stage)}.json"
            if not path.exists():
                baseline = self._run(stage)
                if baseline is None:
                    return None
                path.write_text(json.dumps(baseline.__dict__))
            known = json.loads(path.read_text())
            return Baseline(known["seconds"], tuple(known["failing"]), known["empty"])

    def _run(self, stage: Stage) -> Baseline | None:
        with self._workshop.sandbox() as sandbox:
            run = sandbox.run(stage, _BASELINE_SECONDS, record=True)
        if run.status == "stopped":
            return None
        if run.failed == (NO_TEST,):
            # A failure of pytest itself would seem to kill every mutant.
            raise RuntimeError(f"pytest fails without a mutant at {stage}:\n{run.output[-3000:]}")
        # Tests whose sources do not compile here are among the failed ones; the others are used.
        unusable = run.status not in ("passed", "failed", "not-compiled", "no-tests")
        if run.failed or unusable:
            names = "\n".join(run.failed)
            print(
                f"not used, fails without a mutant: {stage}\n{names}", file=sys.stderr, flush=True
            )
        if unusable:
            print(run.output[-3000:], file=sys.stderr, flush=True)
        return Baseline(run.seconds, run.failed, unusable or run.status == "no-tests")

    def _key(self, stage: Stage) -> str:
        return hashlib.sha256(f"{self._tree}{stage}".encode()).hexdigest()[:16]


class Schedule:
    def __init__(self, workshop: Workshop, table: Table) -> None:
        self._workshop = workshop
        self._table = table
        self._baselines = Baselines(workshop)

    def run(self, places: Sequence[Queue], jobs: int, minutes: float | None) -> None:
        """Fills the table; returns early, keeping all results, after ``minutes`` or on Ctrl-C."""
        timer = threading.Timer((minutes or 0) * 60, self._workshop.stop.set)
        if minutes is not None:
            timer.start()
        try:
            with ThreadPoolExecutor(jobs) as pool:
                try:
                    open_places = [queue for queue in places if self._next_of(queue)]
                    # Baselines of the first stages run beforehand; mutants run the others.
                    stages = _stages_of(open_places)[: 2 * jobs] if jobs > 1 else []
                    tasks = [pool.submit(self._baselines.of, stage) for stage in stages]
                    tasks += [pool.submit(self._fill, q) for q in _across_areas(open_places)]
                    for task in tasks:
                        task.result()
                except BaseException:
                    self._workshop.stop.set()
                    raise
        finally:
            timer.cancel()

    def _next_of(self, queue: Queue) -> Mutant | None:
        """Returns the mutant to run for a place; None if one that compiled has a result."""
        for mutant in queue[:_MAX_SUBSTITUTES]:
            known = self._table.results.get(mutant.id)
            if known is None:
                return mutant
            if known.status != "not-compiled":
                return None
        return None

    def _fill(self, queue: Queue) -> None:
        """Runs the mutants of a place until one compiles."""
        while (mutant := self._next_of(queue)) and not self._workshop.stop.is_set():
            result = self.judge(mutant)
            if result is None:
                return
            self._table.add(result)
            print(f"{result.status:<12} {result.seconds:6.1f} s  {result}", flush=True)

    def judge(self, mutant: Mutant) -> Result | None:
        """Returns the result of a mutant; None if the run was stopped."""
        text = (self._workshop.root / mutant.file).read_text()
        mutated = mutant.mutate(text)
        start = time.monotonic()
        if not mutant.is_cxx and not _parses(mutated):
            status, killer = "not-compiled", ""
        else:
            with self._workshop.sandbox(mutant.file, mutated) as sandbox:
                status, killer = self._meet_tests(mutant, sandbox)
        if status == "stopped":
            return None
        change = change_between(text, mutated)
        seconds = round(time.monotonic() - start, 1)
        return Result(mutant.id, mutant.area, mutant.file, mutant.line, mutant.operator,
                      change.before, change.after, status, seconds, killer)  # fmt: skip

    def _meet_tests(self, mutant: Mutant, sandbox: Sandbox) -> tuple[str, str]:
        """Returns the status, and the test that failed first."""
        met = False
        for stage in BY_NAME[mutant.area].stages:
            baseline = self._baselines.of(stage)
            if baseline is None:
                return "stopped", ""
            if baseline.empty:
                continue
            run = sandbox.run(stage, baseline.limit, deselected=baseline.failing)
            met |= run.status != "no-tests"
            if run.status == "not-compiled" and not mutant.is_cxx:
                return "killed", run.failed[0]
            if run.status in ("stopped", "not-compiled", "timeout"):
                return run.status, run.failed[0] if run.failed else str(stage.files[0])
            if run.status == "failed":
                return "killed", run.failed[0]
        # If no test of the area passes without a mutant, another machine has to run this mutant.
        return ("survived" if met else "stopped"), ""


def _stages_of(places: Sequence[Queue]) -> list[Stage]:
    """Returns all first stages, then all second ones, and so on."""
    areas = dict.fromkeys(queue[0].area for queue in places)
    rounds = zip_longest(*(BY_NAME[area].stages for area in areas))
    return list(dict.fromkeys(stage for stages in rounds for stage in stages if stage))


def _across_areas(places: Sequence[Queue]) -> list[Queue]:
    """Returns the places with areas in turn, so that slow areas do not all come last, and mutants
    do not wait for one baseline."""
    seen: dict[str, int] = defaultdict(int)
    keyed = []
    for queue in places:
        area = queue[0].area
        keyed.append((seen[area], queue))
        seen[area] += 1
    return [queue for _, queue in sorted(keyed, key=lambda k: k[0] / seen[k[1][0].area])]


def _parses(text: str) -> bool:
    try:
        compile(text, "<mutant>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _hash_of_tree(root: Path) -> str:
    digest = hashlib.sha256()
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
