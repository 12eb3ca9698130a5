"""The scripts of tools/: their environment, and the files that a failed run leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flashsmith
from support.paths import ROOT

SCRIPTS = [
    "tools/benchmark/ncu_bench.py",
    "tools/benchmark/pt_bench.py",
    "tools/benchmark/run_kernels.py",
    "tools/build/generate_kernel_instantiations.py",
    "tools/build/wheels.py",
    "tools/docs/measured_tables.py",
    "tools/docs/reference.py",
]
BARE = [sys.executable, "-I", "-S"]  # a Python without site-packages: no flashsmith


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns the scripts as in a fresh clone, without .venv."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / "profiles").mkdir()
    return tmp_path


def make_venv(checkout: Path) -> None:
    """Makes a .venv whose Python has flashsmith, which is all that the scripts need of `make
    run`."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    package = Path(flashsmith.__file__).parent.parent
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_find_the_environment_of_make_run(script: str, checkout: Path) -> None:
    make_venv(checkout)
    done = subprocess.run([*BARE, checkout / script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_without_an_environment_say_what_to_do(script: str, checkout: Path) -> None:
    done = subprocess.run([*BARE, checkout / script, "--help"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "error: flashsmith is not installed" in done.stderr
    assert f"`make run` in {checkout.resolve()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_environment_without_flashsmith_is_not_started_again(checkout: Path) -> None:
    """Otherwise a broken .venv would start itself forever."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    python = checkout / ".venv" / "bin" / "python"
    script = checkout / SCRIPTS[0]
    done = subprocess.run([python, "-I", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "flashsmith is not installed" in done.stderr


def autotune(checkout: Path, ncu_bench: str) -> int:
    """Runs benchmark_autotune.sh with a shell text in place of ncu_bench.py, and returns its exit
    status."""
    script = checkout / "tools" / "benchmark" / "ncu_bench.py"
    script.write_text(f"#!/bin/sh\n{ncu_bench}\n")
    command = [checkout / "tools" / "benchmark" / "benchmark_autotune.sh", "1024"]
    return subprocess.run(command, cwd="/", env=os.environ).returncode


def test_a_failed_autotune_benchmark_leaves_the_old_results(checkout: Path) -> None:
    results = checkout / "profiles" / "autotune.csv"
    results.write_text("old\n")
    assert autotune(checkout, "echo half; exit 3") == 3
    assert results.read_text() == "old\n"
    assert list(results.parent.iterdir()) == [results]
    assert autotune(checkout, 'echo "$KERNELS $*"') == 0
    assert results.read_text() == "tune --seq_lens=1024 --d_heads=128 --runs=1 --csv\n"
    assert list(results.parent.iterdir()) == [results]


def test_the_folder_that_the_documented_line_writes_to_is_in_a_clone() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "profiles"], cwd=ROOT, capture_output=True
    )
    if shutil.which("git") is None or b"not a git repository" in listed.stderr:
        pytest.skip("not a git checkout")
    assert listed.returncode == 0
