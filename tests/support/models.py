"""Makes tiny models of transformers with random weights; each has a special kind of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# The error of a gradient in float16, relative to its own size and, as some should be 0, to all.
_OF_OWN, _OF_ALL = 4e-3, 1e-5

# These are the inputs of the models.
LENGTH = 9
PADDING = {
    "no padding": None,
    "right": torch.tensor([[1] * 9, [1] * 4 + [0] * 5, [1] * 7 + [0] * 2]),
    "left": torch.tensor([[1] * 9, [0] * 5 + [1] * 4, [0] * 2 + [1] * 7]),
    "gaps": torch.tensor([[1] * 9, [1] + [0] * 5 + [1] * 3, [0, 1, 1, 0, 0, 0, 1, 1, 1]]),
}
IDS = torch.randint(3, 60, (3, LENGTH), generator=torch.Generator().manual_seed(0))

_SIZES = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_DECODER = _SIZES | {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _config(name: str) -> Any:
    import transformers as t

    return {
        "bert": lambda: t.BertConfig(**_SIZES),
        "llama": lambda: t.LlamaConfig(**_DECODER),
        "qwen3": lambda: t.Qwen3Config(**_DECODER),
        "mistral": lambda: t.MistralConfig(**_DECODER, sliding_window=5),
        "gemma2": lambda: t.Gemma2Config(
            **_DECODER, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
        ),
        "gpt_oss": lambda: t.GptOssConfig(
            **_DECODER, sliding_window=5, num_local_experts=2, num_experts_per_tok=2
        ),
        "modernbert": lambda: t.ModernBertConfig(
            **_SIZES, local_attention=6, pad_token_id=0, cls_token_id=1, sep_token_id=2
        ),
        "t5": lambda: t.T5Config(
            vocab_size=60,
            d_model=64,
            d_kv=16,
            d_ff=32,
            num_layers=2,
            num_heads=4,
            pad_token_id=0,
            decoder_start_token_id=0,
        ),
    }[name]()


def tiny_model(name: str) -> Any:
    """Returns a model in float32 whose weights are large enough for attention to be far from
    uniform.

    T5 does not scale its scores, so its weights are smaller.
    """
    import transformers as t

    torch.manual_seed(0)
    config = _config(name)
    config._attn_implementation = "eager"
    model = t.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("sinks"):
                parameter.normal_(0, 2)
            elif parameter.ndim > 1:
                parameter.normal_(0, 0.1 if name == "t5" else 0.2)
    return model


@contextmanager
def low_precision(model: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Yields the model with rounded weights, and restores its own afterwards."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        yield model.to(dtype)
    finally:
        model.float().load_state_dict(weights)


def hidden(model: Any, implementation: str, **arguments: Any) -> torch.Tensor:
    """Returns the last hidden states in float32."""
    model.set_attn_implementation(implementation)
    if model.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = arguments["input_ids"].flip(0)[:, :6]
    return model(**arguments).last_hidden_state.float()


def each_way(
    model: Any, name: str, dtype: torch.dtype, **arguments: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns hidden states in float32, and in low precision with eager attention and with ours."""
    exact = hidden(model, "eager", **arguments)
    with low_precision(model, dtype):
        return exact, hidden(model, "eager", **arguments), hidden(model, name, **arguments)


def assert_as_eager(
    model: Any,
    name: str,
    used: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    **arguments: Any,
) -> None:
    """Asserts that errors against float32 are at most twice those of eager attention in ``dtype``.

    used: (batch, seq_len), not zero where the result counts.
    """
    exact, own, ours = each_way(model, name, dtype, **arguments)
    counts = torch.ones_like(exact[..., 0]) if used is None else used
    error, allowed = (((x - exact) * counts[..., None]).abs().max() for x in (ours, own))
    assert 0 < error <= 2 * allowed < exact.abs().max() / 4


def assert_gradients_as_eager(
    model: Any, name: str, used: torch.Tensor | None = None, **arguments: Any
) -> None:
    """Compares the parameters' gradients of a random weighting of the hidden states that count: in
    float16, each error is at most twice that of eager attention, beside rounding."""
    weights = torch.randn(*IDS.shape, model.config.hidden_size, device=model.device) / 100
    if used is not None:
        weights *= used[..., None]
    exact = _gradients(model, "eager", weights, **arguments)
    with low_precision(model, torch.float16):
        own, ours = (_gradients(model, each, weights, **arguments) for each in ("eager", name))
    assert exact.keys() == ours.keys() == own.keys()
    of_ours, of_own = ({n: (each[n] - t).norm() for n, t in exact.items()} for each in (ours, own))
    size = torch.stack([t.norm() for t in exact.values()]).norm()
    for n, t in exact.items():
        allowed = 2 * of_own[n] + _OF_OWN * t.norm() + _OF_ALL * size
        assert of_ours[n] <= allowed, f"{n}: {of_ours[n]:.3g}, allowed {allowed:.3g}"


def _gradients(
    model: Any, implementation: str, weights: torch.Tensor, **arguments: Any
) -> dict[str, torch.Tensor]:
    """Returns the gradients by the names of the parameters that have one."""
    model.zero_grad()
    (hidden(model, implementation, **arguments) * weights).sum().backward()
    return {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
