"""The entry point by which vLLM finds the backend, with vLLM and with a stand-in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flashsmith.integrations.vllm import BACKEND, register

ROOT = Path(__file__).parents[2]
REGISTRY = "vllm.v1.attention.backends.registry"
LAYOUT = "vllm.v1.kv_cache_layout"  # newer than other shapes of caches

# A process in which vLLM loads its plug-ins runs this.
LOADS = f"""
import sys
from vllm.plugins import load_general_plugins
before = set(sys.modules)
load_general_plugins()
loaded = {{name for name in set(sys.modules) - before if name.startswith("flashsmith.")}}
assert loaded <= {{"flashsmith.version", "flashsmith.integrations", "flashsmith.integrations.vllm"}}
from {REGISTRY} import AttentionBackendEnum
print(AttentionBackendEnum.CUSTOM.get_path(), AttentionBackendEnum.CUSTOM.get_class().get_name())
"""


def entry_points() -> dict[str, dict[str, str]]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    found: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())[
        "project"
    ]["entry-points"]
    return found


def test_vllms_loader_finds_it(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM, if only its Python part")
    info = tmp_path / "plugged-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in entry_points().items()
    )
    (info / "entry_points.txt").write_text(text)
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", LOADS], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [BACKEND, "CUSTOM"]


def test_the_entry_point_is_register() -> None:
    (value,) = entry_points()["vllm.general_plugins"].values()
    assert value == f"{register.__module__}:{register.__name__}"


def test_registering_loads_no_torch() -> None:
    code = (
        "import sys, flashsmith.integrations.vllm as plugin\n"
        "assert not {'torch', 'tvm_ffi', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- a stand-in for vLLM's registry ----


class Custom:
    def __init__(self, path: str | None) -> None:
        self.path = path

    def is_overridden(self) -> bool:
        return self.path is not None

    def get_path(self) -> str:
        assert self.path is not None
        return self.path


def stand_in(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    names = REGISTRY.split(".")
    for n in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:n]), ModuleType("package"))
    registry = ModuleType(REGISTRY)
    vars(registry).update(contents)
    monkeypatch.setitem(sys.modules, REGISTRY, registry)
    monkeypatch.setitem(sys.modules, LAYOUT, ModuleType(LAYOUT))


@pytest.mark.parametrize("known", [None, BACKEND])
def test_it_may_be_registered_again_and_again(
    known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: dict[Any, str] = {}
    enumeration = ModuleType("AttentionBackendEnum")
    enumeration.CUSTOM = custom = Custom(known)  # type: ignore[attr-defined]
    stand_in(monkeypatch, AttentionBackendEnum=enumeration, register_backend=registered.__setitem__)
    register()
    assert registered == {custom: BACKEND}


def test_a_backend_of_another_plug_in_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enumeration = ModuleType("AttentionBackendEnum")
    enumeration.CUSTOM = Custom("other.Backend")  # type: ignore[attr-defined]
    stand_in(monkeypatch, AttentionBackendEnum=enumeration, register_backend=None)
    with caplog.at_level(logging.WARNING, "flashsmith"):
        register()
    assert "CUSTOM is other.Backend already" in caplog.text


@pytest.mark.parametrize("contents", [{}, {"AttentionBackendEnum": 0, "register_backend": 0}])
def test_a_vllm_without_such_backends_starts(
    contents: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in(monkeypatch, **contents)
    with caplog.at_level(logging.WARNING, "flashsmith"):
        register()
    assert "this vLLM does not take flashsmith as a backend" in caplog.text


ODD = [RuntimeError("CUDA is not there"), KeyError("CUSTOM"), TypeError(), SyntaxError("odd")]


def refuse_with(error: Exception) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


@pytest.mark.parametrize("error", ODD, ids=repr)
@pytest.mark.parametrize("step", ["is_overridden", "get_path", "register_backend", "import"])
def test_an_odd_vllm_starts_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    step: str,
) -> None:
    enumeration, custom = ModuleType("AttentionBackendEnum"), Custom(BACKEND)
    enumeration.CUSTOM = custom  # type: ignore[attr-defined]
    register_backend = refuse_with(error) if step == "register_backend" else None
    if hasattr(custom, step):
        monkeypatch.setattr(custom, step, refuse_with(error))
    stand_in(monkeypatch, AttentionBackendEnum=enumeration, register_backend=register_backend)
    if step == "import":
        monkeypatch.delitem(sys.modules, REGISTRY)
        monkeypatch.setattr("builtins.__import__", refuse_with(error))
    with caplog.at_level(logging.WARNING, "flashsmith"):
        register()
    monkeypatch.undo()
    assert f"does not take flashsmith as a backend: {type(error).__name__}" in caplog.text


def test_a_vllm_with_other_caches_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enumeration = ModuleType("AttentionBackendEnum")
    enumeration.CUSTOM = Custom(None)  # type: ignore[attr-defined]
    stand_in(monkeypatch, AttentionBackendEnum=enumeration, register_backend=None)
    monkeypatch.setitem(sys.modules, LAYOUT, None)  # this vLLM has none
    with caplog.at_level(logging.WARNING, "flashsmith"):
        register()
    assert "this vLLM does not take flashsmith as a backend" in caplog.text
