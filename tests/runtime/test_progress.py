"""What a build that a call waits for says on stderr."""

from __future__ import annotations

import pytest

from flashsmith.configs import KernelId
from flashsmith.runtime.progress import announce_build
from support.sm80_kernels import BASE


def test_a_build_is_announced_once_and_its_end_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_build(KernelId(BASE)) as progress:
        for done in range(3):
            progress(done, 3, "a file")
    begin, end = capsys.readouterr().err.splitlines()
    assert begin == f"flashsmith: building {KernelId(BASE).name}"
    assert end.startswith("flashsmith: built in ")


def test_nothing_is_said_where_nothing_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_build(KernelId(BASE)):
        pass
    assert capsys.readouterr().err == ""
