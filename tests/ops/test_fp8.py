"""FP8 calls of ``attention`` and ``forward``: the kernels that serve them, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import FULL
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.errors import DeviceError
from flashsmith.reference import reference_varlen
from flashsmith.selection import select as selection
from support.fp8 import SCORES, VALUES, Quantised, assert_right
from support.problems import FP8

BOTH = pytest.mark.parametrize("cfg", [SCORES, VALUES], ids=["scores", "values"])


def test_what_serves_is_chosen_by_dtypes() -> None:
    """The choice depends on the dtypes of v and of out, by which calls are told apart."""
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
    o, lse, _ = flashsmith.forward(VALUES, q, k, v, benchmark=True, return_lse=True, **asked.given)
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
