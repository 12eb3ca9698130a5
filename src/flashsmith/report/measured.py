"""Times of kernels and their peers, read from the CSV files of a folder of results."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flashsmith.configs import (
    ForwardKernelInstance,
    ForwardVariant,
    parse_kernel_name_into_instance,
)

RESULTS_FOLDER = Path("benchmarks") / "results"
_ENVIRONMENT = "environment.json"
_SHAPE_COLUMNS = {"kernel", "dtype", "d_head", "mask", "batch", "heads", "seq_len"}
_TIME_COLUMNS = _SHAPE_COLUMNS | {"ms", "tflops"}
_PROFILE_COLUMNS = _SHAPE_COLUMNS | {"duration_us", "cycles"}
_REGIME, _IN_TURN = "regime", "in-turn"
_STALL = "stall_"
_PEER_TITLES = {
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
}
BASELINE = _PEER_TITLES["fa2"]


T = TypeVar("T")
M = TypeVar("M", "Time", "Profile")


@dataclass(frozen=True)
class Shape:
    """(batch, seq_len, heads, d_head) tensors, and the mask."""

    dtype: str
    d_head: int
    mask: str
    batch: int
    heads: int
    seq_len: int

    def __str__(self) -> str:
        return (
            f"{self.dtype}, d_head {self.d_head}, {self.mask} attention, sequence "
            f"{self.seq_len}, batch {self.batch}, {self.heads} heads"
        )

    @property
    def kind(self) -> tuple[str, int, str]:
        return self.dtype, self.d_head, self.mask

    @property
    def flop_per_byte(self) -> float:
        """Of the two matrix products, with Q, K, V and O moved once; a causal mask halves it."""
        return self.seq_len / (4 if self.mask == "causal" else 2)


@dataclass(frozen=True)
class Time:
    """One candidate at one shape, in one run (a file of results)."""

    run: str
    candidate: ForwardKernelInstance | str  # a peer by its title
    shape: Shape
    ms: float
    tflops: float
    sm_clock_mhz: float | None = None

    @property
    def name(self) -> str:
        return str(self.candidate)


@dataclass(frozen=True)
class Profile:
    """What ncu measured of one candidate at one shape, as `flashsmith profile` writes it."""

    run: str
    candidate: ForwardKernelInstance | str
    shape: Shape
    metrics: dict[str, float]
    stalls: dict[str, float]  # warps that wait each time that one issues, the largest first

    @property
    def name(self) -> str:
        return str(self.candidate)

    @property
    def clock_mhz(self) -> float | None:
        cycles, us = self.metrics.get("cycles"), self.metrics.get("duration_us")
        return cycles / us if cycles and us else None


@dataclass(frozen=True)
class Results:
    """A folder of results: its environment, and the times in it."""

    folder: Path | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    times: tuple[Time, ...] = ()
    profiles: tuple[Profile, ...] = ()
    registers: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    @property
    def gpu(self) -> str:
        return str(self.environment.get("gpu", ""))

    @property
    def sm_clock_mhz(self) -> float | None:
        """The clock in the stamp, "1935 MHz"."""
        words = str(self.environment.get("clocks.sm", "")).split()
        return float(words[0]) if words and words[0].replace(".", "", 1).isdigit() else None

    def ceiling(self, dtype: str) -> dict[str, float] | None:
        """matmul_tflops and copy_gb_per_s, where the same session measured them."""
        found = self.environment.get("ceilings", {}).get(dtype)
        return {k: float(v) for k, v in found.items() if k != "dtype"} if found else None


def find_results(gpu: str | None = None, root: Path = RESULTS_FOLDER) -> Path | None:
    """The newest folder <root>/<gpu>/<date> with an environment, of ``gpu`` if that is given."""
    stamps = sorted(root.glob(f"*/*/{_ENVIRONMENT}"), key=lambda path: path.parent.name)
    for stamp in reversed(stamps):
        if gpu is None or _same_gpu(gpu, str(_read_json(stamp).get("gpu", ""))):
            return stamp.parent
    return None


def read_results(folder: Path, gpu: str | None = None) -> Results:
    """Every CSV file under the folder that has times, and resources.csv if it is there.

    Raises:
        ValueError: It is no folder, has no times, or is of another GPU than ``gpu``.
    """
    if not folder.is_dir():
        raise ValueError(f"--results is {folder}, which is no folder; `flashsmith bench` makes one")
    stamps = sorted(folder.rglob(_ENVIRONMENT), key=lambda path: len(path.parts))
    environment: dict[str, Any] = {}
    for stamp in reversed(stamps):  # that of the folder itself comes last, and counts most
        environment |= _read_json(stamp)
    found = str(environment.get("gpu", "unknown"))
    if gpu is not None and not _same_gpu(gpu, found):
        raise ValueError(f"--gpu is {gpu!r}, but the results in {folder} are of {found!r}")
    times: list[Time] = []
    profiles: list[Profile] = []
    for path in sorted(folder.rglob("*.csv")):
        run = str(path.relative_to(folder))
        times += _read(path, _TIME_COLUMNS, partial(_time, run=run))
        profiles += _read(path, _PROFILE_COLUMNS, partial(_profile, run=run))
    if not times:
        raise ValueError(
            f"--results is {folder}, where no CSV file has the columns "
            f"{', '.join(sorted(_TIME_COLUMNS))}; `flashsmith bench` writes such"
        )
    registers = _read_registers(folder / "resources.csv")
    return Results(folder, environment, tuple(times), tuple(profiles), registers)


def best_run(
    times: Sequence[M], instances: Iterable[ForwardKernelInstance], seq_len: int | None = None
) -> list[M]:
    """The times (or profiles) of one run at one shape: of those with most of ``instances``, the
    longest sequence. Nothing if no run has any of them.

    seq_len: Only at this length.
    """
    wanted = set(instances)
    have = Counter(
        (time.run, time.shape)
        for time in times
        if time.candidate in wanted and seq_len in (None, time.shape.seq_len)
    )
    if not have:
        return []
    run, shape = max(have, key=lambda key: (have[key], key[1].seq_len))
    return [time for time in times if (time.run, time.shape) == (run, shape)]


def best_sweep(
    times: Sequence[Time], kind: tuple[str, int, str], instances: Iterable[ForwardKernelInstance]
) -> list[Time]:
    """The times of one run over lengths, for (dtype, d_head, mask): of those that measured the
    family of ``instances``, if there are any, the run with most peers, then with most lengths, then
    with most of ``instances``. Rather one of another dtype than one without peers: FP16 and BF16
    differ little."""
    wanted = set(instances)
    families = {instance.config.family for instance in wanted}
    runs: dict[tuple[str, str], list[Time]] = {}
    for time in times:
        if time.shape.kind[1:] == kind[1:]:
            runs.setdefault((time.run, time.shape.dtype), []).append(time)

    def worth(run: list[Time]) -> tuple[bool, int, int, bool, int]:
        candidates = {time.candidate for time in run}
        ours = {each for each in candidates if isinstance(each, ForwardKernelInstance)}
        same_family = bool(families & {each.config.family for each in ours})
        same_dtype = run[0].shape.dtype == kind[0]
        lengths = {time.shape for time in run}
        return same_family, len(candidates - ours), len(lengths), same_dtype, len(ours & wanted)

    return max(runs.values(), key=worth, default=[])


def _same_gpu(a: str, b: str) -> bool:
    def normal(name: str) -> str:
        return name.lower().removeprefix("nvidia").strip()

    return normal(a) == normal(b)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return document if isinstance(document, dict) else {}


def _read(path: Path, columns: set[str], parse: Callable[[dict[str, str]], T]) -> list[T]:
    """The rows of a file that has the columns, and in each of these a value; of no other file.

    Of the regimes of `flashsmith bench` only the first, in turn: times of two are not compared.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if not set(reader.fieldnames or ()) >= columns:
            return []
        try:
            return [
                parse(row)
                for row in reader
                if all(row[name] for name in columns) and row.get(_REGIME, _IN_TURN) == _IN_TURN
            ]
        except ValueError as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _time(row: dict[str, str], run: str) -> Time:
    clock = row.get("sm_clock_mhz")
    return Time(
        run, _candidate(row), _shape(row), float(row["ms"]), float(row["tflops"]),
        float(clock) if clock else None,
    )  # fmt: skip


def _profile(row: dict[str, str], run: str) -> Profile:
    values = {
        name: float(text)
        for name, text in row.items()
        if name not in _SHAPE_COLUMNS and text not in (None, "")
    }
    stalls = {name.removeprefix(_STALL): value for name, value in values.items() if _STALL in name}
    return Profile(
        run,
        _candidate(row),
        _shape(row),
        {name: value for name, value in values.items() if _STALL not in name},
        dict(sorted(stalls.items(), key=lambda item: -item[1])),
    )


def _shape(row: dict[str, str]) -> Shape:
    batch, heads, seq_len = (int(row[name]) for name in ("batch", "heads", "seq_len"))
    return Shape(row["dtype"], int(row["d_head"]), row["mask"], batch, heads, seq_len)


def _candidate(row: dict[str, str]) -> ForwardKernelInstance | str:
    if ":" not in row["kernel"]:
        return _PEER_TITLES.get(row["kernel"].lower(), row["kernel"])
    config = parse_kernel_name_into_instance(row["kernel"]).config
    return ForwardKernelInstance(config, ForwardVariant.from_name(row["mask"]))


def _read_registers(path: Path) -> dict[tuple[str, str], dict[str, int]]:
    """(kernel's name, architecture) -> ptxas' figures, as benchmarks write them."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {
            (row.pop("kernel"), row.pop("arch")): {name: int(n) for name, n in row.items()}
            for row in csv.DictReader(file)
        }
