"""Source trees and caches that belong to one test."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.jit import (
    SourceTree,
)
from support.workshop import Workshop


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceTree:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(workshop.cache))
    monkeypatch.setenv("FLASHSMITH_CXX", str(workshop.compiler))
    return workshop
