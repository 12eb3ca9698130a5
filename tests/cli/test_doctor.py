"""`flashsmith doctor`: what it finds, what it misses, and what it concludes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flashsmith import settings
from flashsmith.cli import app
from flashsmith.jit import build_host

CACHE = os.environ["FLASHSMITH_CACHE_DIR"]  # of the session


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a fake nvidia-smi, first on PATH; each test writes the script."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tools / "nvidia-smi"


def answer(tool: Path, *lines: str, code: int = 0) -> None:
    echoes = "".join(f"echo '{line}'\n" for line in lines)
    tool.write_text(f"#!/bin/sh\n{echoes}exit {code}\n")
    tool.chmod(0o755)


def diagnose(code: int = 0) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Returns the first check of each name, and the whole document."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, (result.output, result.exception)
    document = json.loads(result.stdout)
    return {check["name"]: check for check in reversed(document["checks"])}, document


def test_this_machine_is_enough_for_the_tests(tmp_path: Path) -> None:
    checks, document = diagnose()
    assert document["runs_on_emulator"]
    assert checks["torch"]["found"] == torch.__version__
    assert "takes C++20" in checks["C++ compiler"]["found"]
    assert checks["cache"]["found"] == f"{tmp_path / 'cache'}, which the first build makes"
    assert not (tmp_path / "cache").exists()
    assert [check["name"] for check in document["environment"]] == [s.name for s in settings.ALL]


def test_the_text_has_every_check_and_ends_with_the_verdict() -> None:
    _, document = diagnose()
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert lines[-1] == document["verdict"]
    for check in [*document["checks"], *document["environment"]]:
        assert any(check["name"] in line for line in lines)


def test_gpus_are_listed_and_old_ones_named(nvidia_smi: Path) -> None:
    answer(nvidia_smi, "Tesla T4, 7.5, 15360 MiB, 580.1", "NVIDIA H200, 9.0, 143771 MiB, 580.1")
    checks, document = diagnose()
    found = [check for check in document["checks"] if check["name"] == "GPU"]
    assert checks["driver"]["found"] == "580.1"
    assert found[0]["found"] == "NVIDIA H200, compute capability 9.0 (sm_90a), 143771 MiB"
    assert [check["ok"] for check in found] == [True, False]
    assert "8.0 (Ampere) or newer" in found[1]["advice"]


def test_the_verdict_names_what_the_gpu_lacks(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(nvidia_smi, "NVIDIA H200, 9.0, 143771 MiB, 580.1")
    monkeypatch.setenv("FLASHSMITH_NVCC", "/nowhere/nvcc")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    checks, document = diagnose()
    assert "/nowhere/nvcc does not exist" in checks["CUDA compiler"]["found"]
    assert "torch finds no GPU" in checks["torch's CUDA"]["found"]
    assert document["verdict"].endswith("to run on a GPU it lacks: CUDA compiler, torch's CUDA.")


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [(("No devices were found",), 6, "No devices were found"), ((), 0, "lists no GPU")],
)
def test_a_driver_without_a_gpu(
    nvidia_smi: Path, lines: tuple[str, ...], code: int, message: str
) -> None:
    answer(nvidia_smi, *lines, code=code)
    checks, document = diagnose()
    assert message in checks["driver"]["found"]
    assert not checks["GPU"]["ok"]
    assert not document["runs_on_gpu"]


@pytest.mark.parametrize("name", ["torch", "C++ compiler"])
def test_what_the_emulator_needs_fails_the_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "torch":
        monkeypatch.setitem(sys.modules, "torch", None)
    else:
        monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    checks, document = diagnose(code=1)
    assert not checks[name]["ok"]
    assert "install" in checks[name]["found"] + checks[name]["advice"]
    assert document["verdict"] == f"This machine cannot run kernels yet; it lacks: {name}."


@pytest.mark.parametrize("chosen", ["nvcc", "nvrtc"])
def test_the_compiler_that_builds_for_gpus_is_named(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen == "nvcc" and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc on PATH")
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", chosen)
    checks, document = diagnose()
    name = {"nvcc": "nvcc 1", "nvrtc": "NVRTC 1"}[chosen]
    assert checks["CUDA compiler"]["found"].startswith(name)
    assert "CUDA compiler" not in document["verdict"], "it lacks none"


def test_a_host_library_stands_in_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has the host library and the usual kernels."""
    assert diagnose()[0]["host library"]["found"] == "not built"
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", CACHE)
    path = build_host().path
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    checks, document = diagnose()
    assert not checks["C++ compiler"]["ok"]
    assert checks["host library"]["found"] == f"{path}; calls need no C++ compiler"
    assert document["runs_on_emulator"]
    words = (
        "This machine runs kernels on the emulator and compiles them for GPUs; to build more for "
    )
    assert document["verdict"].startswith(f"{words}the emulator it lacks: C++ compiler; to run on ")


def test_a_cache_that_others_can_write_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    checks, _ = diagnose(code=1)
    assert f"chmod 700 {folder}" in checks["cache"]["found"]
    folder.chmod(0o700)
    assert "0 kernels, 0.0 MB" in diagnose()[0]["cache"]["found"]


def test_a_wrong_setting_is_shown_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_JOBS", "many")
    monkeypatch.setenv("KERNELS", "tune")
    environment = {check["name"]: check for check in diagnose()[1]["environment"]}
    assert not environment["FLASHSMITH_JOBS"]["ok"]
    assert "whole number" in environment["FLASHSMITH_JOBS"]["found"]
    assert environment["KERNELS"]["found"] == "tune"
