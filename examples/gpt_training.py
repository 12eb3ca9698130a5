"""Trains a small GPT on packed documents.

    python examples/gpt_training.py --steps 200
    python examples/gpt_training.py --device cpu --steps 4 --layers 1 --length 12 --words 16

The documents are random words, said twice, so that a model learns to look back. Every attention is
one call of ``flashsmith.attention`` over packed rows with their offsets, forward and backward.
``--compare`` trains the same model on torch's plain products, too, and prints both losses; the exit
status is 1 where they differ by more than 1%.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

import flashsmith

# q, k and v, (total, heads, d_head), and where documents begin and end -> o
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Computes causal attention within each document."""
    longest = int(offsets.diff().max())
    return flashsmith.attention(
        q, k, v, causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets,
        max_seqlen_q=longest, max_seqlen_k=longest,
    )  # fmt: skip


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Computes the same, document by document, by torch's matrix products."""
    lengths = offsets.diff().tolist()
    documents = zip(*(t.transpose(0, 1).split(lengths, 1) for t in (q, k, v)), strict=True)
    found = [F.scaled_dot_product_attention(*each, is_causal=True) for each in documents]
    return torch.cat(found, 1).transpose(0, 1)


class Layer(nn.Module):
    def __init__(self, heads: int, d_head: int) -> None:
        super().__init__()
        width = heads * d_head
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.products = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, offsets: torch.Tensor, attend: Attend) -> torch.Tensor:
        rows = self.qkv(self.norms[0](x)).to(torch.bfloat16)  # kernels take 16 bits
        q, k, v = rows.unflatten(-1, (3, self.heads, -1)).unbind(1)  # views: no copy is needed
        x = x + self.out(attend(q, k, v, offsets).flatten(1).to(x.dtype))
        return x + self.products(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.heads * options.d_head
        self.words = nn.Embedding(options.words, width)
        self.positions = nn.Embedding(options.length, width)
        self.layers = nn.ModuleList(
            Layer(options.heads, options.d_head) for _ in range(options.layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, options.words, bias=False)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, offsets: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        x = self.words(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, offsets, attend)
        return self.head(self.norm(x))


def packed(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields tokens, targets, positions and offsets of one step after the other."""
    generator = torch.Generator().manual_seed(options.seed)
    shortest = max(2, options.length // 4)
    while True:
        halves = torch.randint(
            shortest // 2, options.length // 2 + 1, (options.batch,), generator=generator
        )
        documents = []
        for n in halves.tolist():
            drawn = torch.rand(n, generator=generator)
            half = (options.words * drawn**3).long()  # some words are more frequent than others
            documents.append(torch.cat([half, half]))
        lengths = torch.tensor([len(each) for each in documents])
        tokens = torch.cat(documents)
        targets = torch.cat([F.pad(each[1:], (0, 1), value=-100) for each in documents])
        positions = torch.cat([torch.arange(len(each)) for each in documents])
        offsets = F.pad(lengths.cumsum(0), (1, 0)).int()
        yield tuple(t.to(options.device) for t in (tokens, targets, positions, offsets))


def train(options: argparse.Namespace, attend: Attend) -> list[float]:
    """Returns the loss of every step."""
    torch.manual_seed(options.seed)
    model = Gpt(options).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    losses = []
    for _, (tokens, targets, positions, offsets) in zip(
        range(options.steps), packed(options), strict=False
    ):
        logits = model(tokens, positions, offsets, attend)
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compare", action="store_true", help="train on plain products, too")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    sizes = {"steps": 200, "layers": 4, "heads": 6, "d_head": 64, "words": 256, "batch": 16}
    for name, size in (sizes | {"length": 512, "seed": 0}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    losses = train(options, flash)
    print(f"loss of the first step {losses[0]:.4f}, of the last {losses[-1]:.4f}")
    if options.compare:
        expected = train(options, plain)[-1]
        print(f"with plain products          {'':7}of the last {expected:.4f}")
        sys.exit(abs(losses[-1] - expected) > 0.01 * expected)


if __name__ == "__main__":
    main()
