"""Keeps the table of results, which a later run resumes, and sums it up."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock

EQUIVALENT = Path(__file__).parent / "equivalent.csv"


@dataclass(frozen=True)
class Result:
    id: str
    area: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    status: str  # killed, survived, timeout, not-compiled
    seconds: float
    killer: str  # the first test that failed

    def __str__(self) -> str:
        place = f"{self.id} {self.area} {self.file.rpartition('/')[2]}:{self.line} {self.operator}"
        return f"{place}\n    - {self.before}\n    + {self.after}"


class Table:
    """Results in a CSV file, each written as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self.results = {r.id: r for r in read(path)} if path.exists() else {}

    def add(self, result: Result) -> None:
        with self._lock:
            self.results[result.id] = result
            self._path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self._path.exists()
            with self._path.open("a", newline="") as file:
                writer = csv.DictWriter(file, [f.name for f in fields(Result)])
                if is_new:
                    writer.writeheader()
                writer.writerow(asdict(result))


def read(path: Path) -> list[Result]:
    """Reads results; a last line that was not written to its end is left out."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    typed = {"line": int, "seconds": float}
    return [Result(**{k: typed.get(k, str)(v) for k, v in row.items()}) for row in rows]


def equivalents(path: Path = EQUIVALENT) -> dict[str, str]:
    """Returns the reasons why mutants are equivalent, by their ids."""
    with path.open(newline="") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


def summary(results: Iterable[Result], reasons: dict[str, str]) -> str:
    """Lists survivors, then counts by area. A mutant that runs into the time limit is killed."""
    ran = [r for r in results if r.status != "not-compiled"]
    survivors = [r for r in ran if r.status == "survived" and r.id not in reasons]
    equivalent = [r for r in ran if r.status == "survived" and r.id in reasons]
    wrong = [r for r in ran if r.status != "survived" and r.id in reasons]
    lines = [f"survived: {r}" for r in survivors]
    lines += [f"equivalent: {r}\n    {reasons[r.id]}" for r in equivalent]
    lines += [f"not equivalent, {r.killer} notices it: {r}" for r in wrong]
    lines += ["", "area        killed  timeout  survived  equivalent"]
    for name in [*sorted({r.area for r in ran}), "all"]:
        group = [r for r in ran if name in (r.area, "all")]
        count = Counter("equivalent" if r in equivalent else r.status for r in group)
        lines.append(
            f"{name:<10} {count['killed']:>7}  {count['timeout']:>7}  {count['survived']:>8}  "
            f"{count['equivalent']:>10}"
        )
    different = len(ran) - len(equivalent)
    share = (different - len(survivors)) / different if different else 1.0
    lines.append(f"noticed: {share:.1%} of {different} mutants that are not equivalent")
    return "\n".join(lines)
