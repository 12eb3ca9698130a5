"""An ncu that prints what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashsmith import settings


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an ncu that prints the given text and ends; its command lines come in a file."""

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
