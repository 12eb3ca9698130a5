"""The keywords of attention become a variant and its arguments, or an error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith import settings
from flashsmith.configs import CAUSAL, FULL, Variant, parse_kernel_name_into_config
from flashsmith.ops import lengths
from flashsmith.ops.spec import AttentionSpec, ResolvedSpec, resolve

CONFIG = parse_kernel_name_into_config("(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")
Q, K = torch.empty(2, 40, 4, 64).half(), torch.empty(2, 70, 2, 64).half()
PACKED_Q, PACKED_K = torch.empty(1, 80, 4, 64).half(), torch.empty(1, 90, 2, 64).half()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def spec(q: torch.Tensor = Q, k: torch.Tensor = K, **keywords: Any) -> ResolvedSpec:
    return resolve(AttentionSpec(**keywords), q, k)


@pytest.mark.parametrize(
    ("keywords", "variant", "left", "right"),
    [
        ({}, FULL, -1, -1),
        ({"causal": True}, CAUSAL, -1, 0),
        ({"window_size": (5, -1)}, Variant(window=True), 5, -1),
        ({"window_size": (-1, 7)}, Variant(causal=True), -1, 7),
        ({"window_size": (5, 7)}, Variant(causal=True, window=True), 5, 7),
        ({"window_size": [5, 7], "causal": True}, Variant(causal=True, window=True), 5, 0),
        # A bound that hides no key is dropped; 40 queries stand beside the last of 70 keys.
        ({"window_size": (69, 39)}, FULL, -1, -1),
        ({"window_size": (68, 38)}, Variant(causal=True, window=True), 68, 38),
        ({"window_size": (39, 69), "top_left": True}, FULL, -1, -1),
        ({"window_size": (38, 68), "top_left": True}, Variant(causal=True, window=True), 38, 68),
        ({"softcap": 30}, Variant(softcap=True), -1, -1),
        ({"softcap": 0.0, "top_left": True}, FULL, -1, -1),
    ],
)
def test_bounds_and_caps_make_the_variant(
    keywords: dict[str, Any], variant: Variant, left: int, right: int
) -> None:
    extras = spec(**keywords).extras
    assert extras.variant == variant
    assert (extras.window_left, extras.window_right) == (left, right)


def test_tensors_make_the_variant() -> None:
    slopes, bias = torch.rand(4), torch.zeros(1, 1, 40, 70).half()
    extras = spec(alibi_slopes=slopes, bias=bias, sinks=torch.ones(4).half()).extras
    assert extras.variant == Variant(alibi=True, bias=True, sinks=True)
    assert extras.alibi_slopes is slopes and extras.bias is bias
    assert extras.sinks.dtype == torch.float32 and (extras.sinks == 1).all()
    assert spec(bias=torch.ones(2, 1, 40, 1).half()).extras.bias.shape == (2, 1, 40, 70)


def test_windows_of_sequences_are_those_of_the_longest() -> None:
    places = {"cu_seqlens_q": ints(0, 30, 80), "cu_seqlens_k": ints(0, 60, 90)}
    maximum = {"max_seqlen_q": 50, "max_seqlen_k": 60}
    found = spec(PACKED_Q, PACKED_K, window_size=(59, 49), **places, **maximum)
    assert found.extras.variant == Variant(varlen=True)
    assert found.lengths == (2, 50, 60) and found.extras.max_seqlen_q == 50
    found = spec(PACKED_Q, PACKED_K, window_size=(59, 49), **places)
    assert found.extras.variant == Variant(causal=True, window=True, varlen=True)
    assert found.extras.max_seqlen_q == 80


def test_keys_tell_kernels_and_grids_apart() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"causal": True},
        {"softcap": 1.0},
        {"seqused_k": ints(3, 4)},
        {"seqused_k": ints(3, 4), "max_seqlen_k": 4},
        {"seqused_q": ints(3, 4), "max_seqlen_q": 4},
    ]
    found = [spec(**keywords) for keywords in given]
    assert len({(each.key, each.lengths) for each in found}) == len(given)
    assert spec(softcap=1.0).key == spec(softcap=2.0).key


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"causal": 1}, TypeError, "causal is 1; expected True or False"),
        ({"top_left": None}, TypeError, "top_left is None"),
        ({"window_size": 5}, TypeError, r"window_size is 5; expected two ints, \(left, right\)"),
        ({"window_size": (1, 2, 3)}, TypeError, "expected two ints"),
        ({"window_size": (1.0, 2)}, TypeError, "expected two ints"),
        ({"window_size": (-2, 2)}, ValueError, r"window_size is \(-2, 2\); expected at least 0"),
        ({"softcap": "1"}, TypeError, "softcap is a str"),
        ({"softcap": True}, TypeError, "softcap is a bool"),
        *(
            ({"softcap": value}, ValueError, f"softcap is {value}; expected 0 .none., or a number")
            for value in (-1.0, math.inf, math.nan, 1e-40)
        ),
        ({"max_seqlen_q": -1}, ValueError, "max_seqlen_q is -1; expected an int from 0 on"),
        ({"max_seqlen_k": 7.0}, ValueError, "max_seqlen_k is 7.0"),
        ({"max_seqlen_k": 69}, ValueError, "max_seqlen_k is 69, but a sequence has 70 rows"),
        ({"seqused_k": ints(3, 71)}, ValueError, "seqused_k has 71; expected 0 to 70"),
        ({"seqused_q": ints(-1, 3)}, ValueError, "seqused_q has -1; expected 0 to 40"),
        ({"seqused_q": ints(9, 3), "max_seqlen_q": 8}, ValueError, "max_seqlen_q is 8, but .* 9"),
    ],
)
def test_what_no_kernel_computes_is_refused(
    keywords: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        spec(**keywords)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"cu_seqlens_q": ints(0, 50, 81)},
            r"\[0, 50, 81\]; expected offsets from 0 to the 80 rows",
        ),
        ({"cu_seqlens_q": ints(-1, 50)}, "expected offsets from 0"),
        ({"cu_seqlens_q": ints()}, r"cu_seqlens_q is \[\]"),
        ({"cu_seqlens_q": ints(0, 50, 40)}, r"non-decreasing, but .*\[2\] = 40 follows 50"),
        ({"cu_seqlens_k": ints(0, 50, 90), "max_seqlen_k": 49}, "max_seqlen_k is 49, but .* 50"),
        ({"cu_seqlens_k": ints(0, 50, 90), "seqused_k": ints(50, 41)}, "seqused_k has 41; .* 40"),
    ],
)
def test_places_that_do_not_fit_are_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec(PACKED_Q, PACKED_K, **keywords)


def test_lengths_on_a_gpu_are_looked_at_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu(torch.Tensor):
        device = torch.device("cuda")
        is_cpu = False

    used = ints(3, 71).as_subclass(OnGpu)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    spec(seqused_k=used)
    monkeypatch.setenv(settings.CHECK_LENGTHS.name, "on")
    monkeypatch.setattr(lengths, "asked_to_look", lengths.asked_to_look.__wrapped__)
    with pytest.raises(ValueError, match="seqused_k has 71"):
        spec(seqused_k=used)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    spec(seqused_k=used)  # a read would break the capture


def test_what_is_given_to_write_to_comes_back() -> None:
    q = torch.randn(30, 2, 64).half()
    places = ints(0, 10, 30)
    lengths: dict[str, Any] = {"cu_seqlens_q": places, "cu_seqlens_k": places}
    expected = flashsmith.attention(q, q, q, config=CONFIG, **lengths)
    out = torch.full_like(q, math.nan)
    o, lse = flashsmith.attention(q, q, q, config=CONFIG, out=out, return_lse=True, **lengths)
    assert o is out and torch.equal(out, expected)
    assert lse.shape == (2, 30)
    alone = flashsmith.attention(q[None, :10], q[None, :10], q[None, :10], config=CONFIG)
    assert torch.equal(out[:10], alone[0])


def test_rows_that_are_not_used_are_zero_in_a_new_o_and_stay_in_a_given_one() -> None:
    q = torch.randn(2, 30, 1, 64).half()
    lengths: dict[str, Any] = {"seqused_q": ints(10, 0), "seqused_k": ints(30, 7)}
    o, lse = flashsmith.attention(q, q, q, config=CONFIG, return_lse=True, **lengths)
    assert not o[0, 10:].any() and not o[1].any() and o[0, :10].any()
    assert lse.dtype == torch.float32 and (lse[0, :, 10:] == -math.inf).all()
    out = torch.full_like(q, 7)
    flashsmith.attention(q, q, q, config=CONFIG, out=out, **lengths)
    assert (out[0, 10:] == 7).all() and (out[1] == 7).all()
    assert torch.equal(out[0, :10], o[0, :10])


def test_no_keys_leave_zeros_and_the_sink() -> None:
    q, k = torch.randn(2, 30, 4, 64).half(), torch.empty(2, 0, 2, 64).half()
    for sinks in (None, torch.tensor([1.0, -2.0, 0.5, 0.0])):
        o, lse = flashsmith.attention(q, k, k, config=CONFIG, sinks=sinks, return_lse=True)
        assert not o.any()
        expected = torch.full((4,), -math.inf) if sinks is None else sinks
        assert torch.equal(lse, expected[None, :, None].expand(2, 4, 30))
