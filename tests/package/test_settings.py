"""Environment variables are read at the call, typed, and refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flashsmith
from flashsmith import settings


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.KERNELS, "tune", "tune"),
        (settings.CACHE_DIR, "~/kernels", Path.home() / "kernels"),
        (settings.NVCC, "/opt/nvcc", Path("/opt/nvcc")),
        (settings.CXX, "clang++", "clang++"),
        (settings.ARCH, "sm_80, sm_90a", ("sm_80", "sm_90a")),
        (settings.JOBS, " 4 ", 4),
        (settings.BUILD, "OFF", False),
        (settings.BUILD, "1", True),
    ],
)
def test_value_follows_the_environment(
    setting: settings.Setting[object],
    text: str,
    value: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting.get() == value
    monkeypatch.setenv(setting.name, "")
    assert setting.get() is None
    monkeypatch.delenv(setting.name)
    assert setting.get() is None


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (settings.JOBS, "0"),
        (settings.JOBS, "-1"),
        (settings.JOBS, "many"),
        (settings.JOBS, "1.5"),
        (settings.BUILD, "maybe"),
        (settings.ARCH, "sm_80,"),
        (settings.ARCH, "sm90"),
    ],
)
def test_bad_value_names_the_variable_and_what_is_expected(
    setting: settings.Setting[object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.name, text)
    message = f"{setting.name}={text!r} is not valid: expected .*; unset it"
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        setting.get()


def test_every_setting_is_listed_once() -> None:
    declared = [value for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert sorted(s.name for s in declared) == sorted(s.name for s in settings.ALL)


def test_no_other_file_reads_the_environment() -> None:
    package = Path(flashsmith.__file__).parent
    readers = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"os\.environ\.get|os\.environ\[|getenv", path.read_text())
    ]
    assert readers == ["settings.py"]
