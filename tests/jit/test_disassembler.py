"""The disassembler: how cuobjdump is called, and how its output is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashsmith.errors import ToolchainError
from flashsmith.jit import disassembler
from flashsmith.jit.disassembler import disassemble


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a fake cuobjdump with nvdisasm beside it, which prints its PATH, its arguments, and a
    byte that is not UTF-8."""
    for name in ("cuobjdump", "nvdisasm"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$PATH"; echo "$@"; printf "\\377"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(disassembler, "_tool_folders", lambda: iter([tmp_path]))
    return tmp_path / "cuobjdump"


def test_machine_code_comes_as_text(tool: Path) -> None:
    path, words, rest = disassemble(Path("some.o"), "sm_90a").split("\n")
    assert path.split(os.pathsep) == [str(tool.parent), *os.get_exec_path()]
    assert words == "-sass -arch sm_90a some.o"
    assert rest == "\N{REPLACEMENT CHARACTER}"


def test_a_failure_is_told_in_the_words_of_the_tool(tool: Path) -> None:
    tool.write_text("#!/bin/sh\necho half; echo no such arch >&2; exit 1\n")
    with pytest.raises(ToolchainError, match=r"-arch sm_1 some.o` failed: no such arch; install"):
        disassemble(Path("some.o"), "sm_1")


def test_a_folder_without_nvdisasm_is_passed_over(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare" / "cuobjdump"
    bare.parent.mkdir()
    tool.rename(bare)
    (tmp_path / "cuobjdump").symlink_to(bare)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    folders = [bare.parent, tmp_path]
    monkeypatch.setattr(disassembler, "_tool_folders", lambda: iter(folders))
    assert disassembler.find_cuobjdump() == tmp_path / "cuobjdump"
