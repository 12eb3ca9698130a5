"""The command line as a whole, and `flashsmith configs`: what it prints and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flashsmith
from flashsmith import settings
from flashsmith.cli import app
from flashsmith.configs import DType, get_kernel_configs, parse_kernel_name_into_config
from flashsmith.lab.commands import run as lab_run
from support.cli import (
    PLAIN,
    invoke,
    invoke_json,
    refused,
)
from support.problems import heed_interrupts
from support.tiny_build import make_compiler

# ---- the command as a whole ----


def test_version_and_help_name_every_command() -> None:
    assert invoke("--version").stdout == f"flashsmith {flashsmith.__version__}\n"
    text = invoke("--help").stdout
    assert all(name in text for name in ("configs", "build", "run", "doctor", "cache"))


def test_module_runs_the_command() -> None:
    command = [sys.executable, "-m", "flashsmith", "configs", "prog", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["configs"]) == 7


def test_torch_is_loaded_only_where_it_is_needed() -> None:
    script = (
        "import sys\n"
        "from flashsmith.cli import app\n"
        "for args in (['--help'], ['configs', 'prog'], ['configs', '--built'],\n"
        "             ['tune', '--explain', '--gpu', 'NVIDIA H200', '--seq-len', '4096'],\n"
        f"             ['build', '--target', 'emulator', '-k', {PLAIN!r}]):\n"
        "    app(args, standalone_mode=False)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def without_torch(*args: str) -> str:
    """Returns what a command prints where torch is not installed."""
    code = "import sys; sys.modules['torch'] = None\nfrom flashsmith.cli import main; main()"
    environment = os.environ | {settings.BUILD.name: "off"}
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_is_explained_without_torch() -> None:
    every_shape = json.loads(without_torch("tune", "--explain", "--gpu", "NVIDIA H200", "--json"))
    assert len(every_shape) > 100
    assert {each["source"] for each in every_shape} >= {"shipped table"}


def test_a_report_without_torch_names_what_it_lacks() -> None:
    document = json.loads(without_torch("report", PLAIN, "--json"))
    advice = "torch is not installed; `pip install 'flashsmith[torch]'`"
    assert document["missing"]["emulator counts"] == advice
    assert document["groups"]


@pytest.mark.parametrize(
    "args", [("nothing",), ("configs", "--nothing"), ("build", "--jobs", "0"), ("build", "-k")]
)
def test_wrong_usage_is_one_message(args: tuple[str, ...]) -> None:
    assert "--help" in refused(*args)


def test_debug_shows_where_an_error_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["--debug", "configs", "nothing"])
    assert isinstance(result.exception, ValueError)
    monkeypatch.setenv(settings.DEBUG.name, "1")
    result = CliRunner().invoke(app, ["configs", "nothing"])
    assert isinstance(result.exception, ValueError)
    monkeypatch.setenv(settings.DEBUG.name, "perhaps")
    assert settings.DEBUG.name in refused("configs")


def test_an_unforeseen_error_is_named_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(lab_run, "choose_device", fail)
    assert "RuntimeError: out of memory (--debug" in refused("run", code=1)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(words: str, place: int) -> list[str]:
        environment = {
            "_FLASHSMITH_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(place),
        }
        done = subprocess.run(
            [sys.executable, "-c", "from flashsmith.cli import main; main()"],
            env=os.environ | environment, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.split()

    assert completed("flashsmith ru", 1) == ["run"]
    assert completed("flashsmith run --ma", 2) == ["--mask"]


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_a_missing_package_is_named_with_what_installs_it(package: str, qkv: Path) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"sys.argv[1:] = ['run', '--input', {str(qkv)!r}]\n"
        "from flashsmith.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    message = f"error: {package} is not installed; `pip install 'flashsmith[torch]'`\n"
    assert done.stderr == message


def test_interrupting_a_build_ends_it_with_130(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = make_compiler(tmp_path / "cxx", log, before="sleep 60")
    environment = {"FLASHSMITH_CACHE_DIR": str(tmp_path / "cache"), "FLASHSMITH_CXX": str(compiler)}
    command = [sys.executable, "-m", "flashsmith", "build", "--target", "emulator", "-k", PLAIN]
    with subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as process:
        deadline = time.monotonic() + 20
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_a_closed_pipe_is_no_error() -> None:
    command = f"'{sys.executable}' -m flashsmith configs progall --all-blocks | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("| config")
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


# ---- configs ----


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ((), 85),
        (("prog",), 7),
        (("progall",), 56),
        (("tune", "64,32"), 80),
        (("64,32", "128,32"), 32),
        (("tune", "--dtype", "BF16"), 40),
        (("tune", "--d-head", "64"), 80),
        (("prog", "--dtype", "15", "--d-head", "64"), 7),
        ((PLAIN, PLAIN), 1),
        (("prog", "--all-blocks", "--legal"), 56),
        (("prog", "--all-blocks", "--illegal"), 28),
        (("prog", "--illegal"), 0),
        (("prog", "--illegal", "--gpu", "sm_75"), 7),
        (("sm90-prog", "--legal"), 8),
        (("sm90-prog", "--dtype", "fp16", "--legal"), 8),
        (("sm90-prog", "--illegal", "--gpu", "sm_80"), 8),
        (("prog", "sm90-prog", "--legal"), 15),
    ],
)
def test_configs_lists_and_narrows_sets(args: tuple[str, ...], count: int) -> None:
    found = invoke_json("configs", *args)["configs"]
    assert len({entry["name"] for entry in found}) == len(found) == count
    for entry in found:
        config = parse_kernel_name_into_config(entry["name"])
        assert (entry["dtype"], entry["B_c"]) == (str(config.dtype), config.B_c)
        assert entry["legal"] == (entry["problems"] == [])
        if "--dtype" in args:
            asked = args[args.index("--dtype") + 1]
            assert entry["dtype"] == str(DType.from_string(asked))
        if "--d-head" in args:
            assert entry["d_head"] == 64


def test_configs_default_follows_KERNELS(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS", "prog")
    assert len(invoke_json("configs")["configs"]) == 7


def test_configs_into_a_pipe_are_whole_markdown_rows() -> None:
    lines = invoke("configs", "prog").stdout.splitlines()
    assert [parse_kernel_name_into_config(line) for line in lines[2:]] == get_kernel_configs("prog")
    too_old = invoke("configs", "prog", "--gpu", "sm_75").stdout
    assert too_old.count("sm_75 has compute capability 7.5; 8.0 or newer is needed.") == 7


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing",), "kernels key 'nothing' is not known; valid are prog"),
        (("(FP16, 128, 64, 64, 4): async+fast",), "'fast' is unknown"),
        (("(FP16, 128, 64, 64, 4)",), "cannot be parsed: it contains no configuration"),
        (("(FP16, 64, 64, 4): async+load_0_0_0_tiles",), "pass d_head"),
        ((PLAIN, "--d-head", "128"), "says d_head 64, the argument d_head 128"),
        ((PLAIN, "--dtype", "bf16"), "is for FP16, not BF16"),
        (("--dtype", "fp8"), "dtype 'fp8' is not known; supported: fp16, bf16"),
        (("--d-head", "80"), "--d-head is 80; supported are 64, 96, 128, 192, 256"),
        (("sm90-prog", "--all-blocks"), "--all-blocks is for the sm80 family"),
        (("--gpu", "sm_999"), "gpu 'sm_999' is not known"),
        (("--built", "--legal"), "leave out --legal"),
    ],
)
def test_configs_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("configs", *args)
