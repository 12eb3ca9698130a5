"""The command line: ``python -m tools.flash_attn_tests --help``."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# With builds in the background, the choice of kernels would depend on what was built before.
os.environ.setdefault("FLASHSMITH_BACKGROUND_BUILD", "off")

import torch

from flashsmith.configs import KernelId
from flashsmith.errors import BuildError
from flashsmith.runtime.device import target_of
from flashsmith.runtime.kernels import load_kernels
from tools.flash_attn_tests.cases import Grid, runnable
from tools.flash_attn_tests.kernels import kernels_of, kind_of
from tools.flash_attn_tests.results import Row, read_outcomes, summary, write_rows
from tools.flash_attn_tests.rewrite import Part, rewrite
from tools.flash_attn_tests.sample import Limits, Sample, draw, shuffled, write_cases

ROOT = Path(__file__).resolve().parent.parent.parent
_FILE, _JUNIT, _TABLE, _KERNELS = "test_flash_attn.py", "junit.xml", "results.csv", "kernels.txt"


@dataclass(frozen=True)
class Prepared:
    """The tests and cases that run, and for each test the numbers of other cases by reason."""

    tests: list[Part]
    grids: dict[str, Grid]
    sample: Sample
    left_out: dict[str, Counter[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    prepared = prepare(options)
    kernels = sorted(prepared.sample.kernels)
    (options.out / _KERNELS).write_text("".join(f"{kernel.name}\n" for kernel in kernels))
    count = sum(map(len, prepared.sample.cases.values()))
    print(f"{count} cases need {len(kernels)} kernels", flush=True)
    if options.prepare:
        return 0
    if kernels:
        build(kernels, options.device)
    passed, skipped = _run_pytest(options) if count else (Counter[str](), Counter[str]())
    rows = [_row(test, prepared, passed[test.name], skipped[test.name]) for test in prepared.tests]
    write_rows(options.out / _TABLE, rows)
    print(summary(rows))
    return int(any(row.failed for row in rows))


def prepare(options: argparse.Namespace) -> Prepared:
    """Draws the sample, and writes the file of tests that runs."""
    tree, tests = rewrite(options.file.read_text(), options.device)
    module = _execute(tree, options.file)
    grids = {test.name: Grid.of(module[test.name]) for test in tests}
    candidates, left_out = {}, {}
    for test in tests:
        if not test.why_not and options.tests.search(test.name):
            numbers, left_out[test.name] = runnable(grids[test.name], options.at_most)
            seed = f"{options.seed} {test.name}"
            candidates[test.name] = shuffled(grids[test.name], numbers, seed)
    sample = draw(
        candidates,
        Limits(options.cases, options.kernels),
        kind_of,
        lambda name, case: kernels_of(module[name], case),
    )
    (options.out / _FILE).write_text(write_cases(tree, sample.cases))
    return Prepared(tests, grids, sample, left_out)


def _execute(tree: ast.Module, path: Path) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": path.stem}
    try:
        exec(compile(tree, str(path), "exec"), module)
    except ModuleNotFoundError as error:
        sys.exit(f"error: {path} needs a package that is not installed: {error}")
    return module


def build(kernels: Sequence[KernelId], device: str) -> None:
    """Builds the kernels on all processors. A kernel that fails is left to fail in its cases."""
    try:
        load_kernels(kernels, target_of(torch.device(device)))
        print("the kernels are built", flush=True)
    except BuildError as error:
        print(f"not all kernels could be built: {error}", flush=True)


def _run_pytest(options: argparse.Namespace) -> tuple[Counter[str], Counter[str]]:
    """Runs pytest, and returns the numbers of passed and of skipped cases by test."""
    outcomes = options.out / _JUNIT
    outcomes.unlink(missing_ok=True)
    workers = ["-n", str(options.jobs)] if options.jobs > 1 else []
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += [f"--junitxml={outcomes}", *workers, str(options.out / _FILE)]
    subprocess.run(command, cwd=ROOT, check=False)
    if not outcomes.exists():
        sys.exit("error: pytest wrote no results; it says why above")
    return read_outcomes(outcomes)


def _row(test: Part, prepared: Prepared, passed: int, skipped: int) -> Row:
    cases = len(prepared.grids[test.name])
    run = len(prepared.sample.cases.get(test.name, ()))
    left_out = prepared.left_out.get(test.name, {"not asked for": cases})
    reasons = Counter({test.why_not: cases} if test.why_not else left_out)
    reasons["not in the sample"] = cases - run - reasons.total()
    return Row(
        test.name,
        cases,
        run,
        passed,
        run - passed - skipped,
        skipped,
        test.assertions,
        "; ".join(f"{count} {reason}" for reason, count in reasons.items() if count),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.flash_attn_tests", description=__doc__)
    parser.add_argument("file", type=Path, help="FlashAttention's tests/test_flash_attn.py")
    parser.add_argument("--tests", type=re.compile, default=re.compile(""), metavar="REGEX",
                        help="only those whose names it finds")  # fmt: skip
    parser.add_argument("--cases", type=int, default=300, help="of each test, at most")
    parser.add_argument("--kernels", type=int, default=120, help="of all cases, at most")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--at-most", type=_bounds, default={}, metavar="d=64,seqlen=256",
                        help="only cases whose parameters are no larger")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time (pytest-xdist)")
    parser.add_argument("--device", choices=("cuda", "cpu"),
                        default="cuda" if torch.cuda.is_available() else "cpu",
                        help="default: cuda if there is a GPU; cpu is the emulator")  # fmt: skip
    parser.add_argument("--prepare", action="store_true",
                        help="run nothing, but write what would run")  # fmt: skip
    parser.add_argument("--out", type=lambda text: Path(text).resolve(),
                        default=ROOT / "build" / "flash_attn_tests",
                        help=f"folder of {_TABLE}, {_KERNELS}, {_FILE} and {_JUNIT}")  # fmt: skip
    return parser


def _bounds(text: str) -> dict[str, int]:
    try:
        return {
            name: int(maximum) for name, maximum in (each.split("=") for each in text.split(","))
        }
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not name=number,name=number") from None


if __name__ == "__main__":
    raise SystemExit(main())
