"""A step of generation has a few queries, and keys with padding on the left, which decode reads in
place."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")

from flashsmith.integrations import heads, transformers_calls
from flashsmith.integrations import transformers as integration
from flashsmith.integrations.lazy_mask import LazyMask
from flashsmith.reference import reference_varlen
from support.models import tiny_model

MODULE = torch.nn.Module()


def left(pads: list[int], keys: int) -> torch.Tensor:
    return torch.arange(keys) >= torch.tensor(pads)[:, None]


def step_mask(tokens: torch.Tensor, queries: int, behind: int | None = None) -> LazyMask:
    batch, keys = tokens.shape
    return LazyMask(
        batch, queries, keys, offset=keys - queries, behind=behind, ahead=0, tokens=tokens
    )


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def truth(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor, **semantics: Any
) -> torch.Tensor:
    """Returns the reference in float64 for tensors (batch, heads, seq_len, d_head)."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    seen = lambda b, h, i, j: tokens[b.long(), j.long()]  # noqa: E731
    return reference_varlen(q, k, v, causal=True, mask_mod=seen, **semantics)[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_step_over_padding_on_the_left_is_right(seed: int) -> None:
    """The test draws pads up to the last key, windows, softcaps, sinks, heads and strides."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    batch, heads_kv, queries = draw.choice([1, 3]), draw.choice([1, 2]), draw.choice([1, 1, 3])
    heads, keys, d_head = (
        heads_kv * draw.choice([1, 4]),
        draw.choice([5, 40]),
        draw.choice([20, 64]),
    )
    tokens = left([draw.choice([0, 1, 4, keys - 1, keys]) for _ in range(batch)], keys)
    behind = draw.choice([None, 0, 2, 30])
    softcap, sinks = draw.choice([0.0, 5.0]), draw.choice([None, torch.randn(heads)])
    q, room = rows(batch, heads, queries, d_head), draw.choice([0, 7])
    k, v = (rows(batch, heads_kv, keys + room, d_head)[:, :, :keys] for _ in "kv")
    found, _ = integration.attention_forward(
        MODULE, q, k, v, step_mask(tokens, queries, behind), scaling=0.3, softcap=softcap,
        s_aux=sinks,
    )  # fmt: skip
    window = (-1 if behind is None else behind, -1)
    expected = truth(q, k, v, tokens, softmax_scale=0.3, softcap=softcap, sinks=sinks,
                     window_size=window)  # fmt: skip
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


def test_a_step_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding is read once for all layers that share a mask."""
    monkeypatch.setattr(
        transformers_calls, "_packing_of", lambda *_: pytest.fail("keys were packed")
    )
    q, k, v = rows(2, 4, 1, 64), rows(2, 2, 9, 64), rows(2, 2, 9, 64)
    mask = step_mask(left([3, 0], 9), 1)
    for _ in range(2):
        integration.attention_forward(MODULE, q, k, v, mask)
    assert [key for key in mask._found if key[0] == "left"] == [("left", 9)]


@pytest.mark.parametrize(
    "why", ["a gap", "padding on the right", "a gradient", "dropout", "a prompt", "many rows"]
)
def test_what_decode_cannot_do_is_packed(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = "it was decoded"
    monkeypatch.setattr(transformers_calls, "_decode", lambda *_, **__: pytest.fail(decoded))
    queries = {"a prompt": 9, "many rows": 40}.get(why, 1)
    keys = 60 if why == "many rows" else 9
    tokens = left([3, 0], keys)
    if why == "a gap":
        tokens[0, 5] = False
    if why == "padding on the right":
        tokens[1, -1] = False
    q, k, v = (rows(2, heads, n, 64) for heads, n in ((4, queries), (2, keys), (2, keys)))
    k.requires_grad_(why == "a gradient")
    dropout = 0.25 if why == "dropout" else 0.0
    found, _ = integration.attention_forward(
        MODULE, q, k, v, step_mask(tokens, queries), dropout=dropout
    )
    if why == "a gradient":
        found.sum().backward()
        assert k.grad is not None and k.grad[0, :, :3].eq(0).all() and k.grad[0, :, 3:].ne(0).any()
    elif why != "dropout":
        counts = tokens[:, keys - queries :]
        expected = truth(q, k, v, tokens)
        torch.testing.assert_close(found.double()[counts], expected[counts], rtol=2e-2, atol=2e-2)


def test_llama_generates_over_padding_as_with_eager_attention() -> None:
    model = tiny_model("llama").bfloat16()
    lines = torch.randint(1, 20, (3, 9))
    pads = torch.tensor([0, 4, 7])
    tokens = left(pads.tolist(), 9)
    lines[~tokens] = 0

    def logits(name: str) -> torch.Tensor:
        """Returns the logits of the last layer for each next token, after the same tokens in all
        cases."""
        model.set_attn_implementation(name)
        torch.manual_seed(1)
        seen, mask, past, found = lines, tokens.long(), None, []
        for _ in range(5):
            places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -seen.shape[1] :]
            result = model(seen, attention_mask=mask, position_ids=places, past_key_values=past)
            past = result.past_key_values
            found.append(result.last_hidden_state[:, -1].float())
            seen = torch.randint(1, 20, (3, 1))
            mask = torch.cat([mask, torch.ones(3, 1).long()], 1)
        return torch.stack(found)

    with torch.no_grad():
        expected, ours = logits("eager"), logits(integration.register())
    assert (ours - expected).abs().max() < 0.1


def test_a_step_asks_the_launch_cache_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of the launch cache, since the slow path costs the host twice as much. The
    emulator's calls with free splits are not in the cache, so that a fake answers here."""
    made, asked = rows(2, 1, 4, 64), []

    def as_before(*told: Any) -> Any:
        asked.append(told)
        return made, None, 0.0

    monkeypatch.setattr(heads, "run_as_before", as_before)
    monkeypatch.setattr(heads, "run_decode", lambda *_: pytest.fail("the slower way was taken"))
    q, k, v = rows(2, 4, 1, 64), rows(2, 2, 9, 64), rows(2, 2, 9, 64)
    mask = step_mask(left([0, 4], 9), 1)
    found, _ = integration.attention_forward(MODULE, q, k, v, mask, scaling=0.3)
    assert found is made
    ((config, told_q, out, with_lse, cache, options, others, new),) = asked
    assert config is out is None and not with_lse and new == ()
    assert torch.equal(told_q, q.transpose(1, 2)) and torch.equal(cache[0], k.transpose(1, 2))
    assert cache[5].tolist() == [0, 4] and options == (True, (-1, 0), 0.0, 0, 0.3)
    assert others[:2] == (None, None)
