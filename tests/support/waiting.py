"""Waits for another thread or process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

PATIENCE = 20.0  # seconds


def wait_for(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(PATIENCE * 20)):
        if condition():
            return
        waiting.wait(0.05)
    pytest.fail("it did not come true")
