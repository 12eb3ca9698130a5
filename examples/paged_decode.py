"""Decodes many requests over one paged KV cache, whose pages go from request to request.

    python examples/paged_decode.py --steps 500
    python examples/paged_decode.py --device cpu --steps 12 --longest-prompt 4 --new 6

One layer of attention stands for a model: queries, keys and values are random. A request joins with
a prompt, which one call of ``flashsmith.decode`` writes to pages and attends to; then every step
appends one token for all requests in one call. A request that has all its tokens leaves, and its
pages serve others. Each result is compared with plain attention in float64 over the keys that the
loop has remembered. The exit status is 1 where an error is larger than ``TOLERANCE``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import flashsmith
from flashsmith.reference import reference_attention

HEADS, HEADS_KV, D_HEAD = 8, 2, 64
TOLERANCE = 2e-2  # of numbers around 1 in BF16


class PagedCache:
    """Pages of keys and values, the list of free pages, and the page table of each slot."""

    def __init__(self, options: argparse.Namespace) -> None:
        longest = options.longest_prompt + options.new
        self.pages_per_slot = -(-longest // options.page_size)
        n_pages = options.requests * self.pages_per_slot
        shape = (n_pages, options.page_size, HEADS_KV, D_HEAD)
        self.k, self.v = torch.zeros(2, *shape, dtype=torch.bfloat16, device=options.device)
        self.free = torch.randperm(n_pages).tolist()
        self.pages: list[list[int]] = [[] for _ in range(options.requests)]
        # Kernels read both on the device, so that a CUDA graph sees their contents at its replay.
        self.table = torch.zeros(
            options.requests, self.pages_per_slot, dtype=torch.int32, device=options.device
        )
        self.lengths = torch.zeros(options.requests, dtype=torch.int32, device=options.device)

    def reserve(self, slot: int, n_rows: int) -> None:
        """Gives a slot the pages that it needs for ``n_rows``."""
        while len(self.pages[slot]) * self.k.shape[1] < n_rows:
            page = self.free.pop()
            self.table[slot, len(self.pages[slot])] = page
            self.pages[slot].append(page)

    def release(self, slot: int) -> None:
        self.free += self.pages[slot]
        self.pages[slot] = []
        self.lengths[slot] = 0


@dataclass
class Request:
    """A request in a slot. ``k`` and ``v`` copy its pages' contents for the comparison."""

    k: torch.Tensor
    v: torch.Tensor
    left: int  # tokens that are still to come


class Loop:
    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.cache = PagedCache(options)
        self.requests: list[Request | None] = [None] * options.requests
        self.error, self.joined, self.tokens = 0.0, 0, 0

    def random_rows(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws q, k and v of new tokens."""
        rows = torch.randn(*shape, HEADS + 2 * HEADS_KV, D_HEAD, device=self.options.device)
        q, k, v = rows.to(torch.bfloat16).split([HEADS, HEADS_KV, HEADS_KV], -2)
        return q.contiguous(), k.contiguous(), v.contiguous()

    def join(self, slot: int) -> None:
        """Writes the keys and values of a prompt to pages, and attends to them causally."""
        n = int(torch.randint(1, self.options.longest_prompt + 1, ()))
        q, k, v = self.random_rows(1, n)
        cache, here = self.cache, slice(slot, slot + 1)
        cache.reserve(slot, n)
        o = flashsmith.decode(
            None, q, cache.k, cache.v, k_new=k, v_new=v, causal=True,
            cache_seqlens=cache.lengths[here], block_table=cache.table[here],
        )  # fmt: skip
        cache.lengths[slot] += n  # decode itself changes no length
        left = int(torch.randint(1, self.options.new + 1, ()))
        self.requests[slot] = Request(k[0], v[0], left)
        self.compare(o[0], q[0], self.requests[slot])
        self.joined += 1

    def step(self) -> None:
        """Decodes one token for every request, in one call."""
        for slot, request in enumerate(self.requests):
            if request is None:
                self.join(slot)
        for slot, request in enumerate(self.requests):
            self.cache.reserve(slot, len(request.k) + 1)
        q, k, v = self.random_rows(len(self.requests), 1)
        o = flashsmith.decode(
            None, q, self.cache.k, self.cache.v, k_new=k, v_new=v, causal=True,
            cache_seqlens=self.cache.lengths, block_table=self.cache.table,
        )  # fmt: skip
        self.cache.lengths += 1
        for slot, request in enumerate(self.requests):
            request.k, request.v = torch.cat([request.k, k[slot]]), torch.cat([request.v, v[slot]])
            self.compare(o[slot], q[slot], request)
            request.left -= 1
            self.tokens += 1
            if not request.left:
                self.cache.release(slot)
                self.requests[slot] = None

    def compare(self, o: torch.Tensor, q: torch.Tensor, request: Request) -> None:
        exact = reference_attention(q[None], request.k[None], request.v[None], causal=True)[0]
        self.error = max(self.error, float((o - exact).abs().max()))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    sizes = {"steps": 500, "requests": 8, "longest_prompt": 200, "new": 50, "page_size": 16}
    for name, size in (sizes | {"seed": 0}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    return parser.parse_args(arguments)


def main() -> None:
    loop = Loop(parse())
    for _ in range(loop.options.steps):
        loop.step()
    print(f"{loop.joined} requests, {loop.tokens} tokens, largest error {loop.error:.1e}")
    sys.exit(loop.error > TOLERANCE)


if __name__ == "__main__":
    main()
