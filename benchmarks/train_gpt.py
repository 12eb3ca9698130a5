"""Trains one small GPT with our attention and with torch's, on the same tokens, and keeps losses.

    python benchmarks/train_gpt.py --out benchmarks/results/h200/2026-01-01

The text is an artificial language: words follow a fixed table, and every sentence repeats its first
half, which a model learns by looking back. Each attention trains once for every seed, which orders
the text: a difference between attentions is judged by the difference between seeds. All runs begin
with the same weights. Writes train_gpt.csv, one row a step, and train_gpt_environment.json; prints
the mean loss of the last steps of each run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashsmith
from flashsmith.lab.bench.rows_file import make_parser, recorded, write_stamp

COLUMNS = ("attention", "seed", "step", "loss", "seconds")
LAST = 20  # the number of last steps whose mean loss is a run's result
_TABLE_SEED, _WEIGHTS_SEED = 7, 11
_FOLLOWERS = 4  # words that may follow a word


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and a step's text; the defaults have about ten million parameters."""

    layers: int = 6
    heads: int = 6
    d_head: int = 64
    words: int = 512
    batch: int = 16
    length: int = 1024
    learning_rate: float = 1e-3

    @property
    def width(self) -> int:
        return self.heads * self.d_head


class Text(NamedTuple):
    """Packed sentences: token i + 1 is to be predicted from the tokens up to i.

    lengths: The sentences' lengths; if they are equal, the sentences form a batch.
    """

    tokens: torch.Tensor  # (total,)
    targets: torch.Tensor
    lengths: list[int]

    @property
    def offsets(self) -> torch.Tensor:
        """The offsets of the sentences, int32: cu_seqlens of packed sequences."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        return ends.int().to(self.tokens.device)


def text_of(sizes: Sizes, seed: int, device: str, *, varlen: bool = False) -> Iterator[Text]:
    """Yields text without end. varlen: Sentences are varlen, up to ``sizes.length``."""
    table_generator = torch.Generator().manual_seed(_TABLE_SEED)
    table = torch.randint(sizes.words, (sizes.words, _FOLLOWERS), generator=table_generator)
    generator = torch.Generator().manual_seed(seed)
    while True:
        half = torch.randint(sizes.words, (sizes.batch, 1), generator=generator)
        for _ in range(sizes.length // 2):
            choice = torch.randint(_FOLLOWERS, (sizes.batch, 1), generator=generator)
            half = torch.cat([half, table[half[:, -1:], choice[:, :, None]][:, 0]], 1)
        said = torch.cat([half, half], 1)[:, : sizes.length + 1]
        lengths = [sizes.length] * sizes.batch
        if varlen:
            drawn = torch.randint(1, sizes.length + 1, (sizes.batch,), generator=generator)
            lengths = drawn.tolist()
        parts = [(row[:n], row[1 : n + 1]) for row, n in zip(said, lengths, strict=True)]
        tokens, targets = (torch.cat(each).to(device) for each in zip(*parts, strict=True))
        yield Text(tokens, targets, lengths)


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Text], torch.Tensor]


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, text: Text) -> torch.Tensor:
    """Returns causal attention of each sentence of packed rows, (total, heads, d_head)."""
    if len(set(text.lengths)) == 1:
        q, k, v = (t.unflatten(0, (len(text.lengths), -1)) for t in (q, k, v))
        o = flashsmith.attention(q, k, v, causal=True)
        return o.flatten(0, 1)
    longest = max(text.lengths)
    return flashsmith.attention(
        q, k, v, causal=True, cu_seqlens_q=text.offsets, cu_seqlens_k=text.offsets,
        max_seqlen_q=longest, max_seqlen_k=longest,
    )  # fmt: skip


def sdpa_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, text: Text) -> torch.Tensor:
    """Returns causal attention of each sentence by torch's plain matrix products."""
    if len(set(text.lengths)) == 1:
        batches = [[t.unflatten(0, (len(text.lengths), -1)) for t in (q, k, v)]]
    else:
        sentences = (t.split(text.lengths) for t in (q, k, v))
        batches = [[t[None] for t in each] for each in zip(*sentences, strict=True)]
    found = []
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            heads_first = [t.transpose(1, 2) for t in batch]
            o = functional.scaled_dot_product_attention(*heads_first, is_causal=True)
            found.append(o.transpose(1, 2).flatten(0, 1))
    return torch.cat(found)


ATTENTIONS: dict[str, Attend] = {"flashsmith": ours, "sdpa_math": sdpa_math}


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.sizes = sizes
        self.before_attention, self.before_products = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.products = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, text: Text, attend: Attend) -> torch.Tensor:
        rows = self.qkv(self.before_attention(x)).to(torch.bfloat16)
        q, k, v = rows.unflatten(-1, (3, self.sizes.heads, self.sizes.d_head)).unbind(1)
        x = x + self.out(attend(q, k, v, text).flatten(1).to(x.dtype))
        return x + self.products(self.before_products(x))


class Gpt(nn.Module):
    """A GPT whose attention is in BF16, and all other products in TF32 or float32."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.positions = nn.Embedding(sizes.length, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, text: Text, attend: Attend) -> torch.Tensor:
        """Returns the mean loss over all words."""
        positions = torch.cat([torch.arange(n) for n in text.lengths]).to(text.tokens.device)
        x = self.words(text.tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, text, attend)
        return functional.cross_entropy(self.head(self.last(x)), text.targets)


def train(
    sizes: Sizes, attend: Attend, seed: int, steps: int, device: str, *, varlen: bool = False
) -> list[tuple[float, float]]:
    """Returns the loss and the seconds of every step."""
    torch.manual_seed(_WEIGHTS_SEED)
    model = Gpt(sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, weight_decay=0.1)
    text, found = text_of(sizes, seed, device, varlen=varlen), []
    for _ in range(steps):
        given = next(text)
        started = time.monotonic()
        loss = model(given, attend)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append((loss.item(), time.monotonic() - started))  # item() waits for the GPU
    return found


def final_loss(losses: list[float]) -> float:
    return statistics.mean(losses[-LAST:])


def main(words: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", default="0,1", help="comma-separated, of the order of the text")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu: the emulator, tiny sizes")
    for name, size in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(size), default=size)
    arguments = parser.parse_args(words)
    sizes = Sizes(**{name: getattr(arguments, name) for name in vars(Sizes())})
    torch.set_float32_matmul_precision("high")
    path = arguments.out / "train_gpt.csv"
    write_stamp(path, arguments.device, sizes=vars(sizes))
    print(f"{sum(p.numel() for p in Gpt(sizes).parameters()) / 1e6:.1f} million parameters")

    def rows() -> Iterator[dict[str, object]]:
        for name, seed in product(ATTENTIONS, map(int, arguments.seeds.split(","))):
            steps = train(sizes, ATTENTIONS[name], seed, arguments.steps, arguments.device)
            for step, (loss, seconds) in enumerate(steps):
                row = (name, seed, step, f"{loss:.6f}", f"{seconds:.4f}")
                yield dict(zip(COLUMNS, row, strict=True))
            median = statistics.median(seconds for _, seconds in steps)
            loss = final_loss([loss for loss, _ in steps])
            print(f"{name}, seed {seed}: loss {loss:.4f}, {1000 * median:.1f} ms a step")

    for _ in recorded(path, COLUMNS, rows()):
        pass


if __name__ == "__main__":
    main()
