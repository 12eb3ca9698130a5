"""The machine code of the kernels that are served, and which sources it was made of.

Tables and results stand for sources, which change with any edit of a header, and most edits leave
the machine code as it was. ``tools/build/machine_code.py --restamp`` shows that they do and writes
down today's sources beside those that gave the same machine code before.
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
    """What one compiler made of the kernels.

    sources: For every family, as ``stamp_field`` calls it, the hashes of its sources that gave this
        machine code, the latest last.
    """

    nvcc: str
    sources: Mapping[str, tuple[str, ...]]
    rows: tuple[CodeRow, ...]

    @classmethod
    def read(cls, path: Path) -> MachineCodeRecord:
        """Raises OSError, ValueError: There is no such file, or it is no record."""
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
        """Returns the hashes of sources that give the machine code of those with the hash
        ``today``, this one among them."""
        hashes = self.sources.get(field, ())
        return hashes if hashes[-1:] == (today,) else (today,)


def record_above(path: Path) -> MachineCodeRecord:
    """That of the folder of results in which ``path`` is; where there is none, an empty one."""
    files = (folder / RECORD for folder in path.resolve().parents)
    found = next((file for file in files if file.is_file()), None)
    return MachineCodeRecord.read(found) if found else MachineCodeRecord("", {}, ())
