"""The kernels that `make test` builds before its tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from flashsmith.configs import parse_kernel_name_into_instance, require_buildable
from support.paths import DATA, ROOT
from support.scripts import load_script

NAMES = (DATA / "emulated_kernels.txt").read_text().splitlines()


@pytest.fixture
def tool() -> ModuleType:
    return load_script("tools/build/emulated_kernels.py")


def test_each_is_a_kernel_that_can_be_built() -> None:
    """If one is not, take its line out and run `python tools/build/emulated_kernels.py`."""
    assert len(NAMES) == len({*NAMES}) > 100
    for name in NAMES:
        instance = parse_kernel_name_into_instance(name)
        require_buildable(instance.config)
        assert instance.name == name and not instance.variant.score


def test_make_test_builds_them_first() -> None:
    assert "--build-first" in (ROOT / "Makefile").read_text()


def test_the_list_has_all_emulated_kernels_of_the_cache(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def module(name: str, kind: str = "emulator") -> SimpleNamespace:
        return SimpleNamespace(target=SimpleNamespace(kind=kind), name=name)

    first, second, listed, for_gpus = NAMES[:4]
    plain = parse_kernel_name_into_instance(first)
    scored = replace(plain, variant=replace(plain.variant, score=7))
    modules = [*map(module, (first, second, second, scored.name)), module(for_gpus, kind="cuda")]
    monkeypatch.setattr(tool, "list_modules", lambda: modules)
    monkeypatch.setattr(tool, "LIST", tmp_path / "names.txt")
    (tmp_path / "names.txt").write_text(f"{listed}\n")
    assert tool.main() == 0
    lines = (tmp_path / "names.txt").read_text().splitlines()
    assert lines == sorted([first, second, listed])
