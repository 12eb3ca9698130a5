"""KERNELS and the words of --kernels name one list of sets, which every command knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from flashsmith import settings
from flashsmith.cli import app, run_kernels
from flashsmith.cli.options import KERNEL_SETS
from flashsmith.configs import get_kernel_configs, parse_kernel_name_into_config
from flashsmith.configs import sets as configuration_sets
from flashsmith.lab.commands import tune as lab_tune
from flashsmith.lab.commands.request import ON_A_GPU, Request
from support.paths import ROOT

KERNEL = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_list_of_sets_is_complete_and_read_everywhere() -> None:
    keys = set(settings.KERNEL_SETS)
    assert keys == {*configuration_sets._SETS, "progall", "B_r,B_c"}
    assert settings.KERNELS.kind.split(" | ") == list(settings.KERNEL_SETS)
    assert KERNEL_SETS.split(", ") == list(settings.KERNEL_SETS)
    for key in keys - {"B_r,B_c"}:
        assert get_kernel_configs(key)
    page = (ROOT / "docs" / "config-to-kernel.md").read_text()
    for key in keys:
        assert f"`{key}`" in page


@pytest.mark.parametrize(
    "args",
    [
        ("run", "--device", "cpu"),
        ("run", "--out", "o.safetensors"),
        ("configs",),
        ("build",),
        ("bench",),
        ("tune",),
        ("tune", "--explain"),
        ("tune", "--emulator-counts"),
        ("profile",),
        ("report",),
        ("soak", "--cases", "1", "--device", "cpu"),
    ],
)
def test_every_command_refuses_a_wrong_KERNELS(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS", "fastest")
    message = "environment variable KERNELS='fastest' is not valid: expected one of prog, progall"
    assert message in invoke(*args, code=2).stderr


def test_the_scripts_refuse_a_wrong_KERNELS(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELS", "fastest")
    assert run_kernels.main(["64", "64"]) == 2
    assert "KERNELS='fastest' is not valid" in capsys.readouterr().err
    script = ROOT / "tools" / "build" / "generate_kernel_instantiations.py"
    done = subprocess.run(
        [sys.executable, script, "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "KERNELS='fastest' is not valid" in done.stderr


def test_doctor_checks_KERNELS(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS", "xyz")
    checks = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["environment"]
    (kernels,) = (check for check in checks if check["name"] == "KERNELS")
    assert not kernels["ok"]
    assert "expected one of prog" in kernels["found"]


def test_tune_takes_its_candidates_from_KERNELS(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []

    def keep(request: Request, *_: Any) -> list[Any]:
        seen.append(request)
        return []

    monkeypatch.setattr(lab_tune, "count", keep)
    monkeypatch.setenv("KERNELS", "64,32")
    invoke("tune", "--emulator-counts", "--d-head", 128, "--dtype", "fp16")
    invoke("tune", "--emulator-counts", "-k", KERNEL)
    monkeypatch.delenv("KERNELS")
    invoke("tune", "--emulator-counts")
    assert [request.words for request in seen] == [("64,32",), (KERNEL,), ()]
    configs = lab_tune.named_candidates(seen[0].words, seen[0].workloads(ON_A_GPU))
    assert configs is not None
    assert {(cfg.B_r, cfg.B_c) for cfg in configs} == {(64, 32)}


def test_run_on_a_file_hears_KERNELS_unless_it_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    path, output = tmp_path / "qkv.safetensors", tmp_path / "o.safetensors"
    save_file({name: torch.randn(1, 64, 1, 64).half() for name in "qkv"}, path)
    from flashsmith.lab.commands import run

    chosen: list[list[str]] = []

    def stop(instances: Any, *_: Any) -> None:
        chosen.append([str(each.config) for each in instances])
        raise ValueError("enough")

    monkeypatch.setattr(run, "load_kernels", stop)
    monkeypatch.setenv("KERNELS", "64,32")
    invoke("run", "--input", path, "--device", "cpu", code=2)
    invoke("run", "--input", path, "--device", "cpu", "--out", output, code=2)
    assert {parse_kernel_name_into_config(name).B_c for name in chosen[0]} == {32}
    assert len(chosen[1]) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("tune", "--d-head", "80"), "--d-head is 80"),
        (("tune", "--mask", "sliding"), "variant 'sliding'"),
        (("tune", "-k", "fastest"), "kernels key 'fastest'"),
        (("tune", "--dtype", "fp8"), "dtype 'fp8'"),
        (("bench", "--peers", "nosuch"), "nosuch"),
        (("bench", "-k", "fastest"), "kernels key 'fastest'"),
        (("profile", "--peers", "nosuch"), "nosuch"),
        (("profile", "-k", "fastest"), "kernels key 'fastest'"),
    ],
)
def test_words_are_checked_before_the_gpu_is_asked_for(
    args: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_gpu(*_: object) -> None:
        pytest.fail("a GPU was asked for")

    for module in ("bench", "tune", "profile"):
        monkeypatch.setattr(f"flashsmith.lab.commands.{module}.choose_device", no_gpu)
    monkeypatch.setattr("flashsmith.lab.bench.ncu.find_ncu", lambda: Path("ncu"))
    monkeypatch.delenv("KERNELS", raising=False)
    assert message in invoke(*args, code=2).stderr


def test_debug_may_stand_behind_the_command() -> None:
    for args in (("--debug", "configs", "nothing"), ("configs", "nothing", "--debug")):
        result = CliRunner().invoke(app, list(args))
        assert isinstance(result.exception, ValueError)


def test_help_texts_are_wrapped_once() -> None:
    """Only the terminal wraps, so that it gets each paragraph of a docstring as one line."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) >= 9
    for name, command in commands.items():
        for paragraph in command.help.split("\n\n"):
            assert "\n" not in paragraph, name
    assert commands["tune"].help.count("\n\n") == 3
