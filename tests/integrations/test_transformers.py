"""Models of transformers with flashsmith's attention, against the same models with their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support.attention import attention_by_reference, replace_attention
from support.models import (
    IDS,
    LENGTH,
    PADDING,
    assert_as_eager,
    hidden,
    low_precision,
    tiny_model,
)

transformers = pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
integration = pytest.importorskip("flashsmith.integrations.transformers")
packing = pytest.importorskip("flashsmith.integrations.packing")
pytestmark = pytest.mark.usefixtures("by_reference", "steps_by_reference")

MODELS = ("bert", "llama", "mistral", "gemma2", "gpt_oss", "modernbert", "t5")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def name() -> str:
    return integration.register()


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def mistral() -> Any:
    return tiny_model("mistral")


@pytest.mark.parametrize("padding", PADDING)
def test_models_compute_what_they_do_with_their_own_attention(
    model: Any, name: str, padding: str
) -> None:
    mask = PADDING[padding]
    used = None if model.config.is_encoder_decoder else mask
    assert_as_eager(model, name, used, input_ids=IDS, attention_mask=mask)


def test_a_mask_of_each_query_and_key_is_taken(llama: Any, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 1, LENGTH, LENGTH, generator=generator) < 0.5
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    with low_precision(llama, torch.float32):
        additive = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        exact = hidden(llama, "eager", input_ids=IDS, attention_mask=additive)
    with low_precision(llama, torch.bfloat16):
        own = hidden(llama, "eager", input_ids=IDS, attention_mask=additive.bfloat16())
        for given in (mask, additive.bfloat16()):
            ours = hidden(llama, name, input_ids=IDS, attention_mask=given)
            assert (ours - exact).abs().max() <= 2 * (own - exact).abs().max()


# ---- KV caches ----


def step_by_step(model: Any, implementation: str, cache: Any, mask: torch.Tensor) -> torch.Tensor:
    """Returns the hidden states of a prompt of 5 tokens, then of one token after another."""
    parts, done = [], 0
    arguments = {"past_key_values": cache, "use_cache": True}
    for end in (5, *range(6, LENGTH + 1)):
        arguments |= {"input_ids": IDS[:, done:end], "attention_mask": mask[:, :end]}
        parts.append(hidden(model, implementation, **arguments))
        done = end
    return torch.cat(parts, 1)


@pytest.mark.parametrize("padding", ["no padding", "left"])
@pytest.mark.parametrize("kind", [transformers.DynamicCache, transformers.StaticCache])
@pytest.mark.parametrize("decoder", ["llama", "mistral"])
def test_caches(request: Any, name: str, decoder: str, kind: Any, padding: str) -> None:
    """A static cache has rows that no step has written yet."""
    model = request.getfixturevalue(decoder)
    mask = PADDING[padding]
    mask = torch.ones_like(IDS) if mask is None else mask

    def cache() -> Any:
        lengths = {"max_cache_len": 12} if kind is transformers.StaticCache else {}
        return kind(config=model.config, **lengths)

    exact = hidden(model, "eager", input_ids=IDS, attention_mask=mask)
    with low_precision(model, torch.bfloat16):
        own = hidden(model, "eager", input_ids=IDS, attention_mask=mask)
        ours = step_by_step(model, name, cache(), mask)
    error, allowed = (((x - exact) * mask[..., None]).abs().max() for x in (ours, own))
    assert error <= 2 * allowed


def test_a_static_cache_without_a_mask(llama: Any, name: str) -> None:
    cache = transformers.StaticCache(config=llama.config, max_cache_len=20)
    with low_precision(llama, torch.bfloat16):
        own = hidden(llama, "eager", input_ids=IDS)
        ours = hidden(llama, name, input_ids=IDS, past_key_values=cache, use_cache=True)
    torch.testing.assert_close(ours, own, rtol=0, atol=0.15)


# ---- packed sequences ----


@pytest.mark.parametrize("decoder", ["llama", "mistral"])
def test_sequences_that_position_ids_tell_apart(request: Any, name: str, decoder: str) -> None:
    model = request.getfixturevalue(decoder)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6, 7]])
    assert_as_eager(model, name, input_ids=IDS[:2], position_ids=positions, use_cache=False)


def test_sequences_that_cu_seq_lens_tell_apart(llama: Any, name: str) -> None:
    cu_seqlens = torch.tensor([0, 4, LENGTH], dtype=torch.int32)
    packing = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens}
    packing |= {"max_length_q": 5, "max_length_k": 5}
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with low_precision(llama, torch.bfloat16):
        ours = hidden(llama, name, input_ids=IDS[:1], position_ids=positions, **packing)
        for begin, end in ((0, 4), (4, LENGTH)):
            alone = hidden(llama, name, input_ids=IDS[:1, begin:end])
            torch.testing.assert_close(ours[:, begin:end], alone, rtol=0, atol=0.1)


# ---- the masks that are made ----


def calls_of(
    monkeypatch: pytest.MonkeyPatch, model: Any, name: str, **arguments: Any
) -> list[dict[str, Any]]:
    """Returns the keywords of each layer's attention that are not None."""
    calls = []

    def recorded(*tensors: torch.Tensor, **keywords: Any) -> Any:
        calls.append({name: value for name, value in keywords.items() if value is not None})
        return attention_by_reference(*tensors, **keywords)

    replace_attention(monkeypatch, recorded)
    with low_precision(model, torch.bfloat16):
        hidden(model, name, input_ids=IDS, **arguments)
    return calls


@pytest.mark.parametrize(
    ("decoder", "windows"),
    [
        ("llama", [-1, -1]),
        ("qwen3", [-1, -1]),
        ("mistral", [4, 4]),
        ("gemma2", [4, -1]),
        ("gpt_oss", [4, -1]),
    ],
)
def test_no_mask_of_queries_times_keys_is_made_for_what_kernels_know(
    monkeypatch: pytest.MonkeyPatch, name: str, decoder: str, windows: list[int]
) -> None:
    """Without padding, no lengths are passed either. GPT-OSS's masks know no positions."""
    model = tiny_model(decoder)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0, 1]]).expand(3, -1)
    varlen = {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}
    for arguments, lengths in (
        ({}, set()),
        ({"attention_mask": torch.ones_like(IDS)}, set()),
        ({"attention_mask": PADDING["left"]}, varlen),
        (
            {"position_ids": positions, "use_cache": False},
            set() if decoder == "gpt_oss" else varlen,
        ),
    ):
        calls = calls_of(monkeypatch, model, name, **arguments)
        assert [call["causal"] for call in calls] == [True, True]
        assert [call["window_size"] for call in calls] == [(window, 0) for window in windows]
        assert all(call.keys() & (varlen | {"bias"}) == lengths for call in calls)
    if decoder != "gpt_oss":
        begins = calls[0]["cu_seqlens_q"].tolist()
        assert begins == [0, 3, 6, 7, 9, 12, 15, 16, 18, 21, 24, 25, 27]


def test_a_static_cache_is_cut_where_it_was_written(
    monkeypatch: pytest.MonkeyPatch, llama: Any, name: str
) -> None:
    cache = transformers.StaticCache(config=llama.config, max_cache_len=20)
    for _ in range(2):
        calls = calls_of(monkeypatch, llama, name, past_key_values=cache, use_cache=True)
        assert all(call.keys().isdisjoint({"bias", "cu_seqlens_k", "seqused_k"}) for call in calls)


def test_padding_is_looked_for_once_for_all_layers(
    monkeypatch: pytest.MonkeyPatch, llama: Any, name: str
) -> None:
    calls: list[object] = []
    of = packing.Packing.of
    monkeypatch.setattr(packing.Packing, "of", lambda mask: calls.append(mask) or of(mask))
    with low_precision(llama, torch.bfloat16):
        hidden(llama, name, input_ids=IDS, attention_mask=PADDING["left"])
    assert len(calls) == 1


def test_other_masks_are_made_whole(name: str, llama: Any) -> None:
    llama.set_attn_implementation(name)
    mask = transformers.masking_utils.create_causal_mask(
        llama.config, torch.zeros(3, LENGTH, 64), attention_mask=None, past_key_values=None,
        or_mask_function=lambda b, h, q, k: (q < 3) & (k < 3),
    )  # fmt: skip
    expected = torch.ones(LENGTH, LENGTH).tril().bool()
    expected[:3, :3] = True
    assert mask.shape == (3, 1, LENGTH, LENGTH)
    assert torch.equal(mask == 0, expected.expand(3, 1, -1, -1)) and (mask[mask != 0] < -1e30).all()


# ---- torch.compile ----


@pytest.mark.parametrize("padding", PADDING)
def test_a_model_is_one_graph(llama: Any, name: str, padding: str) -> None:
    mask = PADDING[padding]
    torch._dynamo.reset()
    with low_precision(llama, torch.bfloat16):
        expected = hidden(llama, name, input_ids=IDS, attention_mask=mask, use_cache=False)
        compiled = torch.compile(llama, fullgraph=True, backend="aot_eager")
        found = compiled(input_ids=IDS, attention_mask=mask, use_cache=False)
    counts = torch.ones_like(IDS) if mask is None else mask
    difference = (found.last_hidden_state.float() - expected) * counts[..., None]
    assert difference.abs().max() < 0.1


def test_windows_in_a_graph_need_no_mask(
    monkeypatch: pytest.MonkeyPatch, mistral: Any, name: str
) -> None:
    given = []

    def recorded(*tensors: torch.Tensor, **keywords: Any) -> Any:
        given.append((keywords.get("window_size"), keywords.get("bias")))
        return attention_by_reference(*tensors, **keywords)

    torch._dynamo.reset()
    with low_precision(mistral, torch.bfloat16):
        expected = hidden(mistral, name, input_ids=IDS)
        replace_attention(monkeypatch, recorded)
        compiled = torch.compile(mistral, fullgraph=True, backend="aot_eager")
        found = compiled(input_ids=IDS).last_hidden_state.float()
    assert given == [((4, 0), None)] * 2
    assert (found - expected).abs().max() < 0.1


# ---- what is refused ----


def layer_arguments(**changes: Any) -> dict[str, Any]:
    q = torch.zeros(1, 2, 3, 16, dtype=torch.float16)
    return {
        "module": torch.nn.Module(), "query": q, "key": q, "value": q, "attention_mask": None,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dropout": 1}, ValueError, r"dropout is 1; expected a number from 0 to below 1"),
        ({"dropout": "0"}, TypeError, "dropout is '0'; expected a float"),
        ({"dropout": 2.0}, ValueError, r"dropout is 2\.0; expected a number from 0 to below 1"),
        ({"cache": object()}, NotImplementedError, "cache is given; a paged cache"),
    ],
)
def test_a_layer_refuses(changes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        integration.attention_forward(**layer_arguments(**changes))


def test_a_name_that_transformers_takes_for_another_is_refused() -> None:
    with pytest.raises(ValueError, match=r"name is 'flashsmith'; expected one without 'flash'"):
        integration.register("flashsmith")
    with pytest.raises(TypeError, match="name is a NoneType; expected a str"):
        integration.register(None)  # type: ignore[arg-type]


def test_sinks_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def recorded(q: torch.Tensor, k: Any, v: Any, **keywords: Any) -> torch.Tensor:
        given.update(keywords)
        return q

    replace_attention(monkeypatch, recorded)
    integration.attention_forward(**layer_arguments(s_aux=torch.ones(2).half()))
    assert given["sinks"].dtype == torch.float32 and given["sinks"].tolist() == [1, 1]
