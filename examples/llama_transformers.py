"""Runs a Llama of transformers with flashsmith's attention: a padded batch, and generation.

    python examples/llama_transformers.py --model path/to/llama
    python examples/llama_transformers.py --device cpu

Without ``--model`` the Llama is small and has random weights. Generation starts from a batch of
prompts of several lengths, padded at the left; padding costs nothing, because tokens are packed.
Then the logits of the whole texts are compared with those of eager attention in float32. The exit
status is 1 where the error is more than twice that of eager attention in the same dtype.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from flashsmith.integrations.transformers import register

PAD = 0


def load(options: argparse.Namespace) -> Any:
    """Returns the model, with flashsmith's attention."""
    name, dtype = register(), getattr(torch, options.dtype)
    if options.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=dtype, attn_implementation=name
        )
        return model.to(options.device).eval()
    torch.manual_seed(options.seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, eos_token_id=None,
        pad_token_id=PAD, attn_implementation=name,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)  # far from uniform attention
    return model.to(options.device, dtype)


def padded(lengths: Sequence[int], n_words: int, device: str) -> dict[str, torch.Tensor]:
    """Returns random prompts, padded at the left for generation."""
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), PAD)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        ids[row, longest - n :] = torch.randint(1, n_words, (n,))
        mask[row, longest - n :] = 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


@torch.no_grad()
def logits_of(model: Any, implementation: str, texts: dict[str, torch.Tensor]) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    return model(**texts, use_cache=False).logits.float()


def errors(model: Any, texts: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Returns the largest error of a logit with flashsmith's attention and with eager attention,
    relative to the model in float32; padding does not count."""
    ours, eager = (logits_of(model, name, texts) for name in (register(), "eager"))
    exact = logits_of(model.float(), "eager", texts)
    counts = texts["attention_mask"][..., None]
    found, allowed = (float(((each - exact) * counts).abs().max()) for each in (ours, eager))
    return found, allowed


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a folder or a name that from_pretrained takes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--lengths", type=int, nargs="+", default=[9, 4, 7], help="of prompts")
    parser.add_argument("--new", type=int, default=6, help="tokens that are generated")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    model = load(options)
    prompts = padded(options.lengths, model.config.vocab_size, options.device)
    texts = model.generate(
        **prompts, max_new_tokens=options.new, min_new_tokens=options.new, do_sample=False
    )
    for text in texts[:, prompts["input_ids"].shape[1] :].tolist():
        print("generated", text)
    new = torch.ones_like(texts[:, prompts["input_ids"].shape[1] :])
    mask = torch.cat([prompts["attention_mask"], new], 1)
    found, allowed = errors(model, {"input_ids": texts, "attention_mask": mask})
    print(f"largest error of a logit {found:.2e}, with eager attention {allowed:.2e}")
    sys.exit(found > 2 * allowed)


if __name__ == "__main__":
    main()
