"""The ncu program itself: it may fail to start, and it runs with LC_ALL=C."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashsmith import settings
from flashsmith.errors import ProfilerError
from flashsmith.lab.bench import ncu


def test_an_ncu_that_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ncu"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    monkeypatch.setenv(settings.NCU.name, str(program))
    with pytest.raises(ProfilerError, match=rf"{program} cannot be run: .*install Nsight"):
        ncu.profile(["target"], ["m"], tmp_path / "raw.csv")


def test_ncu_prints_numbers_as_english_does_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ncu"
    program.write_text('#!/bin/sh\necho "$LC_ALL $KEPT" >&2\nprintf \'"ID","Kernel Name"\\n')
    with program.open("a") as file:
        file.write('"",""\\n"0","k"\\n\'\n')
    program.chmod(0o755)
    monkeypatch.setenv(settings.NCU.name, str(program))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("KEPT", "yes")
    launches, stderr = ncu.profile(["target"], ["m"], tmp_path / "raw.csv")
    assert stderr == "C yes\n"
    assert [launch.kernel for launch in launches] == ["k"]
