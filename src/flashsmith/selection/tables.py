"""Tables of tuned configurations: their contents, their paths, and which may be used here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from flashsmith import settings
from flashsmith.configs import CONFIG_CLASSES
from flashsmith.configs.family import C, W
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import TuningKey
from flashsmith.dtype import DType
from flashsmith.errors import TuningError
from flashsmith.gpus import count_sms
from flashsmith.jit import kernel_source_hash, stamp_field
from flashsmith.selection.entries import Entry
from flashsmith.selection.stamped_csv import replace_file
from flashsmith.selection.table_text import from_text, to_text

_SHIPPED = Path(__file__).with_name("tuned")


def gpu_slug(gpu: str) -> str:
    """Returns a GPU's name as file names have it: `NVIDIA H200` -> `h200`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")


# Names of stamp fields in messages, and the part of each that is compared. An interrupted run of
# the tuner compares all fields, a table in use those of ``Table.requirements``.
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
class Table(Generic[W, C]):
    """The measurements of one operation on one GPU; the stamp says where and with what."""

    operation: Operation[W, C] = field(compare=False)
    stamp: Mapping[str, str]
    entries: Mapping[TuningKey, Entry[W, C]]

    def requirements(self, gpu: str) -> dict[str, str]:
        """Returns the stamp that a table must have to be used now, on the GPU of this name.

        A table's times, and the soak's verdict, hold for the kernel sources that were measured. So
        the hash of each family in the table must agree.
        """
        rows = (row for entry in self.entries.values() for row in entry.ranked)
        families = {type(row.config) for row in rows}
        return {"gpu": gpu} | {stamp_field(kind): kernel_source_hash(kind) for kind in families}

    @classmethod
    def of(
        cls,
        operation: Operation[W, C],
        stamp: Mapping[str, str],
        entries: Iterable[Entry[W, C]],
    ) -> Table[W, C]:
        empty = cls(operation, stamp, {})
        return cls(operation, stamp, {empty.key_of(each.workload): each for each in entries})

    def key_of(self, workload: W) -> TuningKey:
        """Returns the key of a workload on the table's GPU."""
        return workload.tuning_key(count_sms(self.stamp.get("gpu", "")))

    def portfolio(self, entry: Entry[W, C]) -> tuple[C, ...]:
        """Returns the kernels that the table may choose for an entry's dtype, d_head and
        variant."""
        key = self.key_of(entry.workload)
        return self._portfolios.get((key.dtype, key.kind), ())

    @cached_property
    def _portfolios(self) -> dict[tuple[DType, tuple[int, str]], tuple[C, ...]]:
        found: dict[tuple[DType, tuple[int, str]], dict[C, None]] = {}
        for key, entry in self.entries.items():
            kernels = found.setdefault((key.dtype, key.kind), {})
            kernels |= dict.fromkeys(row.config for row in entry.choices)
        return {kind: tuple(kernels) for kind, kernels in found.items()}

    @classmethod
    def read(cls, path: Path) -> Table[Any, Any]:
        """Raises TuningError if the file cannot be read or is not a tuned table."""
        try:
            return cls.of(*from_text(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise TuningError(f"the tuned table {path} cannot be used: {error}") from error

    def write(self, path: Path) -> None:
        """Replaces a file atomically: a reader sees the old or the new one."""
        entries = (self.entries[key] for key in sorted(self.entries))
        replace_file(path, to_text(self.operation, self.stamp, entries))


def read_for(operation: Operation[W, C], gpu: str, path: Path) -> Table[W, C]:
    """Returns the table in a file if it may be used for an operation on the GPU of this name.

    Raises:
        TuningError: The file holds no table of this operation for this GPU and these kernels.
    """
    table = Table.read(path)
    if table.operation is not operation:
        raise TuningError(
            f"the tuned table {path} cannot be used: it is of {table.operation.name} kernels, and "
            f"was looked up for {operation.name}"
        )
    if differing := mismatches(table.stamp, table.requirements(gpu)):
        raise TuningError(f"the tuned table {path} is not for here: {'; '.join(differing)}")
    return table


def user_table_path(gpu: str, operation: Operation[Any, Any] = FORWARD) -> Path:
    """Returns the path of the user's table of an operation for this GPU; it may not exist.

    Raises:
        TuningError: The user has no home directory.
    """
    return settings.tables_folder() / _file_name(gpu, operation)


def shipped_table_path(gpu: str, operation: Operation[Any, Any] = FORWARD) -> Path:
    """Returns the path of the shipped table for this GPU; it may not exist."""
    return _SHIPPED / _file_name(gpu, operation)


def _file_name(gpu: str, operation: Operation[Any, Any]) -> str:
    """Returns `h200.csv` for the forward, `h200-decode.csv` for decode."""
    return gpu_slug(gpu) + ("" if operation is FORWARD else f"-{operation.name}") + ".csv"


def shipped_table_paths() -> list[Path]:
    """Returns the paths of all tables that come with the package."""
    return sorted(_SHIPPED.glob("*.csv"))


def mismatches(stamp: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns why results with ``stamp`` are not valid for ``here``; only fields of ``here`` count.

    The GPU's name, the driver's major version and the sources of the kernels must agree. A field
    that the stamp has not recorded agrees with nothing.
    """
    return [
        f"{title}: {stamp.get(name, 'not recorded')} there, {here[name]} here"
        for name, title in _TITLES.items()
        if name in here and not _agree(name, stamp.get(name), here[name])
    ]


def _agree(name: str, there: str | None, here: str) -> bool:
    part = _COMPARED_PART.get(name, str)
    return there is not None and part(there) == part(here)
