"""Tables of tuned configurations: what is in them, where they are, which may be used here."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import platformdirs

from flashsmith import settings
from flashsmith.configs import (
    CONFIG_CLASSES,
    ForwardKernelConfig,
    Workload,
    parse_kernel_name_into_config,
)
from flashsmith.configs.workload import ROW_COLUMNS, TuningKey
from flashsmith.errors import TuningError
from flashsmith.jit import kernel_source_hash, stamp_field

FORMAT = 1

_SHIPPED = Path(__file__).with_name("tuned")


def gpu_slug(gpu: str) -> str:
    """The name of a GPU as files are called after it: `NVIDIA H200` -> `h200`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")


# How a field of a stamp is called in messages, and what of it is compared. Of an interrupted run of
# the tuner all of them are; of a table that is to be used, those of ``Table.requirements``.
_TITLES: Mapping[str, str] = {
    "gpu": "GPU",
    "driver_version": "driver (major version)",
    **{stamp_field(kind): f"kernels of {kind.minimum_gpu}" for kind in CONFIG_CLASSES},
}
_COMPARED_PART: Mapping[str, Callable[[str], str]] = {
    "gpu": gpu_slug,
    "driver_version": lambda version: version.split(".")[0],
}


@dataclass(frozen=True)
class Measured:
    """One configuration's time, in milliseconds, and speed.

    ``ms``, its percentiles and ``tflops`` are of runs in turn, as ``bench.time_interleaved`` has
    them; ``ms_back_to_back`` is of runs without a pause.
    """

    config: ForwardKernelConfig
    ms: float  # median
    ms_p20: float
    ms_p80: float
    tflops: float
    ms_back_to_back: float | None = None  # None in a table that was not tuned for it

    @property
    def cost(self) -> float:
        """What tables are ranked by: the geometric mean of the times in both regimes."""
        return math.sqrt(self.ms * (self.ms_back_to_back or self.ms))

    def described(self) -> str:
        steady = self.ms_back_to_back
        return f"{self.ms} ms" + (f", back to back {steady} ms" if steady else "")


@dataclass(frozen=True)
class Entry:
    """The fastest configurations of one workload; they serve all lengths of its bucket."""

    workload: Workload
    tried: int  # configurations, with the excluded
    excluded: Mapping[str, str]  # kernel -> what is wrong with it
    rule_ratio: float | None  # cost of the rule's choice / that of the best
    ranked: tuple[Measured, ...]  # fastest first


@dataclass(frozen=True)
class Table:
    """What was measured on one GPU; the stamp says where and with what."""

    stamp: Mapping[str, str]
    entries: Mapping[TuningKey, Entry]

    def requirements(self, gpu: str) -> dict[str, str]:
        """What the stamp has to say for the table to be used now, on the GPU of this name.

        Tables hold times of kernels, and that they were right in the soak: of other sources of the
        families that are in it, neither is known.
        """
        families = {type(row.config) for entry in self.entries.values() for row in entry.ranked}
        return {"gpu": gpu} | {stamp_field(kind): kernel_source_hash(kind) for kind in families}

    @classmethod
    def of(cls, stamp: Mapping[str, str], entries: Iterable[Entry]) -> Table:
        return cls(stamp, {entry.workload.tuning_key: entry for entry in entries})

    @classmethod
    def read(cls, path: Path) -> Table:
        """Raises TuningError if the file cannot be read or is no such table."""
        try:
            document = json.loads(path.read_text())
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']}, this version reads {FORMAT}")
            return cls.of(document["stamp"], map(_entry, document["entries"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise TuningError(f"the tuned table {path} cannot be used: {reason}") from error

    def write(self, path: Path) -> None:
        """Replaces the file whole: a reader sees the old or the new one."""
        document = {
            "format": FORMAT,
            "stamp": dict(self.stamp),
            "entries": [_plain(self.entries[key]) for key in sorted(self.entries)],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(json.dumps(document, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            Path(staged).chmod(0o644)
            Path(staged).replace(path)
        except BaseException:
            Path(staged).unlink(missing_ok=True)
            raise


def user_table_path(gpu: str) -> Path:
    """Where the user's own table for this GPU is, or would be."""
    folder = settings.TUNED.get() or platformdirs.user_data_path("flashsmith") / "tuned"
    return folder / f"{gpu_slug(gpu)}.json"


def shipped_table_path(gpu: str) -> Path:
    """Where the table that comes with the package for this GPU is, if there is one."""
    return _SHIPPED / f"{gpu_slug(gpu)}.json"


def shipped_table_paths() -> list[Path]:
    """All tables that come with the package."""
    return sorted(_SHIPPED.glob("*.json"))


def mismatches(stamp: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Why results with ``stamp`` cannot stand for ``here``; only what ``here`` has is compared.

    The GPU's name, the driver's major version and the sources of the kernels must agree. What a
    stamp has not recorded agrees with nothing.
    """
    return [
        f"{title}: {stamp.get(name, 'not recorded')} there, {here[name]} here"
        for name, title in _TITLES.items()
        if name in here and not _agree(name, stamp.get(name), here[name])
    ]


def _agree(name: str, there: str | None, here: str) -> bool:
    part = _COMPARED_PART.get(name, str)
    return there is not None and part(there) == part(here)


def _plain(entry: Entry) -> dict[str, Any]:
    ranked = [asdict(row) | {"config": row.config.short_form()} for row in entry.ranked]
    # asdict would take the configurations apart too.
    own = {field.name: getattr(entry, field.name) for field in fields(Entry)[1:]}
    return {
        **entry.workload.as_row(),
        **own,
        "excluded": {**entry.excluded},
        "ranked": ranked,
    }


def _entry(plain: dict[str, Any]) -> Entry:
    ranked = [
        Measured(**row | {"config": parse_kernel_name_into_config(row["config"])})
        for row in plain["ranked"]
    ]
    workload = Workload.from_row(plain)
    own = {name: value for name, value in plain.items() if name not in ROW_COLUMNS}
    for row in ranked:
        if not row.config.serves(workload.problem) or row.config.problems(row.config.minimum_gpu):
            raise ValueError(f"{row.config} cannot serve {workload}")
    return Entry(workload, **own | {"ranked": tuple(ranked)})
