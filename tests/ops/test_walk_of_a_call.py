"""A first call of `attention` passes through few functions, so that a reader can follow it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import flashsmith

PACKAGE = str(Path(flashsmith.__file__).parent)
MAX_FUNCTIONS, MAX_FILES = 40, 12


def holds(value: Any, t: torch.Tensor) -> bool:
    """Returns whether a local variable is the tensor, or a container that has it."""
    if isinstance(value, dict):
        value = [*value.values()]
    return value is t or (isinstance(value, tuple | list) and any(each is t for each in value))


def test_q_stays_in_few_functions_and_files() -> None:
    arguments = {"causal": True, "window_size": (9, 0)}
    small, q = (torch.randn(1, rows, heads, 64).half() for rows, heads in ((70, 2), (700, 3)))
    flashsmith.attention(small, small, small, **arguments)  # builds the kernel
    visited: set[tuple[str, str]] = set()

    def visit(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_own = event == "call" and code.co_filename.startswith(PACKAGE)
        if is_own and any(holds(value, q) for value in frame.f_locals.values()):
            visited.add((code.co_filename, code.co_name))

    sys.setprofile(visit)
    try:
        flashsmith.attention(q, q, q, **arguments)  # other sizes: nothing is remembered
    finally:
        sys.setprofile(None)
    assert 10 < len(visited) <= MAX_FUNCTIONS, sorted(visited)
    assert len({file for file, _ in visited}) <= MAX_FILES
