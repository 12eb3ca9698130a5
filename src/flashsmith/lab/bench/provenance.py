"""Whether the kernels of a committed result are those of today.

A result has its stamp in columns of its own, in comments above them, or in an ``environment.json``
beside it. The hashes in it are of sources, which change with any edit of a header, and most edits
leave the machine code as it was. Which sources gave the machine code of today's is in
``machine_code_record.csv`` above the results. Where later sources were compiled and compared,
``machine_code_now.json`` beside the stamp has their hashes, and the kernels that differ;
``tools/build/machine_code.py --results`` compares and writes it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.jit import kernel_source_stamp, stamp_field
from flashsmith.lab.bench.machine_code_record import record_above

MACHINE_CODE_NOW = "machine_code_now.json"
_PREFIX = "kernels_"
_DATE_FOLDER = re.compile(r"\d{4}-\d\d-\d\d")


def kernels_note(path: Path, fields: Iterable[str]) -> str:
    """A sentence that says when ``path`` was measured, and on which kernels, if not on today's.

    Args:
        path: A CSV file of results.
        fields: The families whose kernels are in it, as ``kernel_source_stamp`` calls them.

    Returns:
        An empty string where today's kernels are those that were measured.

    Raises:
        ValueError: A field is of no family, or there is none.
    """
    stamp, today = stamp_of(path), kernel_source_stamp()
    wanted = list(dict.fromkeys(fields))
    if not wanted or not today.keys() >= set(wanted):
        raise ValueError(f"fields are {wanted}; supported: {', '.join(today)}")
    when = f"Measured {date_of(path)}"
    later = _read_json(path.parent / MACHINE_CODE_NOW)
    record = record_above(path)
    same = {name: record.same_sources(name, today[name]) for name in wanted}
    other = [name for name in wanted if stamp.get(name) not in same[name]]
    if unknown := [name for name in other if later.get(name) not in same[name]]:
        return f"{when} {_on_others(unknown, stamp)}."
    if other and later["differ"]:
        n = f"{len(later['differ'])} of its {later['kernels']}"
        return f"{when}; {n} {_in_words(other)} have other machine code today."
    return ""


def _on_others(fields: Iterable[str], stamp: Mapping[str, object]) -> str:
    changed = _in_words(name for name in fields if name in stamp)
    not_recorded = _in_words(name for name in fields if name not in stamp)
    said = [f"on other {changed} than today's"] * bool(changed)
    said += [f"by a run that did not record its {not_recorded}"] * bool(not_recorded)
    return ", ".join(said)


def date_of(path: Path) -> str:
    """Returns the date in the stamp of a result, else that of its folder."""
    folders = [part for part in path.parts if _DATE_FOLDER.fullmatch(part)]
    return str(stamp_of(path).get("date") or (folders[-1] if folders else "on an unknown date"))


def stamp_of(path: Path) -> dict[str, Any]:
    """Returns what is recorded of a result: its own columns and comments come before the file
    beside it."""
    lines = path.read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    comments = (line.removeprefix("# ").partition(": ") for line in lines if line.startswith("#"))
    first = next(csv.DictReader(rows), {})
    names = (f"{path.stem}_environment.json", "environment.json", "*_environment.json")
    beside = (each for name in names for each in sorted(path.parent.glob(name)))
    environment = _read_json(next(beside, path.parent / "none"))
    columns = {name: first[name] for name in {"date", *kernel_source_stamp()} & first.keys()}
    return environment | {name: value for name, _, value in comments if value} | columns


def fields_of(path: Path) -> list[str]:
    """Returns the families whose kernels a CSV file names in its column ``kernel``.

    Raises:
        ValueError: It names none, or one that is no kernel of today.
    """
    with path.open(newline="") as file:
        names = {row.get("kernel") or "" for row in csv.DictReader(file)}
    kernels = [parse_kernel_name_into_instance(name) for name in names if ":" in name]
    if not kernels:
        raise ValueError(f"{path} names no kernel; the families are to be named beside it")
    return sorted({stamp_field(type(each.config)) for each in kernels})


def _in_words(fields: Iterable[str]) -> str:
    """kernels_sm80 -> "sm80 forward kernels"."""
    names = [field.removeprefix(_PREFIX).replace("_", " ") for field in fields]
    words = [name if " " in name else f"{name} forward" for name in names]
    return f"{' and '.join(words)} kernels" if words else ""


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text()) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
