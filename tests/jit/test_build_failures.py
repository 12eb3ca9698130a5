"""A failed build shows the lines of the compiler that failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError
from flashsmith.jit import SourceTree, build_kernels
from flashsmith.jit.compile import BUILD_LOG
from support.tiny_build import EMULATOR, INSTANCES


def test_only_the_log_of_the_compiler_that_failed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second kernel is compiled at the same time, and fails after the first."""
    first, second = INSTANCES[:2]
    failed = tmp_path / "failed"
    say = (
        f'case "$*" in *{first.slug}.cu*) echo error of the first; touch {failed}; exit 1;; '
        f"*{second.slug}.cu*) while [ ! -e {failed} ]; do sleep 0.1; done; sleep 0.5; "
        "echo error of the second; exit 1;; esac"
    )
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "calls.log", before=say)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    sources = SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)
    with pytest.raises(BuildError, match=rf"^compiling {re.escape(first.name)} failed") as caught:
        build_kernels(INSTANCES[:2], EMULATOR, sources=sources, jobs=4)
    (log,) = (tmp_path / "cache").rglob(f"failed/*/{BUILD_LOG}")
    for text in (str(caught.value), log.read_text()):
        assert "error of the first" in text
        assert "of the second" not in text
        assert "ninja" not in text
