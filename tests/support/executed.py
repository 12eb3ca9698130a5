"""Counts what Python executes in a call. Unlike a time, that is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Executed(NamedTuple):
    """The bytecode instructions of Python functions, and the calls of C functions."""

    instructions: int
    c_calls: int


def executed(call: Callable[[], object]) -> Executed:
    """Returns what the second run of a call executes; the first one fills caches."""
    call()
    instructions = c_calls = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        instructions += event == "opcode"
        return trace

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal c_calls
        c_calls += event == "c_call"

    traced, profiled = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(profiled)
        sys.settrace(traced)
    return Executed(instructions, c_calls - 1)  # the last one is setprofile
