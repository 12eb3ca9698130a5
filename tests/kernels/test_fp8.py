"""The FP8 forward kernels: what they compute, and which configurations are legal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import FULL
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.fp8_space import fp8_candidates, fp8_heuristic, get_fp8_kernel_configs
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import DType
from flashsmith.problem import Problem
from flashsmith.reference import reference_varlen
from support.fp8 import SCORES, VALUES, Quantised
from support.problems import FP8

BOTH = pytest.mark.parametrize("cfg", [SCORES, VALUES], ids=["scores", "values"])
SEMANTICS: dict[str, dict[str, Any]] = {
    "window": {"window_size": (40, 7)},
    "softcap and alibi": {"softcap": 2.0, "alibi_slopes": torch.tensor([0.1, 0.02])},
    "causal and sinks": {"causal": True, "sinks": torch.tensor([3.0, -2.0])},
}


@pytest.mark.parametrize("semantics", SEMANTICS.values(), ids=SEMANTICS.keys())
@BOTH
def test_masks_and_scores(cfg: Sm90ForwardKernelConfig, semantics: dict[str, Any]) -> None:
    """A score is scaled before anything else changes it."""
    Quantised(cfg).assert_right(cfg, **semantics)


@pytest.mark.parametrize("per", ["tensor", "head", "request"])
@BOTH
def test_scales_are_of_all_of_a_head_or_of_a_request_too(
    cfg: Sm90ForwardKernelConfig, per: str
) -> None:
    Quantised(cfg, heads=(6, 3), per=per, lengths=(70, 40)).assert_right(cfg)


@pytest.mark.parametrize("rows", [(48, 64), (64, 16), (32, 32)], ids=str)
@BOTH
def test_rows_may_be_shorter_than_the_kernels(
    cfg: Sm90ForwardKernelConfig, rows: tuple[int, int]
) -> None:
    """The memory behind each row holds NaN."""
    asked = Quantised(cfg, rows=rows, lengths=(70, 40))
    asked.assert_right(cfg)
    found = asked.run(cfg)
    for name in "qkv":
        t = asked.given[name]
        wide = torch.full((*t.shape[:3], 80), math.nan).to(t.dtype)
        wide[..., : t.shape[3]].copy_(t)
        asked.given[name] = wide[..., : t.shape[3]]
    assert all(map(torch.equal, found, asked.run(cfg)))


@pytest.mark.parametrize("d_head", D_HEADS)
def test_chosen_kernels_that_transpose_are_right(d_head: int) -> None:
    """From d_head 96 on a warp has several batches of V, which smaller tiles do not have."""
    (cfg,) = fp8_candidates(DType.BF16, d_head, fp8_values=True)
    lengths = cfg.B_r + 10, 2 * cfg.B_c + 5
    Quantised(cfg, lengths, rows=(cfg.d_head, cfg.d_head), batch=1).assert_right(cfg)


@BOTH
def test_sequences_of_their_own_lengths_see_nothing_of_the_next(
    cfg: Sm90ForwardKernelConfig,
) -> None:
    """The sequences are packed, with lengths of 0 and 1 and NaN around them; each gives the bits
    that it gives alone."""
    lengths_q, lengths_k = [70, 1, 33, 0, 64], [40, 65, 1, 7, 64]
    asked = Quantised(cfg, (70, 65), batch=5)
    offsets = [torch.tensor([0, *each]).cumsum(0).int() for each in (lengths_q, lengths_k)]
    packed = dict(asked.given)
    for name, lengths in {"q": lengths_q, "k": lengths_k, "v": lengths_k}.items():
        t = asked.given[name]
        rows = [sequence[:n] for sequence, n in zip(t, lengths, strict=True)]
        behind = torch.full_like(t[0, :5].float(), math.nan).to(t.dtype)
        packed[name] = torch.cat([each.view(torch.uint8) for each in (*rows, behind)]).view(t.dtype)
    o, lse = flashsmith.attention(
        **packed, config=cfg, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], return_lse=True
    )
    for i, (n_q, n_k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        alone = {name: t[i : i + 1] for name, t in asked.given.items()}
        alone["q"] = alone["q"][:, :n_q]
        alone["k"], alone["v"] = alone["k"][:, :n_k], alone["v"][:, :n_k]
        expected, expected_lse = flashsmith.attention(**alone, config=cfg, return_lse=True)
        own = slice(int(offsets[0][i]), int(offsets[0][i]) + n_q)
        assert torch.equal(o[own], expected[0])
        assert torch.equal(lse[:, own], expected_lse[0])


@BOTH
def test_keys_that_are_not_used_may_be_nan(cfg: Sm90ForwardKernelConfig) -> None:
    asked = Quantised(cfg, (70, 65))
    used = torch.tensor([33, 64], dtype=torch.int32)
    good = asked.run(cfg, seqused_k=used)
    for name in "kv":
        t = asked.given[name].clone()
        for sequence, n in zip(t, used, strict=True):
            sequence[n:] = math.nan
        asked.given[name] = t
    found = asked.run(cfg, seqused_k=used)
    assert all(map(torch.equal, good, found))
    assert found[0].isfinite().all()


@pytest.mark.parametrize("cfg", [VALUES, replace(VALUES, two_level=False)], ids=str)
def test_every_key_meets_its_own_value(cfg: Sm90ForwardKernelConfig) -> None:
    """Each query picks one key, and each value tells its key: an error in the transposition or in
    the order of P would give another number."""
    n, d = 96, 64
    q = torch.zeros(1, n, 1, d)
    q[0, torch.arange(n), 0, torch.arange(n) % 32] = 32.0
    q[0, torch.arange(n), 0, 32 + torch.arange(n) // 32] = 32.0
    numbers = torch.arange(n)[:, None] + torch.arange(d)[None] * 3
    v = (numbers % 15 - 7.0).reshape(1, n, 1, d)  # whole numbers up to 8 are exact
    o = flashsmith.attention(q.to(FP8), q.to(FP8), v.to(FP8), config=cfg)
    assert torch.equal(o, v.bfloat16())


def test_every_byte_of_a_value_is_the_number_it_stands_for() -> None:
    """Each of the 256 bytes fills a column of V; NaN stays in its column."""
    every = torch.arange(256, dtype=torch.uint8).view(FP8)
    v = every.reshape(1, 1, 4, 64).expand(1, 20, 4, 64).contiguous()
    ones = torch.ones(1, 20, 4, 64).to(FP8)
    o = flashsmith.attention(ones, ones, v, config=replace(VALUES, dtype=DType.FP16))
    expected = every.half().reshape(1, 1, 4, 64).expand_as(o)
    torch.testing.assert_close(o, expected, rtol=1e-3, atol=1e-5, equal_nan=True)


@BOTH
def test_nan_of_a_query_stays_in_its_row(cfg: Sm90ForwardKernelConfig) -> None:
    asked = Quantised(cfg)
    asked.given["q"][0, 70, 0] = math.nan
    o, _ = asked.run(cfg)
    assert o.isnan().any(-1).nonzero().tolist() == [[0, 70, 0]]


@pytest.mark.parametrize("order", [1, -1], ids=["grows", "shrinks"])
@pytest.mark.parametrize(
    "cfg", [SCORES, VALUES, replace(VALUES, lazy_rescale_log2=4), replace(VALUES, two_level=False)],
    ids=["scores", "values", "lazy", "one level"],
)  # fmt: skip
def test_maximum_that_moves(cfg: Sm90ForwardKernelConfig, order: int) -> None:
    """The maximum moves by less and by more than the bound of the lazy rescale: P in e4m3 stays
    below 448."""
    for growth in (1.0, 3.0, 9.0, 30.0):
        asked = Quantised(cfg, (70, 250), per="tensor")
        ramp = torch.linspace(0, growth, 250)
        ramp = ramp if order == 1 else ramp.flip(0)
        asked.set_first_columns(torch.full((70,), 16.0), ramp)
        asked.assert_right(cfg)


@pytest.mark.parametrize("ends", [(-3, -20), (-20, -3), (-1, -5), (-20, 2), (2, -20)], ids=str)
@pytest.mark.parametrize("rows", [range(70), [3], [12]], ids=["all rows", "row 3", "row 12"])
def test_rows_of_negative_scores(rows: Sequence[int], ends: tuple[float, float]) -> None:
    """Scores are compared as integers, but not where a row of the warp has had none above 0. The
    fragments have rows 3 and 12 in their two halves."""
    asked = Quantised(VALUES, (70, 250), per="tensor")
    column = torch.full((70,), -16.0)
    column[list(rows)] = 16.0
    asked.set_first_columns(column, torch.linspace(*ends, 250))
    asked.assert_right(VALUES)


def test_sums_of_two_levels_lose_less() -> None:
    """The GPU's FP8 sums are rough, so the two-level sum adds 8192 keys block by block."""
    q, k, v = (torch.randn(1, n, 1, 64).to(FP8) for n in (64, 8192, 8192))
    v = (v.float() + 1).to(FP8)
    truth, _ = reference_varlen(q.double(), k.double(), v.double(), compute=torch.float64)
    errors = [
        (flashsmith.attention(q, k, v, config=cfg).double() - truth).square().mean().sqrt()
        for cfg in (VALUES, replace(VALUES, two_level=False))
    ]
    assert errors[0] < 0.1 * errors[1]


def test_what_the_heuristic_chooses_can_be_built() -> None:
    configs = get_fp8_kernel_configs()
    assert len(configs) == 2 * (5 + 5 + 1)  # d_head 128 has two for FP8 scores
    assert not any(cfg.problems() for cfg in configs)
    with pytest.raises(ValueError, match="d_head 80; supported are"):
        fp8_candidates(DType.BF16, 80, fp8_values=False)


@pytest.mark.parametrize(
    ("batch", "length", "rows"), [(4, 2048, 128), (4, 4096, 192), (1, 16384, 192), (1, 100, 128)]
)
def test_heuristic_takes_tiles_that_fill_the_gpu(batch: int, length: int, rows: int) -> None:
    """On an H200, tiles of 192 rows were measured as faster unless they leave SMs idle."""
    problem = Problem.square(DType.BF16, 128, batch, 16, length)
    assert fp8_heuristic(problem, False, FULL, num_sms=132).B_r == rows
    assert fp8_heuristic(problem, False, FULL, num_sms=None).B_r == 192
    softcap = replace(FULL, softcap=True)
    assert fp8_heuristic(problem, False, softcap, num_sms=132).is_buildable()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fp8_scores": False}, "fp8_values needs fp8_scores"),
        ({"fp8_scores": False, "fp8_values": False}, "two_level needs fp8_values"),
        ({"cluster_size": 2, "dynamic_queue": False}, "with fp8_values each block transposes"),
        ({"stale_maximum": True}, "stale_maximum leaves P below 1"),
        ({"ping_pong_until_exp": True}, "ping_pong_until_exp needs ping_pong"),
        ({"B_c": 48}, "B_c is 48; it must be a multiple of 32"),
        ({"Q_steps_in_registers": 4}, "Q_steps_in_registers is 4; with d_head 64 Q K^T has 2"),
        ({"B_c": 256, "n_stages": 8}, "bytes of shared memory"),
        ({"d_head": 256, "B_c": 64}, "a block's O"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in replace(VALUES, **changes).problems())


def test_tiles_are_whole_multiples_of_a_swizzle() -> None:
    cfg = replace(SCORES, d_head=96, B_c=48)
    assert any("48 rows of K take 4608 bytes" in problem for problem in cfg.problems())
