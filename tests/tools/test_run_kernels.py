"""tools/benchmark/run_kernels.py: the kernels it chooses, what it prints, what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashsmith import settings
from flashsmith.cli import run_kernels
from flashsmith.configs import get_kernel_configs
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.commands.compare import chosen_kernels
from flashsmith.runtime import Kernel
from support.paths import ROOT

SCRIPT = ROOT / "tools" / "benchmark" / "run_kernels.py"
CPU_ATTENTION = "torch SDPA on the CPU"
PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
FITTING = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (settings.KERNELS, settings.FA3_LIBRARY, settings.BUILD):
        monkeypatch.delenv(setting.name, raising=False)


def run(
    capsys: pytest.CaptureFixture[str], *args: object, code: int = 0
) -> tuple[list[dict[str, str]], str]:
    """Returns the table as rows, and stderr."""
    assert run_kernels.main([str(arg) for arg in args]) == code
    out, err = capsys.readouterr()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]], err


def chosen(*args: str) -> list[str]:
    parsed = run_kernels._parser().parse_args(run_kernels._one_by_one(args))
    return [instance.name for instance in chosen_kernels(run_kernels._request_of(parsed))]


def test_runs_short_forms_and_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    rows, err = run(
        capsys, 128, 64, "--kernels", PLAIN, FITTING, "--n_runs=2", "--ref", "--device=cpu"
    )
    assert [row["kernel"] for row in rows] == [CPU_ATTENTION, PLAIN, FITTING]
    assert {row["runs"] for row in rows} == {"2"}
    assert {row["result"] for row in rows} == {"ok"}
    for row in rows:
        assert 0 < float(row["error vs FP32"]) < float(row["allowed"])
        assert 0 < float(row["error vs dtype"]) < 0.01
    assert err.startswith("on the emulator (as asked), 2 runs\n")
    assert err.endswith("FP16 d 64 full 1 x 1 x 128\n")


def test_every_run_is_a_launch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    launch = Kernel.__call__

    def counted(kernel: Kernel, *tensors: Any, **options: Any) -> float:
        launched.append(kernel.instance.name)
        return launch(kernel, *tensors, **options)

    monkeypatch.setattr(Kernel, "__call__", counted)
    run(capsys, 64, 64, "--n_runs", 2, "--kernels", PLAIN, FITTING, "--device=cpu")
    run(capsys, 64, 64, "--n_runs", 3, "--kernels", FITTING, "--mask", "causal", "--device=cpu")
    assert launched == [PLAIN] * 2 + [FITTING] * 2 + [f"{FITTING} causal"] * 3


def test_all_is_what_kernels_says(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [str(cfg) for cfg in get_kernel_configs("all")]
    assert chosen("64", "128") == chosen("64", "128", "--kernels=all") == everything
    monkeypatch.setenv("KERNELS", "prog")
    progression = [str(cfg) for cfg in get_kernel_configs("prog")]
    for spelling in ([], ["-kernels=all"], ["--kernels", "all"]):
        assert chosen("64", "128", *spelling) == progression


def test_dtype_is_as_asked_or_as_named() -> None:
    bf16 = PLAIN.replace("FP16", "BF16")
    assert chosen("64", "64", "--kernels", bf16) == [bf16]
    assert all(name.startswith("(BF16, 128,") for name in chosen("64", "128", "--dtype=bf16"))
    assert chosen("64", "64", "--kernels", "(FP16, 64, 64, 4): load_0_0_0_tiles") == [
        "(FP16, 64, 64, 64, 4): load_0_0_0_tiles"  # D_HEAD says what the name does not
    ]


def test_a_wrong_and_a_broken_kernel_are_told_and_the_others_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Kernel.__call__

    def spoilt(kernel: Kernel, q: Any, k: Any, v: Any, o: Any, *rest: Any, **options: Any) -> float:
        if kernel.instance.name == PLAIN:
            raise RuntimeError("launch failed")
        launch(kernel, q, k, v, o, *rest, **options)
        o[0, 7, 0, 3] += 1
        return 0.0

    monkeypatch.setattr(Kernel, "__call__", spoilt)
    rows, _ = run(capsys, 64, 64, "--kernels", PLAIN, FITTING, "--ref", "--device", "cpu", code=1)
    torchs, broken, wrong = rows
    assert torchs["result"] == "ok"
    assert (broken["result"], broken["error vs FP32"]) == ("RuntimeError: launch failed", "-")
    assert "WRONG at (0, 7, 0, 3): got" in wrong["result"]
    assert float(wrong["error vs FP32"]) == pytest.approx(1, abs=0.01)
    assert float(wrong["error vs dtype"]) == pytest.approx(1, abs=0.01)


def test_ref_v3_is_the_one_that_is_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (64, 64, "--kernels", FITTING, "--ref_v3", "--device", "cpu")
    _, err = run(capsys, *args, code=2)
    assert "no fa3 or fa4 here (fa3: " in err
    fa4 = PEERS["fa4"]
    stand_in = replace(fa4, make=PEERS["fa2"].make, why_missing=lambda: "")
    monkeypatch.setitem(PEERS, "fa4", stand_in)
    rows, _ = run(capsys, *args)
    assert [row["kernel"] for row in rows] == ["fa4", FITTING]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("0", "64", "--kernels", PLAIN), "seq_len is 0; expected at least 1"),
        (("64", "80"), "--d-head is 80; supported are 64, 96"),
        (("64", "128", "--kernels", PLAIN), "it says d_head 64, the argument d_head 128"),
        (("64", "64", "--kernels", "(FP16, 64): fast"), "cannot be parsed"),
        (("64", "64", "--kernels", "fastest"), "kernels key 'fastest' is not known"),
        (("64", "64", "--kernels", PLAIN, "--dtype", "bf16"), "is for FP16, not BF16"),
        (("64", "64", "--kernels", PLAIN, "--dtype", "fp8"), "dtype 'fp8' is not known"),
        (("64", "64", "--kernels", f"{PLAIN} causal"), "is causal; add --mask causal"),
        (("64", "64", "--kernels", PLAIN, "--n_runs", "0"), "n_runs is 0"),
        (("64", "64", "--kernels", PLAIN, "--device", "tpu"), "--device is 'tpu'"),
    ],
)
def test_what_cannot_run_is_one_message(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of = run_kernels.main(list(args))
    out, err = capsys.readouterr()
    assert rows_of == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run on")
def test_the_script_without_a_gpu_runs_the_emulator() -> None:
    command = [sys.executable, str(SCRIPT), "64", "64", f"--kernels={PLAIN}", "--n_runs=3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"on the emulator \(.*(no GPU|without CUDA)\), 3 runs", done.stderr)
    assert f"| {PLAIN} " in done.stdout
    done = subprocess.run([*command, "--device=cuda"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--device cpu runs the emulator" in done.stderr


def test_numbers_may_stand_behind_the_kernels() -> None:
    """The numbers may have any order, and any number of kernels may precede them."""
    progression = [str(cfg) for cfg in get_kernel_configs("prog")]
    assert chosen("--kernels", "prog", "256", "128") == progression
    assert chosen(
        "-kernels", "prog", FITTING.replace("64, 64, 64", "128, 64, 64"), "64", "128"
    ) == [
        *progression,
        FITTING.replace("64, 64, 64", "128, 64, 64"),
    ]
    assert chosen("256", "--n_runs", "3", "--kernels", "prog", "--ref", "128") == progression


def test_a_set_of_both_dtypes_runs_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS", "tune")
    assert len(chosen("64", "128")) == 80
    assert len(chosen("64", "128", "--dtype=bf16")) == 40
    bf16 = FITTING.replace("FP16", "BF16")
    rows, _ = run(capsys, 64, 64, "--kernels", PLAIN, bf16, "--ref", "--device", "cpu")
    assert [(row["kernel"], row["dtype"]) for row in rows] == [
        (CPU_ATTENTION, "FP16"), (PLAIN, "FP16"), (CPU_ATTENTION, "BF16"), (bf16, "BF16"),
    ]  # fmt: skip
    assert {row["result"] for row in rows} == {"ok"}
    errors = [float(row["error vs FP32"]) for row in rows]
    assert errors[3] > 4 * errors[1]  # each is measured on tensors of its own dtype


def test_the_script_refuses_a_length_that_is_no_number() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "long", "64"], capture_output=True)
    assert done.returncode == 2
    assert b"invalid int value: 'long'" in done.stderr
    assert b"Traceback" not in done.stderr
