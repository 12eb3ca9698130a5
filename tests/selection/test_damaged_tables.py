"""Tables with numbers that no measurement gives, and files that are not tables."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flashsmith.configs.registry import DECODE, FORWARD
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.errors import TuningError
from flashsmith.selection.choose import choose, find_tables, forget_tables
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.stamped_csv import read_count, read_measure
from flashsmith.selection.tables import Table, user_table_path
from support.tables import H200, STAMP, make_entry
from support.workloads import square

ODD_MEASURES = ("nan", "-1", "0", "0.0", "-0.0", "inf", "-inf", "1e999", "x", "1,5", "")
ODD_COUNTS = ("-5", "nan", "1.5", "x", "")
MEASURES = ("ms", "ms_p20", "ms_p80", "tflops", "heuristic_ratio")
OF_DECODE = DecodeWorkload(DType.BF16, 128, rows=16)

pytestmark = pytest.mark.usefixtures("own_tables")


def with_value(path: Path, column: str, value: str) -> None:
    """Puts a value into the first row."""
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    cells = lines[at + 1].rsplit('"', 1)  # a kernel's name has commas, and quotes
    names = lines[at].split(",")
    start = names.index("kernel") + 1
    before, after = cells[0].split('"', 1)[0].split(","), cells[1].split(",")
    if names.index(column) < start:
        before[names.index(column)] = value
    else:
        after[names.index(column) - start + 1] = value
    name = cells[0].split('"', 1)[1]
    lines[at + 1] = ",".join(before) + f'"{name}"' + ",".join(after)
    path.write_text("\n".join(lines) + "\n")


def write_table() -> Path:
    path = user_table_path(H200)
    Table.of(FORWARD, STAMP, [make_entry()]).write(path)
    return path


def write_decode_table(path: Path) -> None:
    config = DECODE.candidates(OF_DECODE, "sm_90a")[2]
    row = Measured(config, 0.0125, 0.012, 0.013)
    entry = Entry(OF_DECODE, tried=12, excluded={}, heuristic_ratio=1.25, ranked=(row,))
    Table.of(DECODE, STAMP, [entry]).write(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((name, value) for name in MEASURES for value in ODD_MEASURES if value != "1,5"),
        *(("tried", value) for value in ODD_COUNTS),
    ],
)
def test_a_number_that_no_measurement_gives_is_refused(column: str, value: str) -> None:
    if (column, value) == ("heuristic_ratio", ""):
        return  # the heuristic's choice was wrong, or not measured
    path = write_table()
    Table.read(path)
    with_value(path, column, value)
    with pytest.raises(TuningError, match=r"the tuned table .* cannot be used"):
        Table.read(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("ms", value) for value in ("nan", "-1", "0", "inf")),
        *(("heuristic_ratio", value) for value in ("nan", "-1", "0", "inf")),
        *((name, "-5") for name in ("tried",)),
    ],
)
def test_a_table_of_decode_likewise(own_tables: Path, column: str, value: str) -> None:
    path = own_tables / "table.csv"
    write_decode_table(path)
    Table.read(path)
    with_value(path, column, value)
    with pytest.raises(TuningError, match=r"the tuned table .* cannot be used"):
        Table.read(path)


@pytest.mark.parametrize("value", ODD_MEASURES)
def test_the_column_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=r"ms is .*above 0|could not convert"):
        read_measure({"ms": value}, "ms")


def test_a_count_may_be_none() -> None:
    assert read_count({"tried": "0"}, "tried") == 0


@pytest.mark.parametrize("cell", ["\0", "x" * 200_000, '"', "\xff"])
def test_what_is_no_csv_is_refused_and_the_heuristic_serves(cell: str) -> None:
    """The bad text may be in any cell; attention goes on."""
    path = write_table()
    text = path.read_text()
    for at in (text.index("gpu"), text.index("dtype"), text.index("async"), len(text) - 2):
        path.write_text(text[:at] + cell + text[at:], encoding="latin-1")
        forget_tables()
        with pytest.warns(UserWarning, match=r"table .* (cannot be used|is not for here)"):
            found = find_tables(FORWARD, H200)[0]
        assert all(source.path != path for source in found)
        assert choose(square(DType.FP16, 128, "full", 4, 16, 1024), H200).config


def test_a_damaged_table_of_decode_is_passed_over(own_tables: Path) -> None:
    path = own_tables / "h200-decode.csv"
    write_decode_table(path)
    path.write_bytes(path.read_bytes().replace(b"BF16", b"B\0F16", 1))
    with pytest.warns(UserWarning, match="cannot be used"):
        sources, refused = find_tables(DECODE, H200)
    assert not sources and "cannot be used" in refused[0]


def test_whatever_is_damaged_it_is_read_or_refused() -> None:
    """A table that was read can be ranked and printed."""
    rng, path = random.Random(7), write_table()
    text = path.read_text()
    for _ in range(150):
        at, to = sorted(rng.randrange(len(text)) for _ in range(2))
        snippet = rng.choice(["nan", "-1", "0", "inf", ",", "\n", '"', "9" * 30, "\0", ""])
        path.write_text(text[:at] + snippet + text[rng.choice([at, at + 1, at + 3, to]) :])
        try:
            table = Table.read(path)
        except TuningError:
            continue
        for entry in table.entries.values():
            assert all(entry.loss(row) + 1 > 0 and row.described() for row in entry.ranked)
