"""The forward of 8 bits: what it computes, of which tensors, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import FULL, parse_kernel_name_into_config
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.fp8_space import fp8_rule, get_fp8_kernel_configs
from flashsmith.dtype import DType
from flashsmith.errors import DeviceError
from flashsmith.reference import (
    attention_with_rounded_weights,
    compare,
    reference_lse,
    reference_varlen,
)
from flashsmith.selection import choose as selection
from support.problems import FP8

SCORES = parse_kernel_name_into_config(
    "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+tiles+lazy_8+stale+fp8_scores"
)
VALUES = parse_kernel_name_into_config(
    "(BF16, 64, 64, 32, 1): wgmma+stages_2+overlap+persistent+queue+tiles+lazy_4+tma_store"
    "+fp8_scores+fp8_values+two_level"
)
BOTH = pytest.mark.parametrize("cfg", [SCORES, VALUES], ids=["scores", "values"])
SEMANTICS: dict[str, dict[str, Any]] = {
    "window": {"window_size": (40, 7)},
    "softcap and alibi": {"softcap": 2.0, "alibi_slopes": torch.tensor([0.1, 0.02])},
    "causal and sinks": {"causal": True, "sinks": torch.tensor([3.0, -2.0])},
}


class Quantised:
    """q, k and v of 8 bits as a configuration says, their scales, and what they stand for."""

    def __init__(
        self,
        cfg: Sm90ForwardKernelConfig,
        lengths: tuple[int, int] = (150, 130),
        heads: tuple[int, int] = (2, 1),
        rows: tuple[int, int] = (64, 64),
        batch: int = 2,
        per: str = "request",
    ):
        shapes = {
            "q": (batch, lengths[0], heads[0], rows[0]),
            "k": (batch, lengths[1], heads[1], rows[0]),
            "v": (batch, lengths[1], heads[1], rows[1]),
        }
        sizes = {"tensor": (1,), "head": (heads[1],), "request": (batch, heads[1])}[per]
        self.given: dict[str, Any] = {}
        self.exact: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            self.given[name] = self.exact[name] = torch.randn(shape).bfloat16()
            if name not in cfg.fp8_tensors:
                continue
            scale = torch.rand(sizes) + 0.5
            small = torch.randn(shape).to(FP8)
            self.given |= {name: small, f"{name}_scale": scale}
            self.exact[name] = small.double() * spread(scale, shape[2])

    def run(self, cfg: Sm90ForwardKernelConfig | None, **keywords: Any) -> Any:
        return flashsmith.attention(**self.given, config=cfg, return_lse=True, **keywords)

    def assert_right(self, cfg: Sm90ForwardKernelConfig, **keywords: Any) -> None:
        assert_right(cfg, self.exact, *self.run(cfg, **keywords), **keywords)


def spread(scale: torch.Tensor, heads: int) -> torch.Tensor:
    """Over (batch, rows, heads, d_head)."""
    of_heads = scale.double().reshape(1 if scale.ndim == 1 else scale.shape[0], 1, -1, 1)
    return of_heads if of_heads.shape[2] == 1 else of_heads.repeat_interleave(
        heads // of_heads.shape[2], 2
    )


def assert_right(
    cfg: Sm90ForwardKernelConfig,
    exact: dict[str, torch.Tensor],
    o: torch.Tensor,
    lse: torch.Tensor,
    **semantics: Any,
) -> None:
    """Of weights in 16 bits twice the error of plain torch, of those in 8 of such weights there."""
    wide = {name: t.double() for name, t in exact.items()}
    truth, _ = reference_varlen(**wide, compute=torch.float64, **semantics)
    if "v" in cfg.fp8_tensors:
        low = attention_with_rounded_weights(**wide, weights_in=FP8, **semantics)
    else:
        low, _ = reference_varlen(**wide, compute=o.dtype, **semantics)
    found = compare(o, truth, low)
    assert found.ok, found
    expected = reference_lse(wide["q"], wide["k"], **semantics).float()
    torch.testing.assert_close(lse, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("semantics", SEMANTICS.values(), ids=SEMANTICS.keys())
@BOTH
def test_masks_and_scores(cfg: Sm90ForwardKernelConfig, semantics: dict[str, Any]) -> None:
    """Scales are part of a score before anything is done to it."""
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
    """What lies behind them is NaN."""
    asked = Quantised(cfg, rows=rows, lengths=(70, 40))
    asked.assert_right(cfg)
    found = asked.run(cfg)
    for name in "qkv":
        t = asked.given[name]
        wide = torch.full((*t.shape[:3], 80), math.nan).to(t.dtype)
        wide[..., : t.shape[3]].copy_(t)
        asked.given[name] = wide[..., : t.shape[3]]
    assert all(map(torch.equal, found, asked.run(cfg)))


@BOTH
def test_sequences_of_their_own_lengths_see_nothing_of_the_next(
    cfg: Sm90ForwardKernelConfig,
) -> None:
    """Packed, with lengths of 0 and 1; what belongs to none is NaN. Bitwise what each gives."""
    lengths_q, lengths_k = [70, 1, 33, 0, 64], [40, 65, 1, 7, 64]
    asked = Quantised(cfg, (70, 65), batch=5)
    places = [torch.tensor([0, *each]).cumsum(0).int() for each in (lengths_q, lengths_k)]
    packed = dict(asked.given)
    for name, lengths in {"q": lengths_q, "k": lengths_k, "v": lengths_k}.items():
        t = asked.given[name]
        rows = [sequence[:n] for sequence, n in zip(t, lengths, strict=True)]
        behind = torch.full_like(t[0, :5].float(), math.nan).to(t.dtype)
        packed[name] = torch.cat([each.view(torch.uint8) for each in (*rows, behind)]).view(t.dtype)
    o, lse = flashsmith.attention(
        **packed, config=cfg, cu_seqlens_q=places[0], cu_seqlens_k=places[1], return_lse=True
    )
    for i, (n_q, n_k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        alone = {name: t[i : i + 1] for name, t in asked.given.items()}
        alone["q"] = alone["q"][:, :n_q]
        alone["k"], alone["v"] = alone["k"][:, :n_k], alone["v"][:, :n_k]
        expected, expected_lse = flashsmith.attention(**alone, config=cfg, return_lse=True)
        own = slice(int(places[0][i]), int(places[0][i]) + n_q)
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
    """Each query picks one key, each value says which it is: wherever the transposition or P's
    order were wrong, another number would come out."""
    n, d = 96, 64
    q = torch.zeros(1, n, 1, d)
    q[0, torch.arange(n), 0, torch.arange(n) % 32] = 32.0
    q[0, torch.arange(n), 0, 32 + torch.arange(n) // 32] = 32.0
    numbers = torch.arange(n)[:, None] + torch.arange(d)[None] * 3
    v = (numbers % 15 - 7.0).reshape(1, n, 1, d)  # whole numbers up to 8 are exact
    o = flashsmith.attention(q.to(FP8), q.to(FP8), v.to(FP8), config=cfg)
    assert torch.equal(o, v.bfloat16())


def test_every_byte_of_a_value_is_the_number_it_stands_for() -> None:
    """Each of the 256 as a column of all values; NaN stays in its column."""
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
@BOTH
def test_maximum_that_moves(cfg: Sm90ForwardKernelConfig, order: int) -> None:
    """By less and by more than the bound of the lazy rescale: P in e4m3 stays below 448."""
    for growth in (1.0, 3.0, 9.0, 30.0):
        asked = Quantised(cfg, (70, 250), per="tensor")
        ramp = torch.linspace(0, growth, 250)
        ramp = ramp if order == 1 else ramp.flip(0)
        for name, value in {"q": torch.full((70,), 16.0), "k": ramp}.items():
            asked.given[name][..., 0] = value[None, :, None].to(FP8)
            scale = asked.given[f"{name}_scale"].double()
            asked.exact[name] = asked.given[name].double() * scale
        asked.assert_right(cfg)


def test_sums_of_two_levels_lose_less() -> None:
    """Over 8192 keys, of the card's rough sums: the same numbers, added block by block."""
    q, k, v = (torch.randn(1, n, 1, 64).to(FP8) for n in (64, 8192, 8192))
    v = (v.float() + 1).to(FP8)
    truth, _ = reference_varlen(q.double(), k.double(), v.double(), compute=torch.float64)
    errors = [
        (flashsmith.attention(q, k, v, config=cfg).double() - truth).square().mean().sqrt()
        for cfg in (VALUES, replace(VALUES, two_level=False))
    ]
    assert errors[0] < 0.1 * errors[1]


# Calls.


def test_what_serves_is_chosen_by_dtypes() -> None:
    """Of v, and where that has 8 bits of out; calls that look alike but for these are told apart."""
    q, k, v = (torch.randn(1, 20, 1, 64).to(FP8) for _ in range(3))
    truth, _ = reference_varlen(q.double(), k.double(), v.double(), compute=torch.float64)
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16):
            found = flashsmith.attention(q, k, v.to(dtype))
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), truth, atol=0.02, rtol=0)
            out = torch.empty(1, 20, 1, 64, dtype=dtype)
            assert flashsmith.attention(q, k, v, out=out) is out
            torch.testing.assert_close(out.double(), truth, atol=0.1, rtol=0)
        assert flashsmith.attention(q, k, v).dtype == torch.bfloat16


@BOTH
def test_a_call_made_again_reads_scales_anew(cfg: Sm90ForwardKernelConfig) -> None:
    asked = Quantised(cfg, (70, 40))
    for _ in range(3):
        asked.assert_right(cfg)
        for name in cfg.fp8_tensors:
            asked.given[f"{name}_scale"] *= 1.25
            asked.exact[name] = asked.exact[name] * 1.25
    for name in cfg.fp8_tensors:
        asked.exact[name] = asked.given[name].double()
        asked.given[f"{name}_scale"] = None
    asked.assert_right(cfg)


def test_there_may_be_no_keys_or_no_queries() -> None:
    q, none = torch.ones(1, 5, 1, 64).to(FP8), torch.ones(1, 0, 1, 64).to(FP8)
    o, lse = flashsmith.attention(q, none, none, config=VALUES, return_lse=True)
    assert o.dtype == torch.bfloat16 and not o.any() and lse.isneginf().all()
    assert flashsmith.attention(none, q, q, config=VALUES).shape == (1, 0, 1, 64)


def test_forward_takes_them_too() -> None:
    asked = Quantised(VALUES, (70, 40))
    q, k, v = (asked.given.pop(name) for name in "qkv")
    o, lse, _ = flashsmith.forward(
        VALUES, q, k, v, benchmark=True, return_lse=True, **asked.given
    )
    assert_right(VALUES, asked.exact, o, lse)


def test_a_graph_of_torch_compile_has_them() -> None:
    asked = Quantised(VALUES, (70, 40))

    def call(given: dict[str, Any]) -> Any:
        return flashsmith.attention(**given, causal=True)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    found = compiled(asked.given)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, call(asked.given))


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "k of 16 bits": ({"k": torch.bfloat16}, TypeError, "k has dtype bfloat16, but"),
    "v of e5m2": ({"v": torch.float8_e5m2}, TypeError, "v has dtype .*float8_e5m2"),
    "an out of 8 bits": (
        {"out": torch.empty(1, 20, 2, 64).to(FP8)}, TypeError, "out has dtype .*float8_e4m3fn",
    ),
    "a bias": (
        {"bias": torch.zeros(1, 1, 20, 20).bfloat16()}, ValueError, "bias was passed with a q of",
    ),
    "dropout": ({"dropout_p": 0.5}, ValueError, "dropout_p was passed with a q of float8_e4m3fn"),
    "a score_mod": (
        {"score_mod": lambda s, b, h, i, j: s * 2}, ValueError, "score_mod, mask_mod or block_mask",
    ),
    "a scale of three": ({"k_scale": torch.ones(3)}, ValueError, r"k_scale has shape \(3\)"),
    "a scale of float64": ({"q_scale": torch.ones(2).double()}, TypeError, "q_scale has dtype"),
    "a scale below zero": ({"v_scale": -torch.ones(1)}, ValueError, "v_scale has -1.0"),
    "a scale that is NaN": ({"v_scale": torch.tensor([math.nan])}, ValueError, "v_scale has nan"),
    "a number as a scale": ({"q_scale": 2.0}, TypeError, "q_scale is a float"),
    "rows of 24": (dict.fromkeys("qk", 24), ValueError, "q has d_head 24; .* multiples of 16"),
    "values of 40": ({"v": 40}, ValueError, "v has d_v 40; .* multiples of 16"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_is_refused_in_words(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    given: dict[str, Any] = {name: torch.ones(1, 20, 2, 64).to(FP8) for name in "qkv"}
    for name, value in changed.items():
        if isinstance(value, torch.dtype):
            given[name] = given[name].float().to(value)
        elif name in given:
            given[name] = given[name][..., :value].contiguous()
        else:
            given[name] = value
    with pytest.raises(error, match=words):
        flashsmith.attention(**given)


def test_scales_of_16_bits_are_refused() -> None:
    q = torch.ones(1, 20, 1, 64).bfloat16()
    with pytest.raises(ValueError, match="q_scale was passed, but q has 16 bits; pass None"):
        flashsmith.attention(q, q, q, q_scale=torch.ones(1))
    small = q.to(FP8)
    with pytest.raises(ValueError, match="v_scale was passed, but v has 16 bits; pass None"):
        flashsmith.attention(small, small, q, v_scale=torch.ones(1), config=SCORES)


def test_configurations_and_tensors_have_to_fit() -> None:
    q = torch.ones(1, 20, 1, 64).bfloat16()
    with pytest.raises(TypeError, match="q has dtype bfloat16, but the configuration is for one"):
        flashsmith.attention(q, q, q, config=SCORES)
    plain = replace(SCORES, fp8_scores=False)
    with pytest.raises(TypeError, match="q has dtype float8_e4m3fn; supported are"):
        flashsmith.attention(q.to(FP8), q.to(FP8), q, config=plain)


def test_no_gradients() -> None:
    q, v = torch.ones(1, 20, 1, 64).to(FP8), torch.ones(1, 20, 1, 64).bfloat16().requires_grad_()
    for call in (flashsmith.attention, torch.compile(flashsmith.attention, backend="aot_eager")):
        with pytest.raises(NotImplementedError, match="v requires a gradient"):
            call(q, q, v)
    with torch.no_grad():
        assert flashsmith.attention(q, q, v, config=SCORES).shape == v.shape


def test_other_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.ones(1, 20, 1, 64).to(FP8)
    monkeypatch.setattr(selection, "gpu_of", lambda _: ("NVIDIA B200", (10, 0)))
    with pytest.raises(DeviceError, match=r"compute capability 9.0 alone; NVIDIA B200 has 10.0"):
        selection.select_fp8(q, q, None, FULL)


# Configurations.


def test_what_the_rule_chooses_can_be_built() -> None:
    configs = get_fp8_kernel_configs()
    assert len(configs) == 2 * 5 * 2
    assert not any(cfg.problems() for cfg in configs)
    with pytest.raises(ValueError, match="d_head 80; supported are"):
        fp8_rule(DType.BF16, 80, fp8_values=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fp8_scores": False}, "fp8_values needs fp8_scores"),
        ({"fp8_scores": False, "fp8_values": False}, "two_level needs fp8_values"),
        ({"cluster_size": 2, "dynamic_queue": False}, "with fp8_values each block transposes"),
        ({"stale_maximum": True}, "stale_maximum leaves P below 1"),
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
