"""Models of transformers that are compiled, generate or checkpoint: their masks are made
differently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.attention import attention_by_reference, replace_attention
from support.models import IDS, LENGTH, PADDING, assert_as_eager, hidden, low_precision, tiny_model

transformers = pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
integration = pytest.importorskip("flashsmith.integrations.transformers")
pytestmark = pytest.mark.usefixtures("by_reference", "steps_by_reference")


@pytest.fixture(scope="module")
def name() -> str:
    return integration.register()


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield


@pytest.fixture(scope="module")
def mistral() -> Any:
    return tiny_model("mistral")


@pytest.fixture(scope="module")
def both_ways() -> Any:
    """Returns Mistral as an encoder with a window to either side."""
    model = tiny_model("mistral")
    model.config.is_causal = False
    return model


@pytest.mark.parametrize("padding", PADDING)
def test_a_decoder_that_is_made_an_encoder(both_ways: Any, name: str, padding: str) -> None:
    mask = PADDING[padding]
    with torch.no_grad():
        assert_as_eager(both_ways, name, mask, input_ids=IDS, attention_mask=mask)


# ---- compiled ----


def recorded_bias(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns a list that says of each call of attention whether it has a bias."""
    found = []

    def record(*tensors: torch.Tensor, **keywords: Any) -> Any:
        found.append(keywords.get("bias") is not None)
        return attention_by_reference(*tensors, **keywords)

    replace_attention(monkeypatch, record)
    return found


def compiled_difference(model: Any, name: str, compiled: Any, **arguments: Any) -> float:
    """Returns the largest difference from the same model in eager mode, over the real tokens."""
    with torch.no_grad(), low_precision(model, torch.bfloat16):
        expected = hidden(model, name, input_ids=IDS, **arguments)
        found = compiled(input_ids=IDS, **arguments).last_hidden_state.float()
    counts = arguments.get("attention_mask")
    counts = torch.ones_like(IDS) if counts is None else counts
    return float(((found - expected) * counts[..., None]).abs().max())


def test_an_encoder_with_a_window_is_one_graph_without_a_mask(
    monkeypatch: pytest.MonkeyPatch, both_ways: Any, name: str
) -> None:
    biased = recorded_bias(monkeypatch)
    compiled = torch.compile(both_ways, fullgraph=True, backend="eager")
    assert compiled_difference(both_ways, name, compiled, use_cache=False) < 0.1
    assert not any(biased)
    difference = compiled_difference(
        both_ways, name, compiled, use_cache=False, attention_mask=PADDING["gaps"]
    )
    assert difference < 0.1 and any(biased)


@pytest.mark.parametrize("padding", ["no padding", "left", "gaps"])
def test_layers_are_compiled_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str, padding: str
) -> None:
    """The mask is made outside of the compiled layers."""
    model = tiny_model("mistral")
    expected = tiny_model("mistral")
    mask = PADDING[padding]
    for layer in model.layers:
        layer.compile(fullgraph=True, backend="eager")
    model.set_attn_implementation(name)
    biased = recorded_bias(monkeypatch)
    with torch.no_grad():
        own = hidden(expected.bfloat16(), name, input_ids=IDS, attention_mask=mask)
        biased.clear()
        found = model.bfloat16()(input_ids=IDS, attention_mask=mask).last_hidden_state.float()
    counts = torch.ones_like(IDS) if mask is None else mask
    assert ((found - own) * counts[..., None]).abs().max() < 0.1
    assert any(biased) == (mask is not None)


@pytest.mark.parametrize("where", ["eager", "compiled"])
def test_a_mask_of_4_dimensions_counts_alone_over_a_longer_static_cache(
    mistral: Any, name: str, where: str
) -> None:
    """The window of the layer must not count from the last row of the static cache."""
    mask = torch.full((3, 1, LENGTH, 20), torch.finfo(torch.bfloat16).min)
    mask[..., :LENGTH] = mask[..., :LENGTH].triu(1)
    arguments: dict[str, Any] = {"attention_mask": mask.bfloat16(), "use_cache": True}

    def cache() -> Any:
        return transformers.StaticCache(config=mistral.config, max_cache_len=20)

    window, mistral.config.sliding_window = mistral.config.sliding_window, None
    caches = [cache() for _ in range(2)]
    mistral.config.sliding_window = window
    with torch.no_grad(), low_precision(mistral, torch.bfloat16):
        own = hidden(mistral, "eager", input_ids=IDS, past_key_values=caches[0], **arguments)
        exact = hidden(mistral, name, input_ids=IDS, attention_mask=mask[..., :LENGTH].bfloat16())
        mistral.set_attn_implementation(name)
        call = torch.compile(mistral, backend="eager") if where == "compiled" else mistral
        found = call(input_ids=IDS, past_key_values=caches[1], **arguments)
    assert (found.last_hidden_state.float() - own).abs().max() < 0.1
    assert (exact - own).abs().max() < 0.1


# ---- generation ----


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("decoder", ["llama", "mistral", "gemma2"])
def test_tokens_are_those_of_eager_attention(decoder: str, cache: str | None, name: str) -> None:
    """The prompts have padding on the left; transformers makes masks ahead for static caches."""
    model = tiny_model(decoder)
    causal = getattr(transformers, type(model).__name__.replace("Model", "ForCausalLM"))
    model = causal(model.config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0, 0.2)
    model = model.half()

    def tokens(implementation: str) -> torch.Tensor:
        model.set_attn_implementation(implementation)
        found: torch.Tensor = model.generate(
            IDS,
            attention_mask=PADDING["left"],
            max_new_tokens=8,
            min_new_tokens=8,
            do_sample=False,
            cache_implementation=cache,
        )
        return found

    assert torch.equal(tokens(name), tokens("eager"))


# ---- training ----


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_of_checkpoints_with_padding(name: str, reentrant: bool) -> None:
    model = tiny_model("mistral").half().train()
    model.set_attn_implementation(name)
    weights = torch.randn(*IDS.shape, model.config.hidden_size) * PADDING["gaps"][..., None] / 100

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        states = model(input_ids=IDS, attention_mask=PADDING["gaps"], use_cache=False)
        (states.last_hidden_state.float() * weights).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for found, own in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, own, rtol=0.01, atol=0.01 * float(own.abs().max()))


# ---- keywords that models pass to their attention ----

# attention_forward reads these keywords or refuses them.
_KNOWN = {
    *("attention_mask", "block_indices", "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "indices"),
    *("is_causal", "key", "max_length_k", "max_length_q", "position_bias", "query", "s_aux"),
    *("scaling", "sinks", "sliding_window", "softcap", "value"),
}
# These keywords do not change the result.
_IDLE = {"deterministic", "output_attentions", "position_ids"}


def test_every_keyword_that_a_model_hands_to_its_attention_is_known() -> None:
    folder = Path(transformers.__file__).parent / "models"
    found = set()
    for file in folder.glob("*/modeling_*.py"):
        for call in re.findall(r"attention_interface\(\n(.*?)\n +\)", file.read_text(), re.DOTALL):
            found |= set(re.findall(r"^ +(\w+)=", call, re.MULTILINE))
    assert "scaling" in found and found <= _KNOWN | _IDLE, found - _KNOWN - _IDLE
