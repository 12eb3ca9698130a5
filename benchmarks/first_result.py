"""Measures how long a new process waits for its first results, in an installed environment.

    python benchmarks/first_result.py --python VENV/bin/python --out build/gpu
    python benchmarks/first_result.py --python VENV/bin/python --small --out build/emulator

Each candidate runs in processes of its own (first_result_steps.py), in the environment of
``--python``, with empty caches. The first process finds the caches empty, and the second finds what
the first one left there. Without ``--compilers`` no program is on PATH and nvcc is not looked for
elsewhere, so a candidate either brings what it needs or fails, and the row says how.

A row is a step of a process: its seconds until the result is there, and the seconds since torch's
own first kernel was done, which has its row, too. Results are checked against float32 after the
last step. FLASHSMITH_SHARED_CACHE is heeded. Writes first_result.csv and its stamp,
first_result_environment.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashsmith import settings
from flashsmith.lab.bench.rows_file import make_parser, recorded, write_stamp

CANDIDATES = ("torch", "flashsmith", "fa4", "flashinfer")
COLUMNS = (
    *("candidate", "compilers", "process", "step"),
    *("seconds", "since_torch", "error", "failure"),
)
_STEPS = Path(__file__).with_name("first_result_steps.py")
_TOLERANCE = 0.02  # of the largest element: all candidates round to BF16
# A process finds its caches by these variables; other caches lie below HOME.
_FOLDERS = (
    *(settings.CACHE_DIR.name, "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("FLASHINFER_WORKSPACE_BASE", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"),
)


def environment(folder: Path, *, compilers: bool) -> dict[str, str]:
    """Returns the variables of a process whose caches are in ``folder``."""
    dropped = {*_FOLDERS, *(each.name for each in settings.ALL)} - {settings.SHARED_CACHE.name}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    kept |= dict.fromkeys(_FOLDERS, str(folder))
    if compilers:
        return kept
    empty = folder / "no-programs"
    empty.mkdir(exist_ok=True)
    for name in ("CUDA_HOME", "CUDA_PATH", "CC", "CXX"):
        kept.pop(name, None)
    return {**kept, settings.CUDA_COMPILER.name: "nvrtc", "PATH": str(empty)}


def steps_of(
    python: str, candidate: str, device: str, environment: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Runs a candidate's process, and yields its steps; a process that failed has a row, too."""
    command = [python, str(_STEPS), candidate, device]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        yield {"step": "process", "failure": words[-1][:300]}


def measure(
    python: str, device: str, candidates: list[str], *, compilers: bool
) -> Iterator[dict[str, Any]]:
    """Yields all rows, each process's as soon as it ended."""
    has = "found" if compilers else "none"
    for candidate in candidates:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            variables = environment(Path(name), compilers=compilers)
            for process in ("first", "second"):
                for row in steps_of(python, candidate, device, variables):
                    yield {"candidate": candidate, "compilers": has, "process": process, **row}


def main(words: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--python", default=sys.executable, help="of the environment to measure")
    parser.add_argument("--compilers", action="store_true", help="candidates may use compilers")
    parser.add_argument("--candidate", action="append", help=f"default: {', '.join(CANDIDATES)}")
    parser.add_argument("--small", action="store_true", help="on a CPU, by the emulator")
    arguments = parser.parse_args(words)
    device = "cpu" if arguments.small else "cuda"
    candidates = arguments.candidate or [*CANDIDATES]
    path = arguments.out / "first_result.csv"
    write_stamp(path, device, cores=str(os.cpu_count()))
    # The first process on a machine reads files that stay in memory, and would pay for all others.
    list(measure(arguments.python, device, candidates[:1], compilers=arguments.compilers))
    is_right = True
    rows = measure(arguments.python, device, candidates, compilers=arguments.compilers)
    for row in recorded(path, COLUMNS, rows):
        print(*(row[name] for name in COLUMNS if name in row), flush=True)
        if not float(row.get("error", 0)) < _TOLERANCE:
            print(f"WRONG: the error is {row['error']} of the largest element", flush=True)
            is_right = False
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
