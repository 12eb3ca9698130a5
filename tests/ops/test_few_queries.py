"""Few queries over many keys: attention uses a split-KV kernel, without a change of the results."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig, DType, FlashDecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.workload import DecodeWorkload, Workload
from flashsmith.flash_attn import flash_attn_func
from flashsmith.ops import few_queries
from flashsmith.reference import Semantics
from flashsmith.selection.select import select_config
from support.decoding import Requests, assert_near_truth, assert_same_bits, requests

KEYS = 520
PLAIN = DECODE.choose_by_heuristic(DecodeWorkload(DType.BF16, 64), None)
FORWARD = SM80_FORWARD.heuristic(Workload.square(DType.BF16, 64, KEYS))


def few(n_q: int = 3, lengths: tuple[int, ...] = (KEYS, KEYS), **how: Any) -> Requests:
    return requests(PLAIN, lengths, n_q=n_q, behind=0, **how)


def attend(asked: Requests, **how: Any) -> Any:
    return flashsmith.attention(asked.q, asked.k, asked.v, return_lse=True, **how)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[DecodeKernelConfig]:
    """Returns the list of the split-KV configurations that serve, call by call."""
    configs: list[DecodeKernelConfig] = []
    find = few_queries.few_queries_kernel_for

    def found(cfg: DecodeKernelConfig, *args: Any) -> Any:
        configs.append(cfg)
        return find(cfg, *args)

    monkeypatch.setattr("flashsmith.ops.launch.few_queries_kernel_for", found)
    flashsmith.selection.choose.forget_calls()
    return configs


@pytest.mark.parametrize("n_q, heads, B_r", [(1, (4, 2), 16), (9, (6, 2), 32), (32, (4, 2), 64)])
def test_attention_is_right_and_has_the_bits_of_decode(
    n_q: int, heads: tuple[int, int], B_r: int, served: list[DecodeKernelConfig]
) -> None:
    asked = few(n_q, heads=heads)
    for causal in (False, True):
        found = attend(asked, causal=causal)
        assert_near_truth(found, asked, Semantics(causal=causal))
        again = flashsmith.decode(None, asked.q, asked.k, asked.v, causal=causal, return_lse=True)
        assert_same_bits(found, again)
    assert [config.B_r for config in served] == [B_r, B_r]


def test_select_config_the_log_and_attention_tell_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = few()
    chosen = select_config(asked.q, True, k=asked.k)
    assert isinstance(chosen, FlashDecodeKernelConfig)
    few_queries.few_queries_kernel_for.cache_clear()
    flashsmith.selection.choose.forget_calls()
    monkeypatch.setenv("FLASHSMITH_LOG", "1")
    with caplog.at_level(logging.INFO, "flashsmith"):
        found = attend(asked, causal=True)
    (line,) = [text for text in caplog.messages if text.startswith("kernel ")]
    assert str(chosen) in line
    assert "few queries: their keys are split" in line
    for named in (
        attend(asked, causal=True, config=chosen),
        flashsmith.forward(chosen, asked.q, asked.k, asked.v, causal=True, return_lse=True),
        torch.ops.flashsmith.attention_forward(asked.q, asked.k, asked.v, True, causal=True),
        flash_attn_func(asked.q, asked.k, asked.v, causal=True, return_attn_probs=True)[:2],
    ):
        assert_same_bits(found, named)


def test_lengths_of_keys_are_lengths_of_the_cache(served: list[DecodeKernelConfig]) -> None:
    """The keys behind these lengths are NaN, and are not read."""
    asked = few(5, (KEYS, 1, 0, 33), heads=(6, 2))
    assert asked.k.isnan().any()
    for _ in range(2):
        found = attend(asked, causal=True, seqused_k=asked.seqlens)
        assert_near_truth(found, asked, Semantics(causal=True))
    assert len(served) == 1
    seqused_q = torch.full((4,), 5, dtype=torch.int32)
    assert_near_truth(
        attend(asked, causal=True, seqused_k=asked.seqlens, seqused_q=seqused_q),
        asked,
        Semantics(causal=True),
    )
    assert len(served) == 1, "lengths of queries are the forward's"


def test_scores_are_changed_as_by_the_forward(served: list[DecodeKernelConfig]) -> None:
    asked = few(3, heads=(6, 2))
    slopes, sinks = torch.rand(6), torch.linspace(-3, 6, 6)
    for keywords in ({"softcap": 1.5}, {"alibi_slopes": slopes}, {"sinks": sinks}):
        semantics = Semantics(causal=True, **keywords)  # type: ignore[arg-type]
        assert_near_truth(attend(asked, causal=True, **keywords), asked, semantics)
    assert len(served) == 3
    for keywords in ({"top_left": True}, {"window_size": (50, 0)}):
        attend(asked, causal=True, **keywords)
    assert len(served) == 3


def test_rows_strides_and_results_may_be_any_that_the_forward_takes() -> None:
    asked = few(4, d_head=40, d_v=24)
    wide = torch.full((2, 4, 4, 64), 7.0).bfloat16()
    k = asked.k.transpose(1, 2).contiguous().transpose(1, 2)
    o, lse = flashsmith.attention(
        asked.q, k, asked.v, causal=True, out=wide[..., 8:32], return_lse=True
    )
    assert_near_truth((o, lse), asked, Semantics(causal=True))
    assert (wide[..., :8] == 7).all()
    assert (wide[..., 32:] == 7).all()


def test_a_call_is_made_again_with_what_it_is_given() -> None:
    first, second, longer = few(), few(), few(3, (KEYS + 64, KEYS + 64))
    for asked in (first, second, first, longer, second, few(1), first):
        assert_near_truth(attend(asked, causal=True), asked, Semantics(causal=True))


@pytest.mark.parametrize("name", ["q_scale", "k_scale", "v_scale"])
def test_a_scale_of_16_bits_is_refused_as_by_the_forward(name: str) -> None:
    asked = few()
    for _ in range(2):  # before a call without one is remembered, and after it
        with pytest.raises(ValueError, match=f"{name} was passed, but {name[0]} has 16 bits"):
            attend(asked, **{name: torch.ones(1)})
        attend(asked)


def test_gradients_are_those_of_the_forward() -> None:
    found = []
    for config in (None, FORWARD):
        torch.manual_seed(1)
        asked = few(2, (KEYS,), heads=(2, 1))
        given = [t.requires_grad_() for t in (asked.q, asked.k, asked.v)]
        o = flashsmith.attention(*given, causal=True, config=config)
        found.append(torch.autograd.grad(o.float().square().sum(), given))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "name, words",
    [
        ("v", "v has shape (2, 500, 2, 64), but k has"),
        ("k", "k has stride 2 in its last dimension"),
        ("out", "o shares memory with q"),
    ],
)
def test_errors_name_the_arguments_of_attention(name: str, words: str) -> None:
    asked = few()
    bad = {
        "v": {"v": asked.v[:, :500]},
        "k": {"k": torch.cat([asked.k, asked.k], -1)[..., ::2]},
        "out": {"out": asked.q},
    }[name]
    given: dict[str, Any] = {"q": asked.q, "k": asked.k, "v": asked.v} | bad
    for _ in range(2):
        with pytest.raises(ValueError) as error:
            flashsmith.attention(**given)
        assert words in str(error.value)
        assert "cache" not in str(error.value)
        attend(asked)  # the next call is compared with an accepted one


@pytest.mark.parametrize(
    "keywords",
    [
        {"top_left": True},
        {"bias": torch.zeros(1, 1, 3, KEYS).bfloat16()},
        {"seqused_q": torch.ones(2, dtype=torch.int32)},
    ],
    ids=lambda keywords: next(iter(keywords)),
)
def test_a_configuration_of_decode_is_refused_what_it_lacks(keywords: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="kernels of decode take"):
        attend(few(), config=PLAIN, **keywords)
    attend(few(), **keywords)
