"""tools/build/machine_code.py --restamp: tables stay valid only where no machine code changed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from flashsmith.configs import KernelId
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import BuildError
from flashsmith.jit import find_cuda_toolkit, kernel_source_stamp
from flashsmith.lab.bench.machine_code_record import CodeRow, MachineCodeRecord
from flashsmith.selection.tables import Table
from support.scripts import load_script
from support.tables import H200, STAMP, make_entry

OLD = dict.fromkeys(kernel_source_stamp(), "0123456789abcdef")
ENTRY = make_entry()
KERNELS = [KernelId(row.config, ENTRY.workload.variant).name for row in ENTRY.ranked]
ROWS = tuple((name, "sm_80", n, f"{n:016x}") for name in KERNELS for n in (3, 4))


class Recorded:
    """A record and a table of older sources, and the results of today's sources."""

    def __init__(self, folder: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tool, self.path, self.table = tool, folder / "record.csv", folder / "h200.csv"
        self.today = list(ROWS)
        self.compiled: list[str] = []
        nvcc = find_cuda_toolkit().nvcc.version
        self.record = MachineCodeRecord(nvcc, {name: (OLD[name],) for name in OLD}, ROWS)
        self.write(self.record, STAMP | OLD)
        monkeypatch.setattr(tool, "_RECORD", self.path)
        monkeypatch.setattr(tool, "measure_cubins", self.measure)
        monkeypatch.setattr(tool, "shipped_table_paths", lambda: [self.table])

    def write(self, record: MachineCodeRecord, stamp: dict[str, str]) -> None:
        record.write(self.path)
        Table.of(FORWARD, stamp, [ENTRY]).write(self.table)
        self.before = self.path.read_text(), self.table.read_text()

    def measure(
        self, kernels: Sequence[KernelId], archs: Sequence[str], jobs: int, made: Path
    ) -> Iterator[CodeRow]:
        self.compiled = [kernel.name for kernel in kernels]
        return (row for row in self.today if row[0] in self.compiled)

    def restamp(self, *more: str) -> int:
        return int(self.tool.main(["--restamp", *more]))

    @property
    def is_as_before(self) -> bool:
        return (self.path.read_text(), self.table.read_text()) == self.before


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(tmp_path, load_script("tools/build/machine_code.py"), monkeypatch)


def test_the_same_machine_code_renews_tables_and_the_record(recorded: Recorded) -> None:
    assert recorded.restamp() == 0
    table, record = Table.read(recorded.table), MachineCodeRecord.read(recorded.path)
    own = table.requirements(H200)
    assert table.stamp == STAMP | OLD | own, "it has no kernels of the other families"
    assert own.keys() == {"gpu", "kernels_sm80"}
    assert record.rows == ROWS
    assert record.sources == {name: (OLD[name], kernel_source_stamp()[name]) for name in OLD}
    assert sorted(recorded.compiled) == sorted(KERNELS)
    recorded.compiled = []
    assert recorded.restamp() == 0
    assert MachineCodeRecord.read(recorded.path) == record
    assert recorded.compiled == []


def test_a_family_without_kernels_in_a_table_needs_no_record(recorded: Recorded) -> None:
    recorded.write(recorded.record, STAMP | OLD | {"kernels_sm90": "f" * 16})
    assert recorded.restamp() == 0
    assert Table.read(recorded.table).stamp["kernels_sm90"] == "f" * 16


@pytest.mark.parametrize("place", range(len(ROWS)))
@pytest.mark.parametrize("other", [[9, "f" * 16], [3, "f" * 16], None])
def test_another_function_anywhere_refuses(
    place: int, other: list[object] | None, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.today[place : place + 1] = [(*ROWS[place][:2], *other)] if other else []
    assert recorded.restamp() == 1
    assert recorded.is_as_before
    said = capsys.readouterr().out
    assert f"{ROWS[place][0]} sm_80: 3 + 4 instructions before" in said
    assert "nothing is restamped: machine code changed" in said
    assert "2 kernels compared, 1 differ" in said


def test_a_sample_writes_nothing(recorded: Recorded) -> None:
    assert recorded.restamp("--sample", "1") == 0
    assert (len(recorded.compiled), recorded.is_as_before) == (1, True)


@pytest.mark.parametrize(
    ("change", "stamp", "message"),
    [
        ({"nvcc": "12.9.1"}, {}, "the record is of nvcc 12.9.1; here is "),
        ({"sources": {}}, {}, "the record has no kernels_sm80, "),
        ({"rows": ROWS[:2]}, {}, "1 kernels that no record has"),
        ({}, {"kernels_sm80": "other"}, "with kernels_sm80 other, which the record has not"),
    ],
)
def test_what_the_record_does_not_speak_for_is_refused(
    change: dict[str, object],
    stamp: dict[str, str],
    message: str,
    recorded: Recorded,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded.write(replace(recorded.record, **change), STAMP | OLD | stamp)
    with pytest.raises(SystemExit, match="2"):
        recorded.restamp()
    assert message in capsys.readouterr().err
    assert recorded.is_as_before


def cubin(*functions: tuple[str, int, bytes]) -> bytes:
    """Returns an ELF file with sections of these names, registers and contents."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in functions) + b".names\0"
    contents = [names, *(code for _, _, code in functions)]
    headers, at = [], 64
    for i, content in enumerate(contents):
        name = names.index(functions[i - 1][0].encode() if i else b".names")
        registers = functions[i - 1][1] << 24 if i else 0
        headers.append(
            struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, len(content), 0, registers, 0, 0)
        )
        at += len(content)
    start = bytearray(b"\x7fELF\x02".ljust(64, b"\0"))
    struct.pack_into("<Q", start, 0x28, at)
    struct.pack_into("<HH", start, 0x3C, len(headers), 0)
    return b"".join([bytes(start), *contents, *headers])


A, B = ("\1" * 32).encode(), ("\2" * 64).encode()


def test_functions_of_a_cubin_are_compared_without_their_names() -> None:
    tool = load_script("tools/build/_cubins.py")
    usual = tool.functions_in(cubin((".text.a", 40, A), (".info", 0, b"x"), (".text.b", 50, B)))
    assert [n for n, _ in usual] == [2, 4]
    assert tool.functions_in(cubin((".text.d", 50, B), (".text.c", 40, A))) == usual
    for other in ((".text.b", 51, B), (".text.b", 50, B[:-1] + b"\3"), (".text.b", 50, B[:32])):
        assert tool.functions_in(cubin((".text.a", 40, A), other)) != usual
    assert len(tool.functions_in(cubin((".text.a", 40, A)))) == 1


def test_a_kernel_that_would_be_refused_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load_script("tools/build/_cubins.py")
    kernel = KernelId(ENTRY.ranked[0].config, ENTRY.workload.variant)
    made = tmp_path / "made.cubin"
    made.write_bytes(cubin((".text.a", 40, A)))
    unit = SimpleNamespace(key="key", arch="sm_90a")
    monkeypatch.setattr(tool, "visit_units", lambda *given: [given[3](kernel, unit, tmp_path)])
    monkeypatch.setattr(tool, "compile_unit", lambda unit, folder: made)
    for finding in ("an arrival at 0x40", ""):
        monkeypatch.setattr(tool, "first_finding", lambda unit, made, finding=finding: finding)
        rows = tool.measure_cubins([kernel], ["sm_90a"], 1, tmp_path)
        if finding:
            with pytest.raises(BuildError, match=finding):
                list(rows)
            assert not (tmp_path / "key.json").exists()
        else:
            assert [row[:2] for row in rows] == [(kernel.name, "sm_90a")]
