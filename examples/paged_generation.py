"""Generates text of many requests at once over transformers' paged cache, with its FlashAttention.

    python examples/paged_generation.py --steps 2000
    python examples/paged_generation.py --device cpu --steps 20 --d-model 64 --max-new 12

Requests of a small Llama with random weights join while others run, are read in chunks, fork into
copies that share pages, and leave when they have all their tokens. flashsmith replaces flash_attn:
flash_attn_with_kvcache appends to pages and reads them in steps in which every request has one
query; flash_attn_varlen_func serves the other steps, for which transformers itself copies keys out
of pages. With --sample --copies 2, requests fork, and the copies diverge.

Each token is then looked up in the same model run over the whole text at once, with eager attention
in float32 and in the dtype of the generation. The script prints the largest errors of the tokens'
log-probabilities and, without --sample, how many tokens are the first choice of float32. The exit
status is 1 if the error is more than twice that of eager attention, or, without --sample, if a
token's log-probability is below the first choice's by more than four times eager attention's error.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

import flashsmith

VOCABULARY = 512
LONGEST_PROMPT = 100
D_HEAD = 64
HEADS_THAT_SHARE = 2


@dataclass(frozen=True)
class Text:
    """Holds the text of a request that has left.

    Attributes:
        log_probabilities: The tokens' log-probabilities as they were generated.
    """

    prompt: list[int]
    tokens: list[int]
    log_probabilities: list[float]


@dataclass(frozen=True)
class Comparison:
    """Compares all tokens with the model in float32.

    Attributes:
        error: The largest error of a log-probability.
        eager_error: The same with eager attention in the dtype of the texts.
        n_chosen: Number of tokens that are the first choice of float32.
        n_tokens: Number of all tokens.
        loss: The largest difference between the log-probabilities of the first choice and a token.
    """

    error: float
    eager_error: float
    n_chosen: int
    n_tokens: int
    loss: float

    def is_right(self, greedy: bool) -> bool:
        """Returns whether the errors are small: each of two logits may be off by twice eager's."""
        near = self.error <= 2 * self.eager_error
        return near and (not greedy or self.loss <= 4 * self.eager_error)


def random_model(options: argparse.Namespace) -> Any:
    """Returns a model whose weights are large enough for attention to be far from uniform."""
    import transformers

    torch.manual_seed(options.seed)
    n_heads = options.d_model // D_HEAD * HEADS_THAT_SHARE
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.d_model, intermediate_size=2 * options.d_model,
        num_hidden_layers=options.layers, num_attention_heads=n_heads, head_dim=D_HEAD,
        num_key_value_heads=n_heads // HEADS_THAT_SHARE, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 * options.d_model**-0.5)
    return model.to(options.device, getattr(torch, options.dtype))


def have_flash_attention_on_the_cpu() -> None:
    """Makes transformers use FlashAttention and pages, which it otherwise does on GPUs alone."""
    from transformers.generation.continuous_batching import initialization
    from transformers.utils import import_utils

    import_utils.is_torch_cuda_available = lambda: True
    initialization.is_torch_xpu_available = lambda: True


def serve(model: Any, options: argparse.Namespace) -> tuple[list[Text], int]:
    """Returns the texts of all requests, and the number of steps that the model took."""
    model.config._attn_implementation = "flash_attention_2"
    choose = torch.Generator().manual_seed(options.seed)
    texts: list[Text] = []
    running = 0
    with model.continuous_batching_context_manager(**configurations(options)) as manager:
        wait_for_the_first_step(manager)
        while True:
            steps = getattr(manager, "current_batch", 0)
            while running < options.requests * options.copies and steps < options.steps:
                length, new = (
                    int(torch.randint(1, maximum + 1, (), generator=choose))
                    for maximum in (LONGEST_PROMPT, options.max_new)
                )
                prompt = torch.randint(VOCABULARY, (length,), generator=choose).tolist()
                manager.add_request(prompt, max_new_tokens=new)
                running += options.copies
            if not running:
                return texts, steps
            result = manager.get_result(timeout=1)
            if result is not None and result.error is None:
                texts.append(Text(result.prompt_ids, result.generated_tokens, result.logprobs))
                running -= 1
            elif result is not None or not manager.is_running():
                raise RuntimeError(f"generation failed: {result and result.error}")


def wait_for_the_first_step(manager: Any) -> None:
    """Lets no request join before transformers' thread has filled the tensors of a step.

    The thread fills them on the default stream and copies a step's numbers into them on another
    one, and nothing orders the two streams (transformers 5.17 to 5.24): on a GPU with other users,
    the first step would write its keys into no page, whichever kernel computes attention.
    """
    # The thread sets current_batch after it has filled the tensors.
    while not hasattr(manager, "current_batch") and manager.is_running():
        time.sleep(0.01)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def configurations(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of the generation and of its pages, whose number suffices for all
    concurrent requests."""
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    names = {field.name for field in fields(ContinuousBatchingConfig)}
    size_name = "page_size" if "page_size" in names else "block_size"  # before transformers 5.18
    pages = -(-(LONGEST_PROMPT + options.max_new) // options.page_size) + 1
    at_a_time = options.requests * options.copies
    return {
        "generation_config": transformers.GenerationConfig(
            do_sample=options.sample, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1,
            num_return_sequences=options.copies, max_new_tokens=options.max_new,
        ),
        "continuous_batching_config": ContinuousBatchingConfig(
            **{size_name: options.page_size}, num_blocks=at_a_time * pages,
            max_blocks_per_request=pages, max_requests_per_batch=at_a_time,
            max_batch_tokens=max(64, at_a_time), return_logprobs=True, seed=options.seed,
        ),
        "warmup": options.device == "cuda",
    }  # fmt: skip


@torch.no_grad()
def compared(model: Any, texts: Sequence[Text]) -> Comparison:
    model.set_attn_implementation("eager")
    exact_model = copy.deepcopy(model).float()
    errors, eager_errors, losses = [], [], []
    for text in texts:
        exact, eager = (log_probabilities(each, text) for each in (exact_model, model))
        tokens = torch.tensor(text.tokens, device=exact.device)[:, None]
        own = exact.gather(1, tokens)[:, 0]
        errors.append(torch.tensor(text.log_probabilities, device=own.device) - own)
        eager_errors.append(eager.gather(1, tokens)[:, 0] - own)
        losses.append(exact.amax(1) - own)
    error, eager_error, loss = map(torch.cat, (errors, eager_errors, losses))
    return Comparison(
        error=float(error.abs().max()),
        eager_error=float(eager_error.abs().max()),
        n_chosen=int((loss == 0).sum()),
        n_tokens=loss.numel(),
        loss=float(loss.max()),
    )


def log_probabilities(model: Any, text: Text) -> torch.Tensor:
    """Returns (n_tokens, VOCABULARY), float32: log-probabilities given all earlier tokens."""
    ids = torch.tensor([text.prompt + text.tokens], device=model.device)
    logits = model(ids[:, :-1], use_cache=False).logits[0, len(text.prompt) - 1 :]
    return logits.float().log_softmax(-1)


def lines(texts: Sequence[Text], steps: int, found: Comparison, greedy: bool) -> Iterator[str]:
    yield f"{steps} steps, {len(texts)} texts, {found.n_tokens} tokens"
    yield f"largest error of a log-probability: {found.error:.2e}"
    yield f"with eager attention:               {found.eager_error:.2e}"
    if greedy:
        yield f"{found.n_chosen} tokens are the first choice of float32"
        yield f"others lose at most:                {found.loss:.2e}"
    yield "right" if found.is_right(greedy) else "WRONG"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=2000, help="until no more requests join")
    parser.add_argument("--requests", type=int, default=8, help="that run at a time")
    parser.add_argument("--copies", type=int, default=1, help="of each request, that it forks into")
    parser.add_argument("--sample", action="store_true", help="tokens at random, not the first")
    parser.add_argument("--max-new", type=int, default=200, help="tokens that a request asks for")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.copies > 1 and not options.sample:
        parser.error("--copies needs --sample: transformers forks no request of first choices")
    return options


def main() -> None:
    options = parse()
    flashsmith.install_as_flash_attn()  # must precede any import of transformers
    if options.device == "cpu":
        have_flash_attention_on_the_cpu()
    model = random_model(options)
    texts, steps = serve(model, options)
    found = compared(model, texts)
    print(*lines(texts, steps, found, not options.sample), sep="\n")
    sys.exit(not found.is_right(not options.sample))


if __name__ == "__main__":
    main()
