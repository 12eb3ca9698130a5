"""`flashsmith tune --explain`: the same answer for every spelling, and a reason for each shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    Sm90ForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs import parse_kernel_name_into_config as parse
from flashsmith.configs.registry import FORWARD
from flashsmith.gpus import GPU_MODELS, get_gpu_architecture
from flashsmith.jit import kernel_source_stamp
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table, user_table_path
from support.workloads import square


@pytest.fixture(autouse=True)
def _no_tables_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    forget_tables()
    yield
    forget_tables()


def explain(*args: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["tune", "--explain", *map(str, args)])
    assert result.exit_code == code, result.output
    return result


def test_without_a_gpu_it_asks_for_a_shape_or_a_gpu() -> None:
    message = explain(code=2).stderr
    assert 'name one, like --gpu "NVIDIA H200", or a shape, like --seq-len 4096' in message
    assert explain_json("--grid", "chunk", "--dtype", "fp16", "--d-head", 64)


def explain_json(*args: object) -> list[dict[str, Any]]:
    return list(json.loads(explain(*args, "--json").stdout))


SHAPE = ("--seq-len", 4096, "--d-head", 128, "--mask", "full", "--dtype", "bf16")


@pytest.mark.parametrize("gpu", ["h200", "H200", "nvidia-h200", "NVIDIA  H200"])
def test_every_spelling_of_a_gpu_finds_its_table(gpu: str) -> None:
    (expected,) = explain_json(*SHAPE, "--gpu", "NVIDIA H200")
    (found,) = explain_json(*SHAPE, "--gpu", gpu)
    assert expected["source"] == found["source"] == "shipped table"
    assert found["kernel"] == expected["kernel"]
    assert isinstance(parse(found["kernel"]), Sm90ForwardKernelConfig)
    explain(*SHAPE[2:], "--seq-len", 777, "--gpu", gpu)  # the sm90 family takes every length


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("banana", "gpu 'banana' is not known; supported: sm_75, .*H200.*A100.*RTX 4090"),
        ("", "gpu '' is not known"),
        ("Tesla T4", "gpu 'Tesla T4' has compute capability 7.5; the kernels need 8.0"),
    ],
)
def test_a_gpu_that_is_unknown_or_too_old_is_refused(gpu: str, message: str) -> None:
    assert re.search(message, explain(*SHAPE, "--gpu", gpu, code=2).stderr)


def test_each_of_a_few_shapes_has_its_reason() -> None:
    """Both dtypes are explained, as in README's own line."""
    shape = ("--seq-len", 4096, "--d-head", 128, "--mask", "causal", "--gpu", "h200")
    text = re.sub(" +", " ", explain(*shape).stdout)
    assert len(re.findall("^because shipped table", text, re.MULTILINE)) == 2
    assert text.count("these rates the tuner's, which pauses before each run") == 2
    assert "on h200" in text


def test_many_shapes_say_whose_the_rates_are() -> None:
    remarks = explain("--gpu", "h200", "--dtype", "bf16").stderr
    assert "TFLOP/s are the tuner's, which pauses before each run" in remarks


def test_many_shapes_say_that_their_times_are_of_others() -> None:
    """A bucket of shapes has the times of the one that was measured."""
    shapes = ("--gpu", "h200", "--d-head", "128", "--seq-len", "1010,1000,5000")
    one, same, _ = explain_json(*shapes, "--dtype", "bf16", "--mask", "causal")
    assert one["shape"] != same["shape"] and one["ms"] == same["ms"]
    assert "ms are of the shape that the table has for a bucket" in explain(*shapes).stderr
    assert "for a bucket" not in explain("--seq-len", "700,1000,5000").stderr  # no table, no times


def test_heads_stand_in_place_of_hidden() -> None:
    shape = ("--d-head", 96, "--seq-len", 1024, "--dtype", "bf16", "--mask", "full")
    (found,) = explain_json(*shape, "--heads", 16, "--gpu", "h200")
    assert found["shape"] == "BF16 d 96 full 16 x 16 x 1024"
    message = explain(*shape, "--hidden", 2048, code=2).stderr
    assert "choose --hidden, or --heads in its place" in message


def explain_from(ranked: Sequence[ForwardKernelConfig], seq_len: int) -> dict[str, Any]:
    """Returns the explanation from a table of an A100, for which none is shipped; each kernel is 1
    ms slower than the one before."""
    gpu = "NVIDIA A100-SXM4-80GB"
    rows = [Measured(cfg, ms, ms - 0.1, ms + 0.1, 100 / ms) for ms, cfg in enumerate(ranked, 1)]
    entry = Entry(
        square(DType.FP16, 128, "full", 4, 16, 1024),
        tried=40, excluded={}, heuristic_ratio=1.5, ranked=tuple(rows),
    )  # fmt: skip
    stamp = {"gpu": gpu, "driver_version": "1", "date": "d", **kernel_source_stamp()}
    Table.of(FORWARD, stamp, [entry]).write(user_table_path(gpu))
    forget_tables()
    shape = ("--d-head", 128, "--dtype", "fp16", "--mask", "full", "--seq-len", seq_len)
    (found,) = explain_json(*shape, "--gpu", gpu)
    return found


SM80 = get_autotuning_kernel_configs([DType.FP16])[:3]
SM90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[:2]


def test_the_next_best_is_slower_and_serves_there() -> None:
    found = explain_from([SM80[0], SM90[0], SM80[1], SM80[2]], 1024)
    assert found["kernel"] == str(SM80[0])
    assert found["next_best"] == f"{SM80[1]}: 3 ms, 200.0 % slower"
    found = explain_from([SM90[0], SM80[0], SM90[1], SM80[1]], 1000)
    assert found["kernel"] == str(SM80[0])
    assert found["next_best"] == f"{SM80[1]}: 4 ms, 100.0 % slower"


def test_the_last_that_serves_has_no_next() -> None:
    assert explain_from([SM80[0]], 1024)["next_best"] is None
    assert explain_from([SM90[0], SM80[0], SM90[1]], 960)["next_best"] is None


def test_this_gpu_need_not_be_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Engineering Sample")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    (found,) = explain_json(*SHAPE)
    assert isinstance(parse(found["kernel"]), Sm90ForwardKernelConfig)


def test_every_model_has_an_architecture() -> None:
    """No model is hidden by another that precedes it."""
    for model in GPU_MODELS:
        gpu = get_gpu_architecture(f"NVIDIA {model}")
        assert gpu == get_gpu_architecture(model.lower().replace(" ", "-"))
    assert get_gpu_architecture("NVIDIA RTX 6000 Ada Generation").name == "sm_89"
    assert get_gpu_architecture("NVIDIA RTX PRO 6000 Blackwell").name == "sm_120"
    assert get_gpu_architecture("NVIDIA A10G").name == "sm_86"
    assert get_gpu_architecture("NVIDIA A100-SXM4-80GB").name == "sm_80"
