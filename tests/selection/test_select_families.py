"""The family that serves a call where several can, and the output of `tune --explain`."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from flashsmith.configs import (
    VARIANTS,
    DType,
    Sm90ForwardKernelConfig,
    Workload,
    operation,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import D_HEADS
from flashsmith.errors import DeviceError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose, choose_for
from flashsmith.selection.select import select_config
from flashsmith.selection.tables import (
    Table,
)
from support.tables import (
    A100,
    H100,
    H200,
    LARGE,
    SM90,
    SM90_BF16,
    SMALL,
    STAMP,
    chosen,
    explained,
    make_entry,
    write_user_table,
)
from support.workloads import square

pytestmark = pytest.mark.usefixtures("tuned")


def test_table_decides_between_families_on_sm90_alone() -> None:
    write_user_table(make_entry([SM90, SMALL]))
    assert chosen().config == SM90
    assert chosen(seq_len=1000).config == SM90
    write_user_table(make_entry([SMALL, SM90]))
    assert chosen().config == SMALL
    assert chosen(seq_len=1000).config == SMALL
    write_user_table(make_entry([SM90, SMALL]), gpu=A100)
    assert chosen(gpu=A100).config == SMALL


def test_k_of_another_shape_is_served_by_the_same_tables() -> None:
    write_user_table(make_entry([SMALL, SM90]))
    problem = Problem(DType.FP16, 128, 4, 16, 2, 77, 1024)
    for variant in VARIANTS:
        assert choose_for(FORWARD, Workload(problem, variant), H200).source is not None
    assert choose_for(FORWARD, Workload(problem), H200).config == SMALL
    (small,) = SM80_FORWARD.smaller(Workload.square(DType.FP16, 128, 4096))
    assert (
        choose_for(FORWARD, Workload(problem), A100).config == small
    )  # by heuristic: 64 tiles of 128 rows


@pytest.mark.parametrize("d_head", [96, 192, 256])
def test_sm90_heuristic_takes_every_d_head(d_head: int) -> None:
    heuristic = SM90_FORWARD.heuristic(Workload.square(DType.BF16, d_head, 1000))
    choice = chosen(seq_len=1000, dtype=DType.BF16, d_head=d_head, gpu=H100)  # it has no table
    assert (choice.config, choice.source) == (heuristic, None)
    assert isinstance(heuristic, Sm90ForwardKernelConfig) and not heuristic.problems()


def test_every_gpu_takes_every_d_head_and_length() -> None:
    for d_head, seq_len in product(D_HEADS, (1, 1000, 4096)):
        for gpu in (None, A100, H100, H200):
            config = chosen(seq_len, gpu=gpu, d_head=d_head).config
            assert config.serves(Problem.square(DType.FP16, d_head, 1, 1, seq_len))


def test_tiles_of_bf16_serve_fp16_which_has_fewer_exponents() -> None:
    write_user_table(make_entry([SM90_BF16]), gpu=H100)
    lent = chosen(gpu=H100).config
    assert lent == replace(SM90_BF16, dtype=DType.FP16, lazy_rescale_log2=4)
    assert not lent.problems()


def test_table_holds_both_families(tmp_path: Path) -> None:
    table = Table.of(FORWARD, STAMP, [make_entry([SM90, SMALL]), make_entry([SM90_BF16], 4096)])
    table.write(tmp_path / "t.json")
    assert Table.read(tmp_path / "t.json") == table


@pytest.mark.parametrize("k_shape", [None, (1, 128, 2, 128), (1, 256, 4, 128), (1, 77, 4, 128)])
@pytest.mark.parametrize("d_head", [64, 96, 128])
def test_cpu_tensors_get_the_plainest_family(d_head: int, k_shape: tuple[int, ...] | None) -> None:
    q = torch.empty(1, 100, 4, d_head, dtype=torch.float16)
    k = None if k_shape is None else torch.empty(*k_shape[:3], d_head, dtype=torch.float16)
    length = (q if k is None else k).shape[1]
    config = select_config(q, k=k)
    assert config == SM80_FORWARD.heuristic(Workload.square(DType.FP16, d_head, length))


def test_length_of_the_keys_chooses_the_bucket() -> None:
    write_user_table(make_entry([SM90], 4096), make_entry([SMALL], 512))
    q, k = (torch.empty(1, n, 1, 128, dtype=torch.float16) for n in (1, 4096))
    problem = Problem.of_shapes(DType.FP16, q.shape, k.shape)
    assert choose_for(FORWARD, Workload(problem), H200).config == SM90
    on_cpu = choose_for(FORWARD, Workload(problem), None).config
    assert on_cpu == SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 4096))


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("NVIDIA H200", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA H20", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA B200", False),
        ("h200", True),
        ("gh200-480gb", True),
        ("nvidia  h100", True),
        ("GeForce RTX4090", False),
        ("H20000", None),
        ("banana", None),
    ],
)
def test_sm90_by_name(gpu: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=f"gpu '{gpu}' is not known; .*sm_90, .*H200"):
            get_gpu_architecture(gpu)
    else:
        assert (get_gpu_architecture(gpu).compute_capability == (9, 0)) is expected


def test_explain_says_which_entry_and_what_was_measured() -> None:
    heuristic = SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 1024))
    path = write_user_table(make_entry([SM90, SMALL]), gpu=A100)
    shape = ("--gpu", A100, "--seq-len", 1000, "--d-head", 128, "--mask", "full")
    text = explained(*shape, "--dtype", "fp16")
    assert f"kernel {SMALL}" in text
    assert f"your table {path}" in text
    assert f"the fastest that serves here; {SM90}, the fastest of 40 for this bucket" in text
    assert (
        "2 ms; in turn 20th to 80th percentile 1.9 to 2.1 ms and 50.0 TFLOP/s, at 4 x 16 x" in text
    )
    write_user_table(make_entry([LARGE, SMALL, heuristic]), gpu=A100)
    text = explained("--gpu", A100, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16",
                     "--mask", "full")  # fmt: skip
    rows = "above 512 rows an SM"
    assert f"the fastest of 40, for lengths 513 to 1024, {rows}" in text
    assert "the nearest that was measured" not in text
    assert f"next best {SMALL}: 2 ms, 100.0 % slower" in text
    assert f"the heuristic would choose {heuristic}: 3 ms, 200.0 %" in text


def test_explain_compares_both_regimes_where_the_table_has_them() -> None:
    entry = make_entry([LARGE, SMALL])
    steady = [replace(row, ms_back_to_back=2.0) for row in entry.ranked]  # in turn 1 and 2 ms
    write_user_table(replace(entry, ranked=tuple(steady)), gpu=A100)
    text = explained("--gpu", A100, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16",
                     "--mask", "full")  # fmt: skip
    assert "measured 1 ms, back to back 2 ms; in turn" in text.replace("measured  ", "measured ")
    assert f"next best {SMALL}: 2 ms, back to back 2 ms, 41.4 % slower" in text


def test_explain_says_when_tiles_are_of_another_dtype_or_the_heuristic_decides() -> None:
    shape = ("--seq-len", 4096, "--d-head", 128, "--dtype", "bf16", "--mask", "causal")
    write_user_table(make_entry([SMALL], 4096, "causal"), gpu=A100)  # none is shipped for it
    text = explained("--gpu", A100, *shape)
    assert "measured for FP16, BF16 takes the same tiles" in text
    text = explained("--gpu", "NVIDIA A30", *shape)
    assert (
        "because the heuristic: one configuration for each d_head, and one of half the rows" in text
    )
    assert "passed over your table: there is none" in text
    assert "measured" not in text


def test_explain_lists_many_shapes_and_speaks_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "_MAX_COST_RATIO", 0.0)
    shapes = ("--gpu", H200, "--seq-len", "1024,4096", "--dtype", "fp16", "--d-head", 128)
    table = explained(*shapes)
    assert table.count("shipped table") == 4
    document = json.loads(explained(*shapes, "--json"))
    assert [item["source"] for item in document] == ["shipped table"] * 4
    causal = chosen(4096, causal=True)
    assert document[-1]["kernel"] == str(causal.config)
    assert document[-1]["ms"] == causal.measured.ms  # type: ignore[union-attr]


def test_a_gpu_that_no_family_runs_on_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"Tesla T4 has compute capability 7\.5; the kernels"):
        choose(square(DType.FP16, 128, "full", 4, 16, 1024), "Tesla T4", (7, 5))
