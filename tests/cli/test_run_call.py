"""`flashsmith run`: what a call computes besides a mask, and tensors of every kind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import flashsmith
from flashsmith.reference import reference_attention, reference_lse
from flashsmith.runtime import Kernel
from support.cli import (
    FITTING,
    RANDOM_INPUT,
    invoke,
    invoke_json,
    make_inputs,
    refused,
)


def run_file(tmp_path: Path, tensors: dict[str, torch.Tensor], *options: object) -> Any:
    """Runs the command on a file of tensors; returns its report and the tensors of --out."""
    path, output = tmp_path / "qkv.safetensors", tmp_path / "o.safetensors"
    save_file(tensors, path)
    output.unlink(missing_ok=True)
    report = invoke_json("run", "--input", path, "--out", output, "--device", "cpu", *options)
    return report, load_file(output)


def test_run_takes_a_window_a_cap_a_scale_and_rows_of_any_length(tmp_path: Path) -> None:
    q, k = (torch.randn(1, n, 2, 40).bfloat16() for n in (50, 70))
    v = torch.randn(1, 70, 2, 24).bfloat16()
    options = ("--window", "9,3", "--softcap", 2, "--scale", 0.3, "--lse")
    report, written = run_file(tmp_path, {"q": q, "k": k, "v": v}, *options)
    assert report["ok"] and report["kernels"][0]["kernel"].endswith("window+softcap+padded")
    problem = report["problem"]
    assert (problem["d_head"], problem["d_v"], problem["window"]) == (40, 24, [9, 3])
    meaning: Any = {"window_size": (9, 3), "softcap": 2.0, "softmax_scale": 0.3}
    exact = reference_attention(q, k, v, **meaning)
    torch.testing.assert_close(written["o"].double(), exact, rtol=2e-2, atol=2e-2)
    lse = reference_lse(q, k, **meaning)
    torch.testing.assert_close(written["lse"].double(), lse, rtol=1e-3, atol=1e-3)
    other = {**meaning, "window_size": (9, 4)}
    assert (exact - reference_attention(q, k, v, **other)).abs().max() > 0.1


def test_run_drops_the_weights_that_attention_drops_with_the_state_of_the_seed(
    tmp_path: Path,
) -> None:
    tensors = make_inputs()
    options = ("--dropout", 0.3, "--seed", 7, "--mask", "causal", "--lse")
    report, written = run_file(tmp_path, tensors, *options)
    assert report["ok"] and report["kernels"][0]["kernel"].endswith("causal+dropout")
    assert (report["problem"]["dropout"], report["problem"]["seed"]) == (0.3, 7)
    state = torch.tensor([7, 0])
    o = flashsmith.attention(*tensors.values(), causal=True, dropout_p=0.3, rng_state=state)
    torch.testing.assert_close(written["o"], o, rtol=1e-2, atol=1e-2)
    q, k, _ = tensors.values()
    lse = reference_lse(q, k, causal=True)
    torch.testing.assert_close(written["lse"].double(), lse, rtol=1e-3, atol=1e-3)
    other = run_file(tmp_path, tensors, *options[:2], "--seed", 8, *options[4:])[1]["o"]
    assert (other - o).abs().max() > 0.1


@pytest.mark.parametrize("of_v", [torch.float8_e4m3fn, torch.float16])
def test_run_takes_8_bits_with_scales(of_v: torch.dtype, tmp_path: Path) -> None:
    q, k, v = make_inputs(torch.float8_e4m3fn).values()
    scales = {"q_scale": torch.tensor([[0.5, 2.0]]), "k_scale": torch.tensor([1.5])}
    exact_q = q.double() * torch.tensor([0.5, 2.0])[:, None]
    v, exact_v = v.to(of_v), v.double()
    if of_v == q.dtype:
        scales["v_scale"], exact_v = torch.tensor([3.0, 0.25]), exact_v.clone()
        exact_v *= torch.tensor([3.0, 0.25])[:, None]
    report, written = run_file(tmp_path, {"q": q, "k": k, "v": v, **scales}, "--mask", "causal")
    assert report["ok"] and "fp8_scores" in report["kernels"][0]["kernel"]
    exact = reference_attention(exact_q, k.double() * 1.5, exact_v, causal=True)
    assert written["o"].dtype == (torch.bfloat16 if of_v == q.dtype else of_v)
    torch.testing.assert_close(written["o"].double(), exact, rtol=0.1, atol=0.1)


def test_nothing_is_dropped_of_8_bits(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    save_file(make_inputs(torch.float8_e4m3fn), path)
    message = refused("run", "--input", path, "--device", "cpu", "--dropout", "0.2")
    assert "dropout_p was passed with a q of float8_e4m3fn" in message


def test_a_wrong_log_sum_exp_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(_: Kernel, q: Any, k: Any, v: Any, o: Any, *__: Any, lse: Any, **___: Any) -> float:
        o.copy_(reference_attention(q, k, v))
        lse.copy_(reference_lse(q, k))
        lse[0, 1, 5] += 1
        return 0.0

    monkeypatch.setattr(Kernel, "__call__", spoiled)
    report = invoke_json("run", *RANDOM_INPUT, "-k", FITTING, "--lse", code=1)
    assert "lse at (0, 1, 5)" in report["kernels"][0]["worst"]


def test_run_says_what_is_not_finite(tmp_path: Path) -> None:
    tensors = make_inputs()
    tensors["q"][0, 3, 1] = math.nan
    tensors["k"][0, 60, 0, 7] = math.inf
    tensors["v"][0, 9, 1, 3] = -math.inf
    report, written = run_file(tmp_path, tensors, "--mask", "causal")
    expected = {"q": {"nan": 64, "inf": 0}, "k": {"nan": 0, "inf": 1}, "v": {"nan": 0, "inf": 1}}
    found = written["o"].isnan().sum().item(), written["o"].isinf().sum().item()
    expected["o"] = dict(zip(("nan", "inf"), found, strict=True))
    assert report["ok"] and report["not_finite"] == expected and all(found)
    said = invoke("run", "--input", tmp_path / "qkv.safetensors", "--device", "cpu").stderr
    assert "q has 64 NaN, k has 1 inf, v has 1 inf, o has " in said
    finite = invoke("run", *RANDOM_INPUT, "-k", FITTING)
    assert "NaN" not in finite.stderr
