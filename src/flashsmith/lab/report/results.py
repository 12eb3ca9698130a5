"""Reads the times of kernels and their peers from the CSV files of a folder of results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import flashsmith
from flashsmith.configs import KernelId, Variant, Workload, parse_kernel_name_into_instance
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.lab.bench.peer_titles import PEER_TITLES
from flashsmith.selection.stamped_csv import read_measure

# Results are searched in the working directory, in the checkout that this is installed from, and in
# the wheel (pyproject.toml puts them there).
_PACKAGE = Path(flashsmith.__file__).parent
RESULTS_FOLDERS = (
    Path("benchmarks") / "results",
    _PACKAGE.parents[1] / "benchmarks" / "results",
    _PACKAGE / "results",
)
_ENVIRONMENT = "environment.json"
_SHAPE_COLUMNS = {"kernel", *ROW_COLUMNS}
_TIME_COLUMNS = _SHAPE_COLUMNS | {"ms", "tflops"}
_PROFILE_COLUMNS = _SHAPE_COLUMNS | {"duration_us", "cycles"}
_REGIME, _IN_TURN = "regime", "in-turn"
_REGISTER_COLUMNS = {"kernel", "arch", "registers", "spill_stores", "spill_loads", "shared"}
_STALL = "stall_"
BASELINE = PEER_TITLES["fa2"]

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """A measurement of one candidate on one workload, in one run (a file of results)."""

    run: str
    candidate: KernelId | str  # a peer by its title
    workload: Workload

    @property
    def name(self) -> str:
        return str(self.candidate)

    @property
    def family(self) -> str | None:
        """The name of the kernel's family; None for a peer."""
        return self.candidate.config.family if isinstance(self.candidate, KernelId) else None


@dataclass(frozen=True)
class Time(Measured):
    ms: float
    tflops: float
    sm_clock_mhz: float | None = None


@dataclass(frozen=True)
class Profile(Measured):
    """The measurements of ncu, as `flashsmith profile` writes them."""

    metrics: dict[str, float]
    stalls: dict[str, float]  # waiting warps whenever a warp issues, the largest first

    @property
    def clock_mhz(self) -> float | None:
        cycles, us = self.metrics.get("cycles"), self.metrics.get("duration_us")
        return cycles / us if cycles and us else None


@dataclass(frozen=True)
class Results:
    """The contents of a folder of results: its environment, times, profiles and registers."""

    folder: Path | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    times: tuple[Time, ...] = ()
    profiles: tuple[Profile, ...] = ()
    registers: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    # The keys are the folders of sessions below ``folder``, then dtypes.
    ceilings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def gpu(self) -> str:
        return str(self.environment.get("gpu", ""))

    @property
    def sm_clock_mhz(self) -> float | None:
        """The clock in the stamp, "1935 MHz"."""
        words = str(self.environment.get("clocks.sm", "")).split()
        return float(words[0]) if words and words[0].replace(".", "", 1).isdigit() else None

    def ceiling(self, dtype: str, run: str) -> dict[str, float] | None:
        """Returns the matmul_tflops and copy_gb_per_s that the run's session measured, else those
        of the folder."""
        own = self.ceilings.get(str(Path(run).parent), {})
        found = own.get(dtype) or self.environment.get("ceilings", {}).get(dtype)
        return {k: float(v) for k, v in found.items() if k != "dtype"} if found else None


def find_results(gpu: str | None = None, roots: Sequence[Path] = RESULTS_FOLDERS) -> Path | None:
    """Returns the newest folder <root>/<gpu>/<date> with an environment, in the first root that has
    one; ``gpu`` restricts the search to one GPU."""
    for root in roots:
        stamps = sorted(root.glob(f"*/*/{_ENVIRONMENT}"), key=lambda path: path.parent.name)
        for stamp in reversed(stamps):
            if gpu is None or _same_gpu(gpu, str(_read_json(stamp).get("gpu", ""))):
                return stamp.parent
    return None


def read_results(folder: Path, gpu: str | None = None) -> Results:
    """Reads every CSV file under a folder that has times, profiles or ptxas' figures.

    The environment is that of the folders' stamps, or without any, of single files' stamps.

    Raises:
        ValueError: ``folder`` is no folder, has no times, or is of another GPU than ``gpu``.
    """
    if not folder.is_dir():
        raise ValueError(f"--results is {folder}, which is no folder; `flashsmith bench` makes one")
    found_stamps = [*folder.rglob(_ENVIRONMENT)] or folder.rglob(f"*_{_ENVIRONMENT}")
    stamps = sorted(found_stamps, key=lambda path: len(path.parts))
    environment: dict[str, Any] = {}
    ceilings: dict[str, dict[str, Any]] = {}
    for stamp in reversed(stamps):  # the folder's own stamp comes last and overrides the others
        document = _read_json(stamp)
        environment |= document
        ceilings[str(stamp.parent.relative_to(folder))] = document.get("ceilings", {})
    found = str(environment.get("gpu", "unknown"))
    if gpu is not None and not _same_gpu(gpu, found):
        raise ValueError(f"--gpu is {gpu!r}, but the results in {folder} are of {found!r}")
    times: list[Time] = []
    profiles: list[Profile] = []
    registers: dict[tuple[str, str], dict[str, int]] = {}
    for path in sorted(folder.rglob("*.csv")):
        run = str(path.relative_to(folder))
        times += _read(path, _TIME_COLUMNS, partial(_time, run=run))
        profiles += _read(path, _PROFILE_COLUMNS, partial(_profile, run=run))
        registers |= dict(_read(path, _REGISTER_COLUMNS, _registers))
    if not times:
        raise ValueError(
            f"--results is {folder}, where no CSV file has the columns "
            f"{', '.join(sorted(_TIME_COLUMNS))}; `flashsmith bench` writes such"
        )
    return Results(folder, environment, tuple(times), tuple(profiles), registers, ceilings)


def _same_gpu(a: str, b: str) -> bool:
    def normal(name: str) -> str:
        return name.lower().removeprefix("nvidia").strip()

    return normal(a) == normal(b)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return document if isinstance(document, dict) else {}


def _read(path: Path, columns: set[str], parse: Callable[[dict[str, str]], T]) -> list[T]:
    """Returns the rows that have a value in each of the columns; none if the file lacks a column.

    Only the regime "in turn" of `flashsmith bench` is read: times of two are not compared.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        if not set(reader.fieldnames or ()) >= columns:
            return []
        return [
            parse(row)
            for row in reader
            if all(row[name] for name in columns) and row.get(_REGIME, _IN_TURN) == _IN_TURN
        ]
    except (ValueError, TypeError, csv.Error) as error:  # TypeError: a line has too many cells
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _time(row: dict[str, str], run: str) -> Time:
    clock = row.get("sm_clock_mhz")
    measures = read_measure(row, "ms"), read_measure(row, "tflops")
    return Time(*_measured(row, run), *measures, float(clock) if clock else None)


def _profile(row: dict[str, str], run: str) -> Profile:
    values = {
        name: float(text)
        for name, text in row.items()
        if name not in {*_SHAPE_COLUMNS, *K_COLUMNS} and text not in (None, "")
    }
    stalls = {name: value for name, value in values.items() if name.startswith(_STALL)}
    metrics = {name: value for name, value in values.items() if name not in stalls}
    largest_first = sorted(stalls, key=lambda name: -stalls[name])
    stalls = {name.removeprefix(_STALL): stalls[name] for name in largest_first}
    return Profile(*_measured(row, run), metrics, stalls)


def _measured(row: dict[str, str], run: str) -> tuple[str, KernelId | str, Workload]:
    candidate: KernelId | str = PEER_TITLES.get(row["kernel"].lower(), row["kernel"])
    if ":" in row["kernel"]:
        config = parse_kernel_name_into_instance(row["kernel"]).config
        candidate = KernelId(config, Variant.from_name(row["mask"]))
    return run, candidate, Workload.from_row(row)


def _registers(row: dict[str, str]) -> tuple[tuple[str, str], dict[str, int]]:
    """Returns a kernel's (name, architecture) and ptxas' figures, from a benchmark's row."""
    figures = {name: int(n) for name, n in row.items() if name not in ("kernel", "arch")}
    return (row["kernel"], row["arch"]), figures
