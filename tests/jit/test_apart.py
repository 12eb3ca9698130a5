"""Kernels that are built in another process."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from flashsmith.configs import KernelId
from flashsmith.errors import BuildError
from flashsmith.jit import Target, apart, build_apart, find_module
from support.caches import kernel_free_cache
from support.sm80_kernels import BASE

EMULATOR = Target.emulator()
INSTANCE = KernelId(BASE)


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Collection[KernelId], Target, int]]:
    """Returns the list of builds that this process is asked for; it builds nothing."""
    calls: list[tuple[Collection[KernelId], Target, int]] = []
    monkeypatch.setattr(
        apart, "build_kernels", lambda which, target, *, jobs: calls.append((which, target, jobs))
    )
    return calls


def test_another_process_builds_into_the_same_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_here: list[object]
) -> None:
    cache = kernel_free_cache(tmp_path / "cache")
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(cache.root))
    build_apart(INSTANCE, EMULATOR)
    assert find_module(INSTANCE, EMULATOR) is not None
    assert built_here == []


@pytest.mark.usefixtures("built_here")
def test_why_it_failed_is_said_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    with pytest.raises(BuildError, match=r"^ToolchainError: .*/nowhere/c\+\+") as caught:
        build_apart(INSTANCE, EMULATOR)
    assert "Traceback" not in str(caught.value)


def test_a_program_that_is_no_python_builds_itself(
    monkeypatch: pytest.MonkeyPatch, built_here: list[object]
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/editor/editor")
    build_apart(INSTANCE, EMULATOR)
    assert built_here == [([INSTANCE], EMULATOR, 1)]
