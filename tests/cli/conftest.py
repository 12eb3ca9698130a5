"""Fixtures: a cache of kernels, and a file of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file

from flashsmith import settings
from support.cli import (
    make_inputs,
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Uses the session's kernel cache, if it has one, and clears all other settings."""
    with pytest.MonkeyPatch.context() as patch:
        for setting in settings.ALL:
            if setting not in (settings.CACHE_DIR, settings.JOBS):
                patch.delenv(setting.name, raising=False)
        if settings.CACHE_DIR.get() is None:
            patch.setenv(settings.CACHE_DIR.name, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def qkv(tmp_path: Path) -> Path:
    path = tmp_path / "qkv.safetensors"
    save_file(make_inputs(), path)
    return path
