"""A fake ncu that prints what a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashsmith import settings


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Returns a function that installs an ncu which prints a text and exits; it returns the file
    that lists the command lines."""

    def make(printed: str, stderr: str = "", code: int = 0) -> Path:
        program, calls = tmp_path / "ncu", tmp_path / "calls"
        (tmp_path / "printed").write_text(printed)
        (tmp_path / "stderr").write_text(stderr)
        program.write_text(
            f'#!/bin/sh\nfor word; do echo "$word" >> "{calls}"; done\n'
            f'cat "{tmp_path}/printed"; cat "{tmp_path}/stderr" >&2; exit {code}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv(settings.NCU.name, str(program))
        return calls

    return make
