"""Tables of tuned configurations of decode: what is in them, and what serves a call.

Lengths are the device's to know, so an entry is for all lengths: of a dtype, d_head and kind of
cache, a number of rows, and few or many work tiles.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from flashsmith.configs import DecodeKernelConfig, DType, parse_kernel_name_into_config
from flashsmith.configs.base import Capability
from flashsmith.configs.decode import as_tuned
from flashsmith.configs.few_queries import ChooseDecode
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.errors import TuningError
from flashsmith.gpus import find_architecture, get_gpu_architecture
from flashsmith.selection.stamped_csv import (
    Row,
    StampedCsv,
    flag_text,
    read_count,
    read_flag,
    read_measure,
    replace_file,
)
from flashsmith.selection.tables import refuse_other_places, requirements_of, user_table_path

TITLE = "# flashsmith tuned table of decode"
_FLAGS = ("fp8_cache", "token_scales", "many_tiles", "in_boxes")
_OF_WORKLOAD = ("dtype", "d_head", "rows", *_FLAGS)
_CSV = StampedCsv(
    TITLE, 1, (*_OF_WORKLOAD, "kernel", "microseconds", "rule_ratio", "tried", "excluded")
)


@dataclass(frozen=True)
class DecodeEntry:
    """The fastest configuration of a workload.

    Attributes:
        workload: As ``as_tuned`` has it.
        microseconds: Geometric mean over the tuner's shapes.
        rule_ratio: Those of the rule's choice / these; None: the rule's choice was wrong.
        tried: Configurations, with the excluded.
        excluded: How many were wrong.
    """

    workload: DecodeWorkload
    config: DecodeKernelConfig
    microseconds: float
    rule_ratio: float | None
    tried: int
    excluded: int

    def as_row(self) -> dict[str, object]:
        return row_of(self.workload) | {
            "kernel": self.config.short_form(),
            "microseconds": self.microseconds,
            "rule_ratio": "" if self.rule_ratio is None else self.rule_ratio,
            "tried": self.tried,
            "excluded": self.excluded,
        }

    @classmethod
    def from_row(cls, row: Row) -> DecodeEntry:
        """Raises ValueError, TypeError: A column has a value that it cannot have."""
        flags = {name: read_flag(row, name) for name in _FLAGS}
        dtype, d_head, rows = DType.from_string(row["dtype"]), int(row["d_head"]), int(row["rows"])
        workload = DecodeWorkload(dtype, d_head, rows, **flags)
        config = parse_kernel_name_into_config(row["kernel"])
        if not isinstance(config, DecodeKernelConfig) or (why := DECODE.why_not(config, workload)):
            raise ValueError(f"{config} cannot serve {workload}: {why}")
        ratio = read_measure(row, "rule_ratio") if row["rule_ratio"] else None
        microseconds, tried = read_measure(row, "microseconds"), read_count(row, "tried")
        return cls(workload, config, microseconds, ratio, tried, read_count(row, "excluded"))


def row_of(workload: DecodeWorkload) -> dict[str, object]:
    """A workload as columns of a table."""
    flags = {name: flag_text(getattr(workload, name)) for name in _FLAGS}
    named = {"dtype": str(workload.dtype), "d_head": workload.d_head, "rows": workload.rows}
    return named | flags


@dataclass(frozen=True)
class DecodeTable:
    """What was measured on one GPU; the stamp says where and with what."""

    stamp: Mapping[str, str]
    entries: Mapping[DecodeWorkload, DecodeEntry]

    @classmethod
    def of(cls, stamp: Mapping[str, str], entries: Iterable[DecodeEntry]) -> DecodeTable:
        return cls(stamp, {entry.workload: entry for entry in entries})

    @classmethod
    def read(cls, path: Path) -> DecodeTable:
        """Raises TuningError if the file cannot be read or is no such table."""
        try:
            stamp, rows = _CSV.from_text(path.read_text())
            return cls.of(stamp, map(DecodeEntry.from_row, rows))
        except (OSError, ValueError, TypeError) as error:
            raise TuningError(f"the tuned table {path} cannot be used: {error}") from error

    def write(self, path: Path) -> None:
        replace_file(path, _CSV.to_text(self.stamp, [e.as_row() for e in self.entries.values()]))

    def requirements(self, gpu: str) -> dict[str, str]:
        """As those of ``Table``."""
        return requirements_of(gpu, (entry.config for entry in self.entries.values()))


def decode_table_path(gpu: str) -> Path:
    """Where the user's own table of decode for this GPU is, or would be."""
    path = user_table_path(gpu)
    return path.with_name(f"{path.stem}-decode.csv")


@functools.cache
def find_decode_table(gpu: str) -> DecodeTable | None:
    """The user's for a GPU, if there is one that may be used; read once a process."""
    try:
        path = decode_table_path(gpu)
    except TuningError:  # the user has no home directory
        return None
    if not path.exists():
        return None
    try:
        table = DecodeTable.read(path)
        refuse_other_places(path, table.stamp, table.requirements(gpu))
    except TuningError as error:
        warnings.warn(f"{error}; `flashsmith tune --decode --force` replaces it", stacklevel=2)
        return None
    return table


class DecodeChoice(NamedTuple):
    """A configuration, and where it comes from."""

    config: DecodeKernelConfig
    reason: str


def choose_tuned_decode(
    workload: DecodeWorkload, gpu: str | None, capability: Capability | None = None
) -> DecodeChoice:
    """What ``decode`` takes on the GPU of this name (None: on a CPU): of the user's table, also of
    the other 16-bit dtype, whose tiles serve as well; else the rule's.

    capability: The GPU's; None: going by its name.

    Raises: as ``choose_decode``.
    """
    if gpu is not None:
        capability = capability or get_gpu_architecture(gpu).compute_capability
        found = find_architecture(capability)
        tuned = as_tuned(workload, DECODE.families_on(capability))
        entry = _entry_for(tuned, find_decode_table(gpu))
        if entry is not None and entry.config.is_buildable(found.name if found else None):
            config = entry.config.for_dtype(workload.dtype)
            return DecodeChoice(config, f"your table {decode_table_path(gpu)}")
    return DecodeChoice(DECODE.choose_by_rule(workload, capability), "the rule of its family")


def tuned_decode_of(gpu: str | None) -> ChooseDecode:
    """``choose_tuned_decode`` on one GPU."""
    return lambda workload, capability: choose_tuned_decode(workload, gpu, capability).config


def _entry_for(tuned: DecodeWorkload, table: DecodeTable | None) -> DecodeEntry | None:
    if table is None:
        return None
    own_first = sorted(DType, key=lambda dtype: dtype != tuned.dtype)
    entries = (table.entries.get(replace(tuned, dtype=dtype)) for dtype in own_first)
    return next((entry for entry in entries if entry is not None), None)
