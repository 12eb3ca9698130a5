"""Results say which kernels they measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith.jit import kernel_source_stamp
from flashsmith.lab.bench.machine_code_record import RECORD, MachineCodeRecord
from flashsmith.lab.bench.provenance import (
    MACHINE_CODE_NOW,
    date_of,
    fields_of,
    kernels_note,
    stamp_of,
)

TODAY = kernel_source_stamp()
SM80 = "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
SM90 = "(BF16, 128, 128, 128, 2): wgmma+stages_2+q_regs_8+overlap+persistent+tiles+lazy_8+tma_store"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    folder = tmp_path / "2026-01-02" / "run"
    folder.mkdir(parents=True)
    path = folder / "forward.csv"
    path.write_text(f'kernel,ms\nfa2,1\n"{SM80}",2\n"{SM90} causal",3\n')
    return path


def write(path: Path, **stamp: object) -> None:
    path.write_text(json.dumps(stamp))


def test_kernels_of_today_need_no_note(result: Path) -> None:
    write(result.with_name("environment.json"), **TODAY)
    assert kernels_note(result, ["kernels_sm80", "kernels_sm90_backward"]) == ""


def test_other_kernels_are_said_with_their_families_and_the_date(result: Path) -> None:
    write(
        result.with_name("environment.json"), **TODAY | {"kernels_sm80": "0", "date": "2026-01-03"}
    )
    assert kernels_note(result, ["kernels_sm90"]) == ""
    note = kernels_note(result, ["kernels_sm80", "kernels_sm90"])
    assert note == "Measured 2026-01-03 on other sm80 forward kernels than today's."


def test_what_was_not_recorded_is_said(result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm90="0")
    assert kernels_note(result, ["kernels_sm90", "kernels_sm90_backward"]) == (
        "Measured 2026-01-02 on other sm90 forward kernels than today's, "
        "by a run that did not record its sm90 backward kernels."
    )
    assert kernels_note(result, ["kernels_sm90_decode"]) == (
        "Measured 2026-01-02 by a run that did not record its sm90 decode kernels."
    )


def test_other_sources_with_the_same_machine_code_need_no_note(result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm80="0", kernels_sm90="0")
    later = {"kernels_sm80": TODAY["kernels_sm80"], "kernels_sm90": "1", "kernels": 4}
    write(result.with_name(MACHINE_CODE_NOW), **later, differ=[])
    assert kernels_note(result, ["kernels_sm80"]) == ""
    assert "sm90 forward kernels" in kernels_note(result, ["kernels_sm80", "kernels_sm90"])
    write(result.with_name(MACHINE_CODE_NOW), **later, differ=["a"])
    assert kernels_note(result, ["kernels_sm80"]) == (
        "Measured 2026-01-02; 1 of its 4 sm80 forward kernels have other machine code today."
    )


def test_sources_that_the_record_has_beside_todays_need_no_note(result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm80="0", kernels_sm90="1")
    record = MachineCodeRecord("13.0", {"kernels_sm80": ("0", TODAY["kernels_sm80"])}, ())
    record.write(result.parents[1] / RECORD)
    assert kernels_note(result, ["kernels_sm80"]) == ""
    assert "other sm90 forward kernels" in kernels_note(result, ["kernels_sm80", "kernels_sm90"])
    replace(record, sources={"kernels_sm80": ("0", "2")}).write(result.parents[1] / RECORD)
    assert "other sm80 forward kernels" in kernels_note(result, ["kernels_sm80"])


def test_what_differs_today_is_said_where_the_record_follows_it(result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm80="0")
    write(result.with_name(MACHINE_CODE_NOW), kernels_sm80="1", kernels=4, differ=["a"])
    sources = {"kernels_sm80": ("1", TODAY["kernels_sm80"])}
    MachineCodeRecord("13.0", sources, ()).write(result.parents[1] / RECORD)
    assert "; 1 of its 4 sm80 forward kernels" in kernels_note(result, ["kernels_sm80"])


def test_the_file_of_its_own_name_comes_before_that_of_the_folder(result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm80="0")
    write(result.with_name("forward_environment.json"), kernels_sm80=TODAY["kernels_sm80"])
    assert kernels_note(result, ["kernels_sm80"]) == ""


@pytest.mark.parametrize(
    "text",
    [
        f"kernel,date,kernels_sm80\na,2026-01-04,{TODAY['kernels_sm80']}\n",
        f"# a table\n# date: 2026-01-04\n# kernels_sm80: {TODAY['kernels_sm80']}\nkernel\na\n",
    ],
    ids=["columns", "comments"],
)
def test_a_file_has_its_own_stamp(text: str, result: Path) -> None:
    write(result.with_name("environment.json"), kernels_sm80="0", date="2026-01-03")
    result.write_text(text)
    assert stamp_of(result)["kernels_sm80"] == TODAY["kernels_sm80"]
    assert kernels_note(result, ["kernels_sm80"]) == ""
    assert date_of(result) == "2026-01-04"


def test_families_are_those_of_the_named_kernels(result: Path) -> None:
    assert fields_of(result) == ["kernels_sm80", "kernels_sm90"]
    result.write_text("candidate,ms\nflashsmith,1\n")
    with pytest.raises(ValueError, match="names no kernel"):
        fields_of(result)


@pytest.mark.parametrize("fields", [[], ["kernels_sm70"]])
def test_a_family_that_is_not_known_is_named(fields: list[str], result: Path) -> None:
    with pytest.raises(ValueError, match=r"fields are .*; supported: kernels_sm80, "):
        kernels_note(result, fields)


def test_a_folder_with_one_stamp_has_it_for_all_files(result: Path) -> None:
    write(result.with_name("backward_environment.json"), kernels_sm80=TODAY["kernels_sm80"])
    assert kernels_note(result, ["kernels_sm80"]) == ""
