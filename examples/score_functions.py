"""Attends with a caller's score and mask functions, and compares with plain torch.

    python examples/score_functions.py --seq-len 8192
    python examples/score_functions.py --device cpu --seq-len 96 --heads 2

The mask shows a query the keys of its own document within a window; the score has a bias by
distance for each head, read from a captured tensor. A block mask, made of the same mask function,
lets kernels skip blocks of keys that no query sees. The script prints the largest errors of o and
of the gradients. The exit status is 1 if one is more than twice that of the same computation in
plain torch in the same dtype.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

import flashsmith

Tensors = list[torch.Tensor]


def documents(seq_len: int, device: str) -> torch.Tensor:
    """Returns the document of each position: four of different lengths."""
    ends = torch.tensor([seq_len // 8, seq_len // 3, seq_len // 2], device=device)
    return torch.bucketize(torch.arange(seq_len, device=device), ends, right=True).int()


class Functions:
    """The two functions, with their captured tensors, which each call reads anew."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.slopes = 2.0 ** -torch.arange(1, options.heads + 1, device=options.device).float()
        self.document = documents(options.seq_len, options.device)
        self.window = options.window  # a number, which is compiled into the kernel

    def score(self, score, b, h, q_idx, kv_idx):
        return score - self.slopes[h] * (q_idx - kv_idx).abs()

    def mask(self, b, h, q_idx, kv_idx):
        near = (q_idx >= kv_idx) & (q_idx - kv_idx < self.window)
        return near & (self.document[q_idx] == self.document[kv_idx])


def ours(tensors: Tensors, functions: Functions) -> torch.Tensor:
    seq_len = tensors[0].shape[1]
    blocks = flashsmith.create_block_mask(
        functions.mask, None, None, seq_len, seq_len, device=tensors[0].device
    )
    return flashsmith.attention(
        *tensors, score_mod=functions.score, mask_mod=functions.mask, block_mask=blocks
    )


def plain(tensors: Tensors, functions: Functions) -> torch.Tensor:
    """Computes the same by torch's matrix products, in the dtype of the tensors."""
    q, k, v = (t.transpose(1, 2) for t in tensors)
    at = torch.arange(q.shape[2], device=q.device)
    heads = torch.arange(q.shape[1], device=q.device)[:, None, None]
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    scores = functions.score(scores, 0, heads, at[:, None], at)
    scores = scores.masked_fill(~functions.mask(0, heads, at[:, None], at), float("-inf"))
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2)


def results(attend, tensors: Tensors, functions: Functions, do: torch.Tensor) -> Tensors:
    """Returns o, dq, dk and dv."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    o = attend(leaves, functions)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name, size in {"seq_len": 4096, "heads": 8, "d_head": 64, "window": 64, "seed": 0}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    shape = (1, options.seq_len, options.heads, options.d_head)
    *tensors, do = torch.randn(4, *shape, device=options.device, dtype=torch.bfloat16)
    functions = Functions(options)
    exact = results(plain, [t.double() for t in tensors], functions, do)
    found, low = (results(attend, tensors, functions, do) for attend in (ours, plain))
    is_right = True
    for name, truth, own, torchs in zip(("o", "dq", "dk", "dv"), exact, found, low, strict=True):
        error, allowed = (float((each - truth).abs().max()) for each in (own, torchs))
        print(f"{name:2} largest error {error:.1e}, plain torch {allowed:.1e}")
        is_right &= error <= 2 * allowed
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
