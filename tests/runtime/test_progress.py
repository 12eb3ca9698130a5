"""The messages on stderr of a build that a call waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashsmith.configs import KernelId
from flashsmith.jit import show_progress
from flashsmith.runtime.progress import announce_build
from support.sm80_kernels import BASE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_build_says_why_it_happens_once_how_far_it_is_and_how_long_it_took(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    with announce_build(KernelId(BASE)) as progress:
        for done in range(4):
            progress(done, 3, f"file {done}")
    begin, *lines, end = capsys.readouterr().err.splitlines()
    assert begin == (
        f"flashsmith: building {KernelId(BASE).name}; this happens once on this machine, because "
        f"the kernel is kept in {cache}"
    )
    assert lines == ["[0/3] file 0", "[3/3] file 3"]
    assert end.startswith("flashsmith: built in ")


def test_nothing_is_said_where_nothing_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_build(KernelId(BASE)), show_progress():
        pass
    assert capsys.readouterr().err == ""


def test_a_build_that_fails_is_not_said_to_be_built(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    with pytest.raises(KeyError), announce_build(KernelId(BASE)) as progress:
        progress(0, 3, "a file")
        raise KeyError
    assert "built in" not in capsys.readouterr().err


def test_where_there_is_no_terminal_every_tenth_unit_has_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show_progress() as progress:
        for done in range(38):
            progress(done, 37, f"file [{done}]")
            if done == 7:
                progress(7, 37, "waiting for another process")
    assert capsys.readouterr().err.splitlines() == [
        "[0/37] file [0]",
        "[7/37] waiting for another process",
        "[10/37] file [10]",
        "[20/37] file [20]",
        "[30/37] file [30]",
        "[37/37] file [37]",
    ]


def test_units_that_are_finished_several_at_a_time_have_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show_progress() as progress:
        for done in (0, 9, 11, 19, 32):
            progress(done, 37, "")
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == [
        "[0/37]",
        "[11/37]",
        "[32/37]",
    ]


def test_on_a_terminal_there_is_a_bar(
    capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar is erased when the build is done."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with announce_build(KernelId(BASE)) as progress:
        progress(12, 37, "file [12]")
    begin, bar = capsys.readouterr().err.split("\n", 1)
    assert begin.startswith(f"flashsmith: building {KernelId(BASE).name}; ")
    assert "12/37" in bar and "file [12]" in bar and "━" in bar
    erase = "\x1b[1A\x1b[2K"
    assert erase in bar and bar.rpartition(erase)[2].startswith("flashsmith: built in ")
