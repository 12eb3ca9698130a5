"""Empty tables, and the tuner's lab on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashsmith.configs.registry import FORWARD
from flashsmith.lab.tuning.benches import benches_of
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.runtime import Kernel
from flashsmith.selection.choose import forget_tables
from support.tuning import (
    fake_timer,
)


@pytest.fixture(autouse=True)
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    monkeypatch.delenv("KERNELS", raising=False)
    forget_tables()
    yield tmp_path
    forget_tables()


@pytest.fixture
def emulated_lab(emulated: Callable[..., Kernel]) -> KernelLab:
    """Returns the real lab on the emulator, with a timer that only runs the candidates."""
    return KernelLab(benches_of(FORWARD), "cpu", fake_timer)
