"""Tells whether a committed result was measured on today's kernels.

A result has its stamp in columns, in comments above the header, or in an ``environment.json``
beside it. The stamp has hashes of sources. Any edit of a header changes them, but most edits leave
the machine code unchanged, so two files list hashes with the same machine code:

    machine_code_record.csv   above the results: the sources that gave today's machine code
    machine_code_now.json     beside the stamp: later sources that were compiled and compared, and
                              the kernels that differ; tools/build/machine_code.py --results
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
    """Returns a note on when, and on which other kernels, a result was measured.

    Args:
        path: A CSV file of results.
        fields: The families whose kernels are in it, under their names in ``kernel_source_stamp``.

    Returns:
        A sentence, or "" if today's kernels are the measured ones.

    Raises:
        ValueError: A field is not a family's, or there are no fields.
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
    """Returns the date in the stamp of a result, else the date in its folder's name."""
    folders = [part for part in path.parts if _DATE_FOLDER.fullmatch(part)]
    return str(stamp_of(path).get("date") or (folders[-1] if folders else "on an unknown date"))


def stamp_of(path: Path) -> dict[str, Any]:
    """Returns the stamp of a result; its columns and comments override the file beside it."""
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
    """Returns the families of the kernels that a CSV file names in its column ``kernel``.

    Raises:
        ValueError: It names no kernel, or one that does not exist today.
    """
    with path.open(newline="") as file:
        names = {row.get("kernel") or "" for row in csv.DictReader(file)}
    kernels = [parse_kernel_name_into_instance(name) for name in names if ":" in name]
    if not kernels:
        raise ValueError(f"{path} names no kernel; the families are to be named beside it")
    return sorted({stamp_field(type(each.config)) for each in kernels})


def _in_words(fields: Iterable[str]) -> str:
    """Returns "sm80 forward kernels" for kernels_sm80."""
    names = [field.removeprefix(_PREFIX).replace("_", " ") for field in fields]
    words = [name if " " in name else f"{name} forward" for name in names]
    return f"{' and '.join(words)} kernels" if words else ""


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text()) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
