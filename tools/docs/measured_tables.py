#!/usr/bin/env python3
"""Regenerates the tables of measured numbers in README and docs, from the CSV files that they name.

    python tools/docs/measured_tables.py                      # from the files that are named
    python tools/docs/measured_tables.py --results benchmarks/results/h200/2026-01-01/forward
    python tools/docs/measured_tables.py --check              # compares only

A table stands between two marks, the first of which names its kind and its CSV file:

    <!-- measured: ratios benchmarks/results/h200/2026-01-01/forward/forward.csv -->
    <!-- end measured -->

If today's kernels are not the measured ones, a line below the table says so. A table written by
hand has a mark of kind ``kernels`` beside it, which makes that line alone. For a file that names no
kernels, the kind is their families: ``kernels_sm80_decode+kernels_sm90_decode``.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean, harmonic_mean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from flashsmith.lab.bench import markdown
from flashsmith.lab.bench.provenance import date_of, fields_of, kernels_note
from flashsmith.lab.bench.ratios import rate_table, ratio_sentence, ratio_table
from flashsmith.lab.bench.results import TimeRow, read_csv

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(
    r"<!-- measured: (?P<kind>\S+) (?P<path>\S+) -->\n.*?<!-- end measured -->", re.DOTALL
)

_NOTE = "kernels"
_REGIMES_OF_SHAPES = ("in turn", "back to back", "in graph")
_SM90_BACKWARD = ("kernels_sm90_backward", "kernels_sm90_split_backward")


class Kind(NamedTuple):
    """table: Makes the table from a CSV file. fields: The families of the file's kernels; empty if
    the file names its kernels."""

    table: Callable[[Path], str]
    fields: tuple[str, ...] = ()


def rewrite(text: str, root: Path = ROOT, results: Path | None = None) -> str:
    """Returns the text with each marked table made again from its CSV file.

    Args:
        root: The folder that paths in marks are relative to.
        results: A folder below ``root`` whose files of the same names are used instead.

    Raises:
        ValueError: A mark names an unknown kind of table, a missing file, or one without ratios.
    """

    def write(found: re.Match[str]) -> str:
        kind, path = found["kind"], Path(found["path"])
        if kind not in KINDS and not kind.startswith(_NOTE):
            supported = ", ".join((*KINDS, _NOTE))
            raise ValueError(f"table {kind!r} is not known; supported: {supported}")
        if results is not None:
            path = results / path.name
        if not (root / path).is_file():
            raise ValueError(f"table {kind} is to be made from {path}, which is no file")
        made = _made(kind, root / path)
        return f"<!-- measured: {kind} {path} -->\n\n{made}\n\n<!-- end measured -->"

    return _BLOCK.sub(write, text)


def _made(kind: str, path: Path) -> str:
    """Returns a table with the note about its kernels, or the note alone."""
    if kind.startswith(_NOTE):
        fields = fields_of(path) if kind == _NOTE else kind.split("+")
        note = kernels_note(path, fields) or f"Measured {date_of(path)} on today's kernels."
        return f"*{note}*"
    table = KINDS[kind].table(path)
    note = kernels_note(path, KINDS[kind].fields or fields_of(path))
    return f"{table}\n\n*{note}*" if note else table


def best_table(path: Path) -> str:
    """Returns our best kernel at each length, in % of FlashAttention-2, from a sweep of sm80."""
    best: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            by_length = best.setdefault(f"d {row['d_head']}, {row['mask']}", {})
            if row["kernel"].lower() != "fa2":
                percent, seq_len = float(row["percent_of_fa2"]), int(row["seq_len"])
                by_length[seq_len] = max(percent, by_length.get(seq_len, 0))
    lengths = sorted({length for by_length in best.values() for length in by_length})
    body = [
        [
            label,
            *(f"{by_length[n]:.1f}" if n in by_length else "-" for n in lengths),
            f"**{harmonic_mean(list(by_length.values())):.1f}**",
        ]
        for label, by_length in best.items()
    ]
    headers = ["best tuned configuration, % of FA2", *map(str, lengths), "harmonic mean"]
    return markdown.table(headers, body)


def _of_gradients(candidate: str, regime: str, peer: str, *fields: str) -> Kind:
    """Returns the speed of a candidate of benchmarks/backward.py relative to a peer, by length."""

    def made(path: Path) -> str:
        ratios: dict[str, dict[int, float]] = {}
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["candidate"] == candidate:
                    label = f"d {row['d_head']}, {row['mask']}"
                    ratio = float(row[f"{regime}_of_best_peer"])
                    ratios.setdefault(label, {})[int(row["seq_len"])] = ratio
        if not ratios:
            raise ValueError(f"{path} has no row of {candidate}")
        lengths = sorted({length for by_length in ratios.values() for length in by_length})
        body = [
            [
                label,
                *(f"{by_length[n]:.2f}" if n in by_length else "-" for n in lengths),
                f"**{geometric_mean(by_length.values()):.3f}**",
            ]
            for label, by_length in ratios.items()
        ]
        return markdown.table([f"ratio to {peer}", *map(str, lengths), "geometric mean"], body)

    return Kind(made, fields)


def _of_scores(path: Path) -> str:
    """Returns the speed of changed scores relative to FlexAttention's, forward and backward."""
    ratios: dict[str, dict[tuple[str, str], str]] = {}
    columns: dict[tuple[str, str], str] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["of_best_peer"]:
                d_head, _, _, what = row["case"].split(" ", 3)
                column = (row["group"], d_head)
                direction = "gradients" if row["group"].endswith("gradients") else "forward"
                columns[column] = f"{d_head.replace('d', 'd ')}, {direction}"
                by_column = ratios.setdefault(what, {})
                by_column[column] = f"{float(row['of_best_peer']):.2f}"
    if not ratios:
        raise ValueError(f"{path} has no row with a ratio to a peer")
    body = [
        [what, *(found.get(column, "-") for column in columns)] for what, found in ratios.items()
    ]
    return markdown.table(["ratio to FlexAttention", *columns.values()], body)


def _of_variants(path: Path) -> str:
    """Returns the speed of each case of benchmarks/variants.py relative to the best peer: of square
    shapes by length, of shared heads, and of packed sequences."""
    ratios: dict[str, dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["of_best_peer"]:
                d_head, shape, *packed, mask = row["case"].split()
                heads, _, heads_kv = shape.partition("/")
                length = f"{heads_kv.rpartition('x')[2]}"
                shared = heads.rpartition("x")[2] != heads_kv.partition("x")[0]
                column = "packed" if packed else f"{length}, shared heads" if shared else length
                label = f"{d_head.replace('d', 'd ')}, {mask}"
                ratios.setdefault(label, {})[column] = float(row["of_best_peer"])
    if not ratios:
        raise ValueError(f"{path} has no row with a ratio to a peer")
    columns = list(dict.fromkeys(column for found in ratios.values() for column in found))
    body = [
        [
            label,
            *(f"{found[column]:.2f}" if column in found else "-" for column in columns),
            f"**{geometric_mean(found.values()):.3f}**",
        ]
        for label, found in ratios.items()
    ]
    return markdown.table(["ratio to FlashAttention-2", *columns, "geometric mean"], body)


def _of_shapes(path: Path) -> str:
    """Returns our speed relative to the best peer's over the shapes of benchmarks/models.py, in the
    regimes of the file."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["in_turn_of_best_peer"]]
    if not rows:
        raise ValueError(f"{path} has no row with a ratio to a peer")
    columns = {name: f"{name.replace(' ', '_')}_of_best_peer" for name in _REGIMES_OF_SHAPES}
    columns = {name: column for name, column in columns.items() if rows[0].get(column)}
    groups: dict[str, list[dict[str, str]]] = {}  # way of use -> its shapes
    for row in rows:
        way = row["candidate"].removeprefix("flashsmith").strip()
        groups.setdefault(", ".join(filter(None, (row["group"], way))), []).append(row)
    body = []
    for group, shapes in (*groups.items(), ("all", rows)):
        ratios = [[float(row[column]) for row in shapes] for column in columns.values()]
        cells = [cell for of_regime in ratios for cell in _mean_and_worst(of_regime)]
        body.append([group, str(len(shapes)), *cells])
    titles = [title for name in columns for title in (name, "below 1", "least")]
    return markdown.table(["", "shapes", *titles], body)


def _mean_and_worst(ratios: Sequence[float]) -> tuple[str, str, str]:
    below = sum(ratio < 1 for ratio in ratios)
    return f"{geometric_mean(ratios):.3f}", str(below), f"{min(ratios):.2f}"


def _of_first_results(path: Path) -> str:
    """Returns the seconds of each candidate's steps in a first process, and of the first one in a
    second process, from the file of benchmarks/first_result.py and the peers' files beside it."""
    found: dict[str, dict[str, str]] = {}  # label -> candidate -> seconds
    candidates: list[str] = []
    for file in (path, *sorted({*path.parent.glob("*.csv")} - {path})):
        with file.open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["candidate"] not in candidates]
        for label, row, column in _waits(rows):
            found.setdefault(label, {})[row["candidate"]] = f"{float(row[column]):.2f}"
        candidates += dict.fromkeys(row["candidate"] for row in rows)
    labels = sorted(found, key=lambda label: label.endswith("second process"))
    body = [[label, *(found[label].get(name, "-") for name in candidates)] for label in labels]
    return markdown.table(["seconds", *candidates], body)


def _waits(rows: Sequence[dict[str, str]]) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yields the label of each wait, its row, and the column that has its seconds."""
    for _, process in groupby(rows, key=lambda row: (row["candidate"], row["process"])):
        of_torch, _, first, *others = process
        if first["process"] == "second":
            yield f"import and {first['step']}, second process", first, "since_torch"
            continue
        yield of_torch["step"], of_torch, "seconds"
        yield f"import and {first['step']}", first, "since_torch"
        yield from ((row["step"], row, "seconds") for row in others)


def _of_rows(make: Callable[[Sequence[TimeRow]], str]) -> Kind:
    def made(path: Path) -> str:
        rows = read_csv(TimeRow, path)
        if not ratio_table(rows):
            raise ValueError(f"{path} has no row with a ratio to a peer")
        return make(rows)

    return Kind(made)


KINDS: dict[str, Kind] = {
    "ratios": _of_rows(ratio_table),
    "rates": _of_rows(rate_table),
    "summary": _of_rows(ratio_sentence),
    "best": Kind(best_table),
    "variants_sm80": Kind(_of_variants, ("kernels_sm80",)),
    "first_results": Kind(
        _of_first_results, ("kernels_sm90", "kernels_sm90_backward", "kernels_sm80_decode")
    ),
    "shapes_forward": Kind(_of_shapes, ("kernels_sm90", "kernels_sm90_decode")),
    "shapes_backward": Kind(_of_shapes, _SM90_BACKWARD),
    "shapes_decode": Kind(_of_shapes, ("kernels_sm80_decode", "kernels_sm90_decode")),
    "scores": Kind(_of_scores, ("kernels_sm90", "kernels_sm90_backward")),
    "gradients": _of_gradients("flashsmith", "in_turn", "the best peer", *_SM90_BACKWARD),
    "gradients_back_to_back": _of_gradients(
        "flashsmith", "back_to_back", "the best peer", *_SM90_BACKWARD
    ),
    "gradients_deterministic": _of_gradients(
        "flashsmith deterministic", "in_turn", "FlashAttention-3, deterministic", *_SM90_BACKWARD
    ),
    "gradients_sm80": _of_gradients(
        "flashsmith sm80", "in_turn", "FlashAttention-2", "kernels_sm80_backward"
    ),
    "gradients_sm80_sums": _of_gradients(
        "flashsmith sm80 sums", "in_turn", "FlashAttention-2", "kernels_sm80_sums_backward"
    ),
    "gradients_sm80_sums_back_to_back": _of_gradients(
        "flashsmith sm80 sums", "back_to_back", "FlashAttention-2", "kernels_sm80_sums_backward"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the tables of measured numbers anew.")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="take the files from here")
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    args = parser.parse_args(arguments)
    results = args.results and args.results.resolve().relative_to(ROOT)
    old = {page: page.read_text() for page in PAGES}
    new = {page: rewrite(text, results=results) for page, text in old.items()}
    changed = [page for page in PAGES if new[page] != old[page]]
    for page in changed:
        print(f"{page.relative_to(ROOT)} {'differs from its CSV' if args.check else 'written'}")
        if not args.check:
            page.write_text(new[page])
    return 1 if args.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
