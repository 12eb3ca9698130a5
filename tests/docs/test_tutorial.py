"""docs/tutorial.md: its commands run in order in an empty folder, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
FENCE = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
# A command, which a backslash continues in the next line, and what it prints.
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of the page; ``file`` is the name of the file that a reader writes it to."""

    language: str
    file: str
    text: str


BLOCKS = [Block(*found) for found in FENCE.findall(PAGE.read_text())]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that finds flashsmith and its Python, as an activated one does."""
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("python", ""), ("flashsmith", " -m flashsmith")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        program.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }


def printed(command: str, folder: Path, shell: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder, env=shell, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    # 141: ``head`` has read enough.
    assert done.returncode in (0, 141), f"{command}\n{done.stderr}"
    return done.stdout


def without_trailing_blanks(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_each_command_prints_what_the_page_says(tmp_path: Path, shell: dict[str, str]) -> None:
    commands = 0
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "console":
            found = COMMAND.findall(block.text)
            assert "".join(f"$ {command}\n{output}" for command, output in found) == block.text
            for command, output in found:
                got = printed(command, tmp_path, shell)
                assert without_trailing_blanks(got) == without_trailing_blanks(output), command
                commands += 1
    assert commands >= 8


def test_every_block_is_run_but_the_installation() -> None:
    others = [block for block in BLOCKS if not block.file and block.language != "console"]
    (installation,) = others
    target, activate = (line.split("#")[0].split() for line in installation.text.splitlines())
    assert target[0] == "make" and f"\n{target[1]}:" in (ROOT / "Makefile").read_text()
    assert activate == [".", ".venv/bin/activate"]


def test_what_another_kernel_prints_is_noticed(tmp_path: Path, shell: dict[str, str]) -> None:
    """The counts of the page are those of its configuration alone."""
    table = next(block.text for block in BLOCKS if "bank conflicts" in block.text)
    command, output = COMMAND.findall(table)[0]
    name = "(FP16, 64, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    other = re.sub(r'"\$\(.*?\)"', f'"{name}"', command)
    assert other != command
    got = printed(other, tmp_path, shell)
    assert without_trailing_blanks(got) != without_trailing_blanks(output)
