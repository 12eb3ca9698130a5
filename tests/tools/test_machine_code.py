"""tools/build/machine_code.py: when machine code counts as the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashsmith.configs import KernelId
from flashsmith.jit import kernel_source_stamp
from flashsmith.jit.machine_code import Function, Instruction
from support.scripts import load_script

MOVE = Instruction(0x10, "MOV", "R1, R2", control=5)
FUNCTION = Function("name", "sm_90a", (Instruction(0, "NOP", ""), MOVE))
ROWS = [("a", "sm_80", 3, "12"), ("a", "sm_90a", 4, "34")]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/build/machine_code.py")


def test_names_are_not_in_a_fingerprint(tool: ModuleType) -> None:
    assert tool.fingerprint(replace(FUNCTION, name="other")) == tool.fingerprint(FUNCTION)


@pytest.mark.parametrize(
    "other",
    [
        {"opcode": "MOV.64"},
        {"operands": "R1, R3"},
        {"guard": "P0"},
        {"control": 6},
    ],
)
def test_all_of_an_instruction_is_in_a_fingerprint(
    tool: ModuleType, other: dict[str, object]
) -> None:
    changed = replace(FUNCTION, instructions=(FUNCTION.instructions[0], replace(MOVE, **other)))
    assert tool.fingerprint(changed) != tool.fingerprint(FUNCTION)


def test_an_instruction_less_is_in_a_fingerprint(tool: ModuleType) -> None:
    shorter = replace(FUNCTION, instructions=FUNCTION.instructions[1:])
    assert tool.fingerprint(shorter) != tool.fingerprint(FUNCTION)


def test_differences_name_kernels(tool: ModuleType) -> None:
    assert tool.differences(ROWS, ROWS) == {}
    changed = [("a", "sm_80", 5, "56"), ("b", "sm_80", 1, "78")]
    assert [*tool.differences(ROWS, changed).values()] == [
        "a sm_80: 3 instructions before, 5 after",
        "a sm_90a: only before",
        "b sm_80: only after",
    ]


FUNCTIONS = [("d", "sm_80", 3, "12"), ("d", "sm_80", 4, "34"), ("d", "sm_80", 5, "56")]


@pytest.mark.parametrize("place", range(3))
def test_every_function_of_a_kernel_is_compared(place: int, tool: ModuleType) -> None:
    changed = [*FUNCTIONS]
    changed[place] = ("d", "sm_80", 9, "78")
    sizes = " + ".join(str(row[2]) for row in sorted(changed))
    assert tool.differences(FUNCTIONS, changed[::-1]) == {
        ("d", "sm_80"): f"d sm_80: 3 + 4 + 5 instructions before, {sizes} after"
    }
    fewer = [row for row in FUNCTIONS if row is not FUNCTIONS[place]]
    assert len(tool.differences(FUNCTIONS, fewer)) == len(tool.differences(fewer, FUNCTIONS)) == 1
    assert tool.differences(FUNCTIONS, FUNCTIONS[::-1]) == {}


def test_what_is_written_reads_back(tool: ModuleType, tmp_path: Path) -> None:
    tool.write(tmp_path / "new" / "x.csv", ROWS)
    assert tool.read(tmp_path / "new" / "x.csv") == ROWS


KERNEL = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles causal"


@pytest.mark.parametrize("instructions", [7, 8])
def test_a_run_gets_the_hashes_of_today_and_what_differs(
    instructions: int, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(
        instances: Sequence[KernelId], archs: Sequence[str], jobs: int
    ) -> Iterator[tuple[str, str, int, str]]:
        assert [str(each) for each in instances] == [KERNEL]
        yield (KERNEL, archs[0], instructions, "12")

    monkeypatch.setattr(tool, "measure", measure)
    tool.write(tmp_path / "machine_code.csv", [(KERNEL, "sm_80", 7, "12")])
    assert tool.main(["--results", str(tmp_path)]) == (instructions != 7)
    document = json.loads((tmp_path / "machine_code_now.json").read_text())
    assert document["kernels"] == 1
    assert document["differ"] == [KERNEL] * (instructions != 7)
    hashes = {name: value for name, value in document.items() if "kernels_" in name}
    assert hashes == {"kernels_sm80": kernel_source_stamp()["kernels_sm80"]}


def test_a_function_that_is_gone_makes_a_kernel_of_a_run_differ(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [(KERNEL, "sm_80", 7, "12"), (KERNEL, "sm_80", 8, "34")]
    monkeypatch.setattr(tool, "measure", lambda *_: before[:1])
    tool.write(tmp_path / "machine_code.csv", before)
    assert tool.main(["--results", str(tmp_path)])
    document = json.loads((tmp_path / "machine_code_now.json").read_text())
    assert (document["kernels"], document["differ"]) == (1, [KERNEL])
