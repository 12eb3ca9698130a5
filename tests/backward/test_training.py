"""Autograd and a training loop as the GPU tests run them, small and on the emulator."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import CAUSAL, DType, KernelId, Variant
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import D_HEADS, BackwardWorkload
from flashsmith.jit import Target
from flashsmith.lab.soak import EMULATOR, SoakCase
from flashsmith.runtime import load_kernels
from flashsmith.selection.select import select_config
from support.autograd import ALL_VARIANTS, plain_cases, runs_that_differ, what_is_wrong
from support.scripts import load_script

VARLEN = Variant(causal=True, varlen=True)
TINY = {"layers": 1, "heads": 2, "words": 16, "batch": 2, "length": 12}
SIZE = "batch=2 heads=4 heads_kv=2 seq_len_q=20 seq_len_k=30"
CASES = [
    SoakCase.parse(f"dtype=BF16 d_head=64 {SIZE} {words}")
    for words in (
        "seed=1",
        "causal=True seed=2",
        "sinks=True bias=hj seed=3",
        "causal=True sinks=True lengths_q=20,7 lengths_k=4,30 used_k=0,11 seed=5",
    )
]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    backward = BACKWARD.families[0]
    kernels = []
    variants = {VARLEN, CAUSAL, *(case.variant for case in CASES)}
    for dtype, wanted in ((DType.BF16, variants), (DType.FP16, {CAUSAL})):
        forward = select_config(torch.empty(1, 9, 2, 64, dtype=dtype.to_torch_dtype()))
        for config in (forward, backward.heuristic(BackwardWorkload.square(dtype, 64, 256))):
            kernels += [KernelId(config.adapted_to(v), v) for v in sorted(wanted)]
    load_kernels(list(dict.fromkeys(kernels)), Target.emulator())


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return load_script("benchmarks/train_gpt.py")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_autograd_gives_the_gradients(case: SoakCase) -> None:
    assert not what_is_wrong(case, "cpu")


def test_gradients_of_something_else_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = flashsmith.attention

    def spoiled(*tensors: torch.Tensor, **keywords: Any) -> Any:
        o, lse = attention(*tensors, **keywords)
        return o * 1.05, lse

    monkeypatch.setattr(flashsmith, "attention", spoiled)
    assert "dv" in what_is_wrong(CASES[1], "cpu")


def test_cases_of_autograd_have_every_kind() -> None:
    cases = list(plain_cases(0, EMULATOR, ALL_VARIANTS))
    wanted = {replace(variant, padded=False) for variant in ALL_VARIANTS}
    assert {case.variant for case in cases} == wanted
    assert {case.problem.dtype for case in cases} == set(DType)
    whole = {case.problem.d_head for case in cases if case.problem.d_head in D_HEADS}
    assert len(whole) >= 3


def test_deterministic_gradients_are_the_same() -> None:
    assert runs_that_differ(2, "cpu") == 0


@pytest.mark.parametrize("varlen", [False, True])
def test_training_has_the_losses_of_plain_products(training: ModuleType, varlen: bool) -> None:
    sizes = training.Sizes(**TINY)
    found = {
        name: [loss for loss, _ in training.train(sizes, attend, 0, 3, "cpu", varlen=varlen)]
        for name, attend in training.ATTENTIONS.items()
    }
    assert found["flashsmith"] == pytest.approx(found["sdpa_math"], abs=2e-3)
    assert found["flashsmith"][0] > found["flashsmith"][-1]


def test_text_can_be_learned_and_is_the_same_for_a_seed(training: ModuleType) -> None:
    sizes = training.Sizes(**TINY)
    one, again, other = (next(training.text_of(sizes, seed, "cpu")) for seed in (3, 3, 4))
    assert torch.equal(one.tokens, again.tokens) and not torch.equal(one.tokens, other.tokens)
    tokens, targets = (t.view(2, 12) for t in (one.tokens, one.targets))
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens[:, :5], tokens[:, 7:]), "the second half is the first"
    packed = next(training.text_of(sizes, 3, "cpu", varlen=True))
    assert packed.offsets.tolist() == [0, packed.lengths[0], len(packed.tokens)]


def test_the_script_writes_a_row_for_each_step(training: ModuleType, tmp_path: Path) -> None:
    sizes = [word for name, n in TINY.items() for word in (f"--{name}", str(n))]
    training.main(["--out", str(tmp_path), "--steps", "2", "--device", "cpu", *sizes])
    with (tmp_path / "train_gpt.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["attention"], r["seed"], r["step"]) for r in rows] == [
        (name, seed, step) for name in training.ATTENTIONS for seed in "01" for step in "01"
    ]
    assert (tmp_path / "train_gpt_environment.json").exists()
