"""`flashsmith run`: its main job on the emulator, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import flashsmith
from flashsmith.configs import KernelId, Workload, parse_kernel_name_into_config
from flashsmith.errors import EmulatorFault
from flashsmith.lab.bench.operations.forward_kernels import Checker
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.commands import run as lab_run
from flashsmith.lab.commands.inputs import Inputs
from flashsmith.lab.commands.run_result import Result
from flashsmith.reference import compare, reference_attention
from flashsmith.runtime import Kernel
from flashsmith.selection.select import select_config
from support.cli import (
    FITTING,
    PLAIN,
    RANDOM_INPUT,
    SHAPE,
    invoke,
    invoke_json,
    make_inputs,
    refused,
)


def test_run_on_a_file_writes_what_the_reference_says(qkv: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.safetensors"
    report = invoke_json(
        "run", "--input", qkv, "--out", output, "--mask", "causal", "--device", "cpu"
    )
    (kernel,) = report["kernels"]
    assert kernel["kernel"] == f"{FITTING} causal"
    assert (report["ok"], report["device"], report["output"]) == (True, "cpu", str(output))
    inputs = make_inputs()
    q, k, v = inputs.values()
    assert str(select_config(q)) == FITTING
    written = load_file(output)
    assert list(written) == ["o"]
    exact = reference_attention(q, k, v, causal=True)
    low_precision = reference_attention(q, k, v, causal=True, compute=torch.float16)
    comparison = compare(written["o"], exact, low_precision)
    assert comparison.ok
    assert kernel["error"] == comparison.error
    # With one head at a time, torch may sum a half-precision product in another order.
    assert kernel["tolerance"] == pytest.approx(comparison.tolerance, rel=0.5)


def test_run_takes_shared_heads_and_other_lengths(tmp_path: Path) -> None:
    path, output = tmp_path / "qkv.safetensors", tmp_path / "o.safetensors"
    q = make_inputs(shape=(1, 50, 2, 64))["q"]
    k, v = list(make_inputs(shape=(1, 70, 1, 64)).values())[1:]
    save_file({"q": q, "k": k, "v": v}, path)
    report = invoke_json(
        "run", "--input", path, "--out", output, "--mask", "causal", "--device", "cpu"
    )
    assert (report["problem"]["seq_len_k"], report["problem"]["n_heads_kv"]) == (70, 1)
    assert report["kernels"][0]["kernel"] == f"{select_config(q, True, k=k)} causal"
    exact = reference_attention(q, k, v, causal=True)
    low_precision = reference_attention(q, k, v, causal=True, compute=torch.float16)
    assert compare(load_file(output)["o"], exact, low_precision).ok
    both = invoke_json("run", "--input", path, "--mask", "causal", "--device", "cpu",
                       "-k", PLAIN, "-k", FITTING)  # fmt: skip
    assert both["ok"] and len(both["kernels"]) == 2


def test_run_counts_what_each_kernel_did() -> None:
    report = invoke_json("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING)
    problem = report["problem"]
    assert (problem["batch"], problem["seq_len"], problem["n_heads"], problem["d_head"]) == SHAPE
    plain, fitting = report["kernels"]
    assert (plain["kernel"], fitting["kernel"]) == (PLAIN, FITTING)
    assert plain["error"] <= plain["tolerance"] < 0.01
    # Each of 2 heads has 2 products of 64 x 64 x 64, in mma of 16 x 8 x 16.
    assert plain["counts"]["mma"] == 2 * 2 * 64**3 // (16 * 8 * 16)
    conflicts = [
        kernel["counts"]["shared_wavefronts"] - kernel["counts"]["shared_wavefronts_ideal"]
        for kernel in report["kernels"]
    ]
    assert conflicts[0] > 0
    assert conflicts[1] == 0
    table = invoke("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING).stdout.splitlines()
    assert f" {conflicts[0]} |" in table[2]
    assert [parse_kernel_name_into_config(row).short_form() for row in table[2:]] == [
        PLAIN,
        FITTING,
    ]


def test_run_is_the_same_for_a_seed_and_another_for_another(tmp_path: Path) -> None:
    def output(seed: int) -> torch.Tensor:
        path = tmp_path / "o.safetensors"
        invoke("run", *RANDOM_INPUT, "--d-head", 64, "--seed", seed, "--out", path)
        o = load_file(path)["o"]
        path.unlink()
        return o

    assert torch.equal(output(0), output(0))
    assert not torch.equal(output(0), output(1))


def test_a_wrong_kernel_fails_the_run_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(_: Kernel, q: Any, k: Any, v: Any, o: torch.Tensor, *__: Any, **___: Any) -> float:
        o.copy_(reference_attention(q, k, v))
        o[0, 3, 1, 7] += 1
        return 0.0

    monkeypatch.setattr(Kernel, "__call__", spoiled)
    output = tmp_path / "o.safetensors"
    args = ("run", *RANDOM_INPUT, "-k", FITTING, "--out", output)
    report = invoke_json(*args, code=1)
    assert (report["ok"], report["output"]) == (False, None)
    assert report["kernels"][0]["error"] == pytest.approx(1, abs=0.01)
    assert "(0, 3, 1, 7)" in report["kernels"][0]["worst"]
    assert not output.exists()
    assert "WRONG" in invoke(*args, code=1).stdout


def test_a_fault_is_a_wrong_kernel_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = Kernel.__call__

    def faulty(kernel: Kernel, *tensors: Any, **options: Any) -> float:
        if kernel.instance.name == PLAIN:
            raise EmulatorFault("a race at shared address 16")
        return launch(kernel, *tensors, **options)

    monkeypatch.setattr(Kernel, "__call__", faulty)
    report = invoke_json("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING, code=1)
    plain, fitting = report["kernels"]
    assert (plain["ok"], plain["error"], plain["worst"]) == (
        False,
        None,
        "a race at shared address 16",
    )
    assert fitting["ok"]


def test_times_become_rates_and_a_share_of_fa2(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake clock on the CPU, the timed candidates run and the arithmetic is right."""

    def fixed_times(candidates: dict[str, Callable[[], object]]) -> dict[str, Timing]:
        for candidate in candidates.values():
            candidate()
        return {name: Timing(2.0 if name == "fa2" else 4.0, 1, 9) for name in candidates}

    monkeypatch.setattr(lab_run, "time_interleaved", fixed_times)
    inputs = Inputs(*make_inputs().values())
    config = parse_kernel_name_into_config(FITTING)
    for causal, flop in ((False, 4 * 2 * 64 * 64 * 64), (True, 2 * 2 * 64 * 64 * 64)):
        workload = Workload(inputs.problem, flashsmith.Variant(causal))
        checker = Checker(workload, "cpu", inputs)
        results, runs = lab_run.check_kernels([KernelId(config, workload.variant)], checker)
        assert lab_run.time_kernels(runs, results, checker) == 2
        assert results[0].ms == 4
        assert results[0].tflops == pytest.approx(flop / 4e-3 / 1e12)
        assert results[0].fa2_percent == 50


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(
        kernel: Kernel, q: Any, k: Any, v: Any, o: torch.Tensor, *_: Any, **__: Any
    ) -> float:
        o.copy_(reference_attention(q, k, v))
        o[0, 3, 1, 7] += 0 if kernel.instance.name == FITTING else 1
        return 0.0

    monkeypatch.setattr(Kernel, "__call__", spoiled)
    inputs = Inputs(*make_inputs().values())
    kernels = [KernelId(parse_kernel_name_into_config(name)) for name in (PLAIN, FITTING)]
    checker = Checker(Workload(inputs.problem), "cpu", inputs)
    results, runs = lab_run.check_kernels(kernels, checker)
    assert [result.ok for result in results] == [False, True]
    assert list(runs) == [FITTING]


@pytest.mark.parametrize(
    ("seq_len_k", "causal", "scores"),
    [(80, False, 64 * 80), (80, True, 64 * 64 / 2 + 16 * 64), (48, True, 48 * 48 / 2)],
)
def test_rates_of_other_lengths_count_what_is_seen(
    seq_len_k: int, causal: bool, scores: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        lab_run, "time_interleaved", lambda runs: dict.fromkeys(runs, Timing(4.0, 1, 9))
    )
    q, (k, v) = torch.zeros(SHAPE).half(), torch.zeros(2, 1, seq_len_k, 1, 64).half()
    inputs = Inputs(q, k, v)
    checker = Checker(Workload(inputs.problem, flashsmith.Variant(causal)), "cpu", inputs)
    result = Result("one", ok=True)
    assert lab_run.time_kernels({"one": lambda: q}, [result], checker) is None  # without FA2
    assert result.tflops == pytest.approx(4 * 2 * scores * 64 / 4e-3 / 1e12)
    assert result.fa2_percent is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-k", PLAIN, "--dtype", "bf16"), "is for FP16, not BF16"),
        (("-k", "tune"), "choose by --dtype"),
        (("-k", f"{PLAIN} causal"), "is causal; add --mask causal"),
        (("-k", "prog", "--out", "o.safetensors"), "takes the result of one kernel, and 7"),
        (("--out", "/nowhere/o.safetensors"), "--out /nowhere/o.safetensors cannot be"),
        (("--out", "/"), "--out / is not a file"),
        (("--input", "/nowhere/qkv"), "--input /nowhere/qkv: there is no such file"),
        (("--device", "tpu"), "--device is 'tpu'"),
        (
            ("--mask", "window"),
            "--mask is 'window'; `run` takes full and causal, and --window LEFT",
        ),
        (("--mask", "causal+alibi"), "--mask is 'causal+alibi'; `run` takes full and causal"),
        (("--window", "9"), "--window is '9'; expected two whole numbers, LEFT,RIGHT"),
        (("--window", "9,x"), "--window is '9,x'; expected two whole numbers"),
        (("--window", "-2,0"), "window_size is (-2, 0); expected at least 0"),
        (("--softcap", "-1"), "softcap is -1.0; expected 0"),
        (("--scale", "0"), "softmax_scale is 0.0; expected a number"),
        (("--dropout", "1"), "dropout_p is 1.0; expected a number from 0 to below 1"),
        (("--batch", "0"), "--batch"),
        (("--seed", "1" + 23 * "0"), "--seed"),
        (("--seed", "-1" + 23 * "0"), "--seed"),
        (("--seq-len", "99999999999"), "--seq-len is 99999999999; kernels take sequences up to"),
        (
            ("--seq-len", f"{1 << 30}", "--batch", "9999"),
            "GB, for which there is no memory; choose",
        ),
        (("--batch", "9" * 18), "GB, for which there is no memory; choose"),
    ],
)
def test_run_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("run", *args)


def test_run_refuses_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu runs the emulator" in refused("run", "--device", "cuda", code=1)


def test_run_refuses_an_option_that_the_file_settles(qkv: Path) -> None:
    message = refused("run", "--input", qkv, "--seq-len", 64, "--dtype", "fp16")
    assert "leave out --dtype, --seq-len" in message


def test_run_refuses_a_kernel_that_does_not_fit_the_file(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    save_file(make_inputs(torch.bfloat16), path)
    assert "is for FP16, not BF16" in refused("run", "--input", path, "-k", PLAIN)
    save_file(make_inputs(shape=(1, 64, 2, 128)), path)
    assert "says d_head 64" in refused("run", "--input", path, "-k", PLAIN)


def test_run_refuses_to_build_when_building_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLASHSMITH_BUILD", "off")
    unbuilt = PLAIN.replace("async+", "")
    assert "forbids to build" in refused("run", *RANDOM_INPUT, "-k", unbuilt, code=1)


def _without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (_without(make_inputs(), "k"), "has no tensor k; it has q, v"),
        (make_inputs(torch.float32), "q has dtype torch.float32; supported are float16, bfloat16"),
        (make_inputs() | {"v": make_inputs(torch.bfloat16)["v"]}, "v is torch.bfloat16"),
        (
            make_inputs() | {"k": torch.zeros(1, 64, 1, 64).half()},
            "v has shape (1, 64, 2, 64), but k (1, 64, 1, 64); all but the last must be equal",
        ),
        (
            make_inputs() | {"k": torch.zeros(1, 64, 3, 64).half()},
            "q has 2 heads and k has 3; the heads of q must be a multiple of those of k",
        ),
        (make_inputs() | {"k": torch.zeros(2, 64, 2, 64).half()}, "batch and d_head must be equal"),
        (make_inputs(shape=(64, 2, 64)), "q has shape (64, 2, 64); expected (batch, seq_len"),
        (make_inputs(shape=(0, 64, 2, 64)), "none of them 0"),
        (make_inputs(shape=(1, 64, 2, 68)), "d_head 68; supported are multiples of 8 up to 256"),
        (make_inputs(torch.float8_e5m2), "q has dtype torch.float8_e5m2; supported are"),
        (make_inputs() | {"k_scale": torch.ones(1)}, "k_scale is there, but k has 16 bits"),
        (
            make_inputs(torch.float8_e4m3fn) | {"q_scale": torch.ones(3)},
            "q_scale has dtype torch.float32 and shape (3,); expected",
        ),
    ],
)
def test_run_refuses_a_file_whose_tensors_are_wrong(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "qkv.safetensors"
    save_file(tensors, path)
    assert message in refused("run", "--input", path)


def test_run_refuses_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    path.write_bytes(b"not tensors")
    assert "cannot be read as safetensors" in refused("run", "--input", path)
    torch.save(make_inputs(), path)
    message = refused("run", "--input", path)
    assert "torch.save's, by safetensors.torch.save_file(dict(q=q, k=k, v=v), path)" in message
    assert "is a folder; expected a safetensors file" in refused("run", "--input", tmp_path)
