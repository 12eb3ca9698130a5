"""Paths of folders in the project."""

from __future__ import annotations

from pathlib import Path

import flashsmith

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
PROGRAMS = TESTS / "emulator" / "programs"  # in C++
CSRC = Path(flashsmith.__file__).parent / "csrc"
CSRC_INCLUDE = CSRC / "include"
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "2026-11-21"
