"""Files that a user names are never lost silently, and are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from flashsmith.cli import app, report
from flashsmith.configs.registry import FORWARD
from flashsmith.lab.commands.files import check_output, write_whole
from flashsmith.lab.commands.tune import refuse_to_discard_others
from flashsmith.selection.table_text import title_of

KERNEL = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_on(input_file: Path, output: Path, *args: str, code: int = 0) -> Result:
    paths = ("--input", input_file, "--out", output)
    return invoke("run", *paths, "-k", KERNEL, "--device", "cpu", *args, code=code)


@pytest.fixture
def qkv(tmp_path: Path) -> Path:
    path = tmp_path / "qkv.safetensors"
    save_file({name: torch.randn(1, 64, 1, 64).half() for name in "qkv"}, path)
    return path


def test_run_does_not_destroy_its_input(qkv: Path) -> None:
    before = qkv.read_bytes()
    assert f"--out {qkv} is the input" in run_on(qkv, qkv, code=2).stderr
    link = qkv.with_name("link.safetensors")
    link.symlink_to(qkv)
    assert "is the input" in run_on(qkv, link, code=2).stderr
    assert qkv.read_bytes() == before


def test_run_overwrites_nothing_unless_forced(qkv: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("three years of work")
    assert f"--out {thesis} exists; choose another" in run_on(qkv, thesis, code=2).stderr
    assert thesis.read_text() == "three years of work"
    run_on(qkv, thesis, "--force")
    assert list(load_file(thesis)) == ["o"]
    run_on(qkv, qkv, "--force")
    assert list(load_file(qkv)) == ["o"]
    assert {path.name for path in tmp_path.iterdir()} == {"qkv.safetensors", "thesis.tex"}


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "o"
    path.write_text("old")

    def half(staged: Path) -> None:
        staged.write_text("ne")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "target")
    check_output("--out", link, force=False)
    write_whole(link, lambda staged: staged.write_text("new"))
    assert link.is_symlink()
    assert (tmp_path / "folder" / "target").read_text() == "new"


def test_report_replaces_reports_and_nothing_else(tmp_path: Path) -> None:
    page, letter = tmp_path / "report.html", tmp_path / "letter.html"
    letter.write_text("<!doctype html>\n<title>Dear aunt</title>")
    message = invoke("report", KERNEL, "--out", letter, code=2).stderr
    assert f"--out {letter} exists; choose another file, or pass --force" in message
    assert "aunt" in letter.read_text()
    page.write_text('<!doctype html>\n<html lang="en">\n<title>flashsmith: where</title>')
    check_output("--out", page, force=False, is_own=report._is_report)


def test_tuning_anew_discards_no_file_of_another_kind(tmp_path: Path) -> None:
    table, other, text = tmp_path / "h200.csv", tmp_path / "package.json", tmp_path / "notes"
    table.write_text("# flashsmith tuned table, format 0, of yesterday")
    other.write_text('{"name": "my-site"}')
    text.write_text("notes")
    for path in (table, tmp_path / "new.csv"):
        refuse_to_discard_others(path, title_of(FORWARD))
    for path in (other, text):
        with pytest.raises(ValueError, match=f"and {path} is not one"):
            refuse_to_discard_others(path, title_of(FORWARD))


def test_soak_replaces_its_logs_and_nothing_else(tmp_path: Path) -> None:
    log, notes = tmp_path / "soak.csv", tmp_path / "notes.csv"
    notes.write_text("name,phone\n")
    args = (
        "soak",
        "-k",
        KERNEL,
        "--no-tile-boundaries",
        "--cases",
        1,
        "--seed",
        1,
        "--device",
        "cpu",
    )
    assert f"--out {notes} exists" in invoke(*args, "--out", notes, code=2).stderr
    assert notes.read_text() == "name,phone\n"
    for _ in range(2):
        invoke(*args, "--out", log)
    assert log.read_text().count("kernel,variant,verdict") == 1  # replaced, not appended to
