"""The command line: ``python -m tools.mutants --help``."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from flashsmith.lab.bench.shard import Shard
from tools.mutants.areas import AREAS, BY_NAME
from tools.mutants.kernels import link_entries
from tools.mutants.mutant import change_between
from tools.mutants.results import Table, equivalents, summary
from tools.mutants.sample import Queue, mutants_of, of_places, sample
from tools.mutants.sandbox import Workshop
from tools.mutants.schedule import Schedule

ROOT = Path(__file__).resolve().parent.parent.parent
_SURVIVED = 1  # exit status


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    areas = [BY_NAME[name] for name in options.areas] if options.areas else None
    if options.only:
        among = [m for area in areas or AREAS for m in mutants_of(area, ROOT)]
        places = [[mutant] for mutant in among if mutant.id in options.only]
    else:
        places = sample(ROOT, options.count, options.seed, areas)
        places = options.shard.of(places)
    if options.list:
        _print_list(places)
        return 0
    options.store.mkdir(parents=True, exist_ok=True)
    table = Table(options.out)
    if options.only:
        table.results.clear()
    link_entries(ROOT / "build/test-cache", options.store.resolve() / "kernels")
    workshop = Workshop(ROOT, options.store.resolve())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: workshop.stop.set())  # results are kept
    Schedule(workshop, table).run(places, options.jobs, options.minutes)
    results, missing = of_places(places, table.results)
    reasons = equivalents()
    print(summary(results, reasons))
    if missing:
        print(f"not run: {missing} of {len(places)}; the same command goes on with them")
    return _SURVIVED if any(r.status == "survived" and r.id not in reasons for r in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--areas", type=_areas, help="some of: " + ", ".join(BY_NAME))
    parser.add_argument(
        "--shard", type=Shard.parse, default=Shard(), help="I/N: every N-th, from I on"
    )
    parser.add_argument("--only", action="append", metavar="ID", help="this mutant; repeatable")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--minutes", type=float, help="stop after so long, and keep the results")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutants/results.csv",
                        help="results; mutants that are in it are not run again")  # fmt: skip
    parser.add_argument("--store", type=Path, default=ROOT / "build/mutants/store",
                        help="folder of compiled objects and of each stage's time")  # fmt: skip
    return parser


def _areas(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in BY_NAME]:
        raise argparse.ArgumentTypeError(f"no areas: {', '.join(unknown)}")
    return names


def _print_list(places: Sequence[Queue]) -> None:
    for queue in places:
        mutant = queue[0]
        text = (ROOT / mutant.file).read_text()
        change = change_between(text, mutant.mutate(text))
        print(f"{mutant.id} {mutant.area} {mutant.file}:{mutant.line} {mutant.operator}")
        print(f"    - {change.before}\n    + {change.after}")


if __name__ == "__main__":
    raise SystemExit(main())
