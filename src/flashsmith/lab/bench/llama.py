"""A Llama of transformers with random weights, for benchmarks of whole models."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class LlamaSizes(Protocol):
    """The sizes of a model, and where it is."""

    @property
    def device(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def heads_kv(self) -> int: ...
    @property
    def d_head(self) -> int: ...


def random_llama(sizes: LlamaSizes, **config: Any) -> Any:
    """Returns a LlamaForCausalLM in BF16; torch's seed decides its weights.

    config: Further arguments of LlamaConfig.
    """
    width = sizes.heads * sizes.d_head
    wanted = LlamaConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads_kv,
        head_dim=sizes.d_head,
        initializer_range=width**-0.5,  # so that attention matters
        **config,
    )
    return LlamaForCausalLM(wanted).to(sizes.device, torch.bfloat16)
