"""The machine code of the kernels that are served, and the hashes of the sources that gave it.

Tables and results are stamped with hashes of sources. Any edit of a header changes such a hash, but
most edits leave the machine code unchanged. ``tools/build/machine_code.py --restamp`` proves that
and adds today's hashes to the earlier ones that gave the same machine code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashsmith.selection.stamped_csv import StampedCsv, read_count, replace_file

RECORD = "machine_code_record.csv"
_COLUMNS = ("kernel", "arch", "instructions", "sha256")
_CSV = StampedCsv("# flashsmith machine code", 1, _COLUMNS)

CodeRow = tuple[str, str, int, str]  # kernel, architecture, instructions of a function, their hash


@dataclass(frozen=True)
class MachineCodeRecord:
    """The machine code that one compiler made of the kernels.

    sources: For each family, under its ``stamp_field``, the hashes of the sources that gave this
        machine code, the latest last.
    """

    nvcc: str
    sources: Mapping[str, tuple[str, ...]]
    rows: tuple[CodeRow, ...]

    @classmethod
    def read(cls, path: Path) -> MachineCodeRecord:
        """Reads a record.

        Raises:
            OSError: There is no such file.
            ValueError: The file is no record.
        """
        stamp, rows = _CSV.from_text(path.read_text())
        nvcc = stamp.pop("nvcc", "")
        sources = {field: tuple(hashes.split()) for field, hashes in stamp.items()}
        found = ((r["kernel"], r["arch"], read_count(r, "instructions"), r["sha256"]) for r in rows)
        return cls(nvcc, sources, tuple(found))

    def write(self, path: Path) -> None:
        stamp = {field: " ".join(hashes) for field, hashes in self.sources.items()}
        rows = [dict(zip(_COLUMNS, row, strict=True)) for row in self.rows]
        replace_file(path, _CSV.to_text({"nvcc": self.nvcc} | stamp, rows))

    def same_sources(self, field: str, today: str) -> tuple[str, ...]:
        """Returns the hashes of all sources whose machine code is that of the hash ``today``,
        which is one of them."""
        hashes = self.sources.get(field, ())
        return hashes if hashes[-1:] == (today,) else (today,)


def record_above(path: Path) -> MachineCodeRecord:
    """Returns the record in the nearest folder above ``path``; an empty record if none has one."""
    files = (folder / RECORD for folder in path.resolve().parents)
    found = next((file for file in files if file.is_file()), None)
    return MachineCodeRecord.read(found) if found else MachineCodeRecord("", {}, ())
