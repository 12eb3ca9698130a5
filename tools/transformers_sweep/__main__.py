"""The command line: ``python -m tools.transformers_sweep --help``."""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

from tools.transformers_sweep.classes import family_of, model_classes
from tools.transformers_sweep.sweep import Row, sweep

ROOT = Path(__file__).resolve().parent.parent.parent
_COLUMNS = ("family", "class", "result", "worst", "cases", "note")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        swept: set[type] = set()
        for model_class in model_classes():
            name = f"{family_of(model_class)} {model_class.__name__}"
            if not re.search(options.only, name):
                continue
            row = _within(options.seconds, model_class, swept)
            if not row.result.startswith(("cannot", "as ")):
                swept.add(model_class)
            counts[row.result.partition(":")[0].split()[0]] += 1
            writer.writerow(cells(row))
            file.flush()
            print(*cells(row), sep=" | ", flush=True)
    print(f"transformers {transformers.__version__}:", dict(counts))
    return 1 if counts["differs"] + counts["fails"] else 0


def cells(row: Row) -> list[str]:
    """Returns a line of the table; cases that agree are only counted."""
    agreed = sum(outcome == "agrees" for outcome in row.cases.values())
    others = (f"{name}: {o}" for name, o in row.cases.items() if o != "agrees")
    cases = "; ".join([f"{agreed} agree", *others]) if row.cases else ""
    worst = f"{row.worst:.1e}" if row.cases else ""
    return [row.family, row.name, row.result, worst, cases, row.note]


def _within(seconds: int, model_class: Any, swept: set[type]) -> Row:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return sweep(model_class, swept)
    except Exception as error:
        note = f"{type(error).__name__}: {error}"[:200]
        return Row(family_of(model_class), model_class.__name__, "fails", note=note)
    finally:
        signal.alarm(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.transformers_sweep", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression: 'family Class'")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "transformers_sweep.csv")
    parser.add_argument("--seconds", type=int, default=120, help="for a class")
    return parser


if __name__ == "__main__":
    sys.exit(main())
