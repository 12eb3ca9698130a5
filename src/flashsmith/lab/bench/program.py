"""The program of every list of cases, which measures them and writes a row for each candidate."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flashsmith import settings
from flashsmith.configs.base import Capability
from flashsmith.lab.bench.cases import Case, chosen
from flashsmith.lab.bench.chosen_kernels import build_chosen
from flashsmith.lab.bench.columns import regimes_of, row_of
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.resources import load_and_describe
from flashsmith.lab.bench.results import MISSING
from flashsmith.lab.bench.rows_file import make_parser, recorded, write_rows, write_stamp
from flashsmith.lab.bench.runner import REGIMES, CaseResult, Runner, candidate_of
from flashsmith.lab.bench.shard import Shard
from flashsmith.lab.bench.timer import PERIOD_MS

_RATIOS = ("of_best_peer", "of_fa3")  # ends of the names of columns with ratios


@dataclass(frozen=True)
class Benchmark:
    """A list of cases, and the file of their rows.

    Attributes:
        name: The file's name, without ``.csv``.
        columns: The file's columns, which decide in which regimes candidates are timed.
        cases: Returns the usual cases, which are measured without ``--cases``.
        more: Returns further cases that ``--cases`` may choose.
        needs: The compute capability that a GPU must have to be measured; None: any.
        kinds: Returns the names of the means to which the case's ratios contribute.
        resources: The file for ptxas's figures of the kernels, which are then built before the
            first case; "": no such file.
        repeats: The number of turns of a candidate, unless the command line sets it.
        regimes: Returns the regimes in which a case may be timed; it is in those of the columns.
    """

    name: str
    columns: Sequence[str]
    cases: Callable[[], Iterable[Case]]
    more: Callable[[], Iterable[Case]] = tuple
    needs: Capability | None = None
    kinds: Callable[[Case], Sequence[str]] = lambda case: (case.group or case.operation,)
    resources: str = ""
    repeats: int = 20
    regimes: Callable[[Case], Collection[str]] = lambda case: REGIMES

    def chosen(self, pattern: str | None) -> list[Case]:
        """Returns the cases whose words contain the pattern; None: the usual cases.

        Raises:
            ValueError: No case contains it.
        """
        if pattern is None:
            return list(self.cases())
        return chosen((*self.cases(), *self.more()), pattern)


def run_program(
    benchmark: Benchmark, description: str | None, words: Sequence[str] | None = None
) -> int:
    """Runs the command line and returns the exit status, which is 1 if a result is wrong.

    Raises:
        GpuLostError: A candidate broke the GPU's state for this process; earlier rows are kept.
    """
    parser = _parser(benchmark, description)
    arguments = parser.parse_args(words)
    try:
        cases = _told(benchmark.chosen(arguments.cases), arguments.candidate, arguments.config)
    except ValueError as error:
        parser.error(str(error))
    cases = [*arguments.shard.of(cases)]
    if arguments.list:
        print(*cases, sep="\n")
        return 0
    if arguments.out is None:
        parser.error("--out is needed, the folder for the results")
    device = "cuda"
    if arguments.dry:
        device, cases = "cpu", list(dict.fromkeys(case.tiny() for case in cases))
    elif benchmark.needs and torch.cuda.get_device_capability() != benchmark.needs:
        print(f"no GPU of compute capability {'.'.join(map(str, benchmark.needs))}")
        return 0
    runner = Runner(device, arguments.repeats, arguments.milliseconds)
    os.environ.update({settings.BACKGROUND_BUILD.name: "off"})  # measure no fallback
    torch.manual_seed(0)
    return _measure(benchmark, cases, runner, arguments.out / f"{benchmark.name}.csv")


def _told(cases: Iterable[Case], only: Sequence[str], more: Sequence[str]) -> list[Case]:
    """Returns the cases with the candidates of the command line.

    Args:
        only: Candidates that replace those of each case, unless empty.
        more: Candidates that are added.

    Raises:
        ValueError: An operation does not know a candidate.
    """
    told = [replace(each, candidates=(*(only or each.candidates), *more)) for each in cases]
    for case in told:
        for name in case.candidates:
            candidate_of(BENCHES[case.operation], name)
    return told


def _parser(benchmark: Benchmark, description: str | None) -> argparse.ArgumentParser:
    parser = make_parser(description, required=False)
    parser.add_argument("--cases", help="a part of their words, with * and ?; default: the usual")
    parser.add_argument(
        "--shard",
        type=Shard.parse,
        default=Shard(),
        metavar="I/N",
        help="measure every N-th of the cases, from I on; several GPUs then share them",
    )
    parser.add_argument("--list", action="store_true", help="print the cases, measure nothing")
    parser.add_argument("--dry", action="store_true", help="tiny, on the emulator, without times")
    parser.add_argument(
        "--candidate",
        action="append",
        default=[],
        help="in place of a case's; may be repeated",
    )
    parser.add_argument(
        "--config", action="append", default=[], help="a kernel beside them; may be repeated"
    )
    parser.add_argument("--repeats", type=int, default=benchmark.repeats, help="in turn, each")
    parser.add_argument("--milliseconds", type=float, default=PERIOD_MS, help="back to back, each")
    return parser


def _measure(benchmark: Benchmark, cases: Sequence[Case], runner: Runner, path: Path) -> int:
    sizes = {"repeats": runner.repeats, "milliseconds": runner.milliseconds}
    write_stamp(path, runner.device, **sizes, peers=_builds(cases))
    if benchmark.resources and runner.device == "cuda":
        write_rows(path.with_name(benchmark.resources), load_and_describe(cases))
    if runner.device == "cuda":
        build_chosen(cases)
    regimes, ratios = regimes_of(benchmark.columns), Ratios()
    wrong: list[str] = []
    left_out: set[str] = set()

    def rows() -> Iterator[Mapping[str, object]]:
        for case in cases:
            start = time.monotonic()
            results = runner.measure(case, [r for r in regimes if r in benchmark.regimes(case)])
            print(f"{time.monotonic() - start:.1f} s: {case}", file=sys.stderr, flush=True)
            for measured in results:
                if measured.checked.comparison is None:
                    _say_left_out(measured, left_out)
                    continue
                if not measured.is_right:
                    wrong.append(f"WRONG {case}: {measured.name}: {measured.error:.3g}")
                    print(wrong[-1], flush=True)
                row = row_of(benchmark.columns, measured)
                for kind in benchmark.kinds(case):
                    ratios.add(kind, measured.name, row)
                yield row

    for row in recorded(path, benchmark.columns, rows()):
        print(*row.values(), flush=True)
    print(*ratios.lines(), *wrong, sep="\n")
    return 1 if wrong else 0


def _say_left_out(measured: CaseResult, said: set[str]) -> None:
    """Reports each missing candidate once, and each failed candidate once for each case."""
    where = "" if measured.checked.status == MISSING else f" {measured.case}:"
    line = f"left out: {measured.name}:{where} {measured.checked.reason}"
    if line not in said:
        print(line, file=sys.stderr, flush=True)
        said.add(line)


def _builds(cases: Iterable[Case]) -> dict[str, str]:
    """Returns the build of each peer, or the reason why it is missing."""
    packages = {
        name: peer.package
        for case in cases
        for name, peer in BENCHES[case.operation].peers.items()
        if name in case.candidates
    }
    return {name: each.why_missing() or each.build() for name, each in packages.items()}


class Ratios:
    """Collects the times of peers over ours, to report their means."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[float]] = {}

    def add(self, kind: str, candidate: str, row: Mapping[str, object]) -> None:
        for column, cell in row.items():
            if column.endswith(_RATIOS) and cell:
                key = kind, candidate, column.partition("of_")[0].replace("_", " ").strip()
                self._found.setdefault(key, []).append(float(str(cell)))

    def lines(self) -> Iterator[str]:
        """Yields the geometric mean, the minimum, and how many are below 1, of each kind, candidate
        and regime."""
        for key, ratios in self._found.items():
            title, mean = ", ".join(filter(None, key)), statistics.geometric_mean(ratios)
            n, below = len(ratios), sum(ratio < 1 for ratio in ratios)
            yield f"{title}: {mean:.3f}, least {min(ratios):.3f}, {below} of {n} shapes below 1"
