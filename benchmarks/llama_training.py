"""Measures a training step of a Llama of transformers, by flashsmith's attention and by SDPA.

    python benchmarks/llama_training.py --out benchmarks/results/h200/2026-01-01
    python benchmarks/llama_training.py --small --out build/emulator

The model has random weights; a step is forward, loss and backward, without an optimizer. Both
implementations take steps in turn, after each has warmed up. The gradient of the first layer's
query projection is checked against SDPA's, outside of what is timed. Writes llama_training.csv and
llama_training_environment.json, one row a candidate: the median of the steps' milliseconds, and of
the ratios to SDPA's step of the same turn.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.integrations.transformers import register
from flashsmith.lab.bench.llama import random_llama
from flashsmith.lab.bench.rows_file import make_parser, recorded, write_stamp

SDPA = "sdpa"
COLUMNS = (
    *("candidate", "layers", "heads", "heads_kv", "d_head", "batch", "length"),
    *("ms", "of_sdpa", "error"),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a step."""

    device: str = "cuda"
    layers: int = 8
    heads: int = 8
    heads_kv: int = 2
    d_head: int = 128
    batch: int = 4
    length: int = 1500
    warmup: int = 5
    turns: int = 30


SMALL = Sizes(
    device="cpu", layers=1, heads=2, heads_kv=1, d_head=64, batch=1, length=16, warmup=1, turns=1
)


class Training:
    """One model and one batch of tokens, for steps by any attention implementation."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        torch.manual_seed(0)
        self.model = random_llama(sizes)
        shape = sizes.batch, sizes.length
        self.tokens = torch.randint(1, self.model.config.vocab_size, shape, device=sizes.device)

    def milliseconds_by(self, attention: str) -> float:
        """Returns the milliseconds of one step, from an idle GPU to an idle GPU."""
        self.model.set_attn_implementation(attention)
        self.model.zero_grad(set_to_none=True)
        self._synchronize()
        begin = time.perf_counter()
        self.model(self.tokens, labels=self.tokens, use_cache=False).loss.backward()
        self._synchronize()
        return 1000 * (time.perf_counter() - begin)

    def gradient_by(self, attention: str) -> torch.Tensor:
        self.milliseconds_by(attention)
        gradient = self.model.model.layers[0].self_attn.q_proj.weight.grad
        assert gradient is not None
        return gradient.float()

    def _synchronize(self) -> None:
        if self.sizes.device == "cuda":
            torch.cuda.synchronize()


def measure(sizes: Sizes) -> list[dict[str, Any]]:
    """Returns the rows of both candidates."""
    training, ours = Training(sizes), register()
    candidates = (ours, SDPA)
    for attention in candidates:
        for _ in range(sizes.warmup):
            training.milliseconds_by(attention)
    turns = [
        {name: training.milliseconds_by(name) for name in candidates[:: (-1) ** turn]}
        for turn in range(sizes.turns)
    ]
    expected = training.gradient_by(SDPA)
    return [
        {
            "candidate": "flashsmith" if name == ours else name,
            **{each: getattr(sizes, each) for each in COLUMNS[1:7]},
            "ms": f"{statistics.median(turn[name] for turn in turns):.3f}",
            "of_sdpa": f"{statistics.median(turn[name] / turn[SDPA] for turn in turns):.3f}",
            "error": f"{_error(training.gradient_by(name), expected):.2g}",
        }
        for name in candidates
    ]


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the distance of two gradients, as a share of the norm of the expected one."""
    return ((found - expected).norm() / expected.norm()).item()


def main(words: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--small", action="store_true", help="few tokens, on the emulator")
    arguments = parser.parse_args(words)
    sizes = SMALL if arguments.small else Sizes()
    path = arguments.out / "llama_training.csv"
    write_stamp(path, sizes.device)
    for row in recorded(path, COLUMNS, measure(sizes)):
        print(*(row[name] for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
