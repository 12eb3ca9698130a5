"""The shapes of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from flashsmith.configs import DType, ForwardVariant

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_TENSORS = 4  # q, k, v and o


@dataclass(frozen=True)
class Problem:
    """Self-attention of one shape: q, k, v and o are (batch, seq_len, heads, d_head)."""

    dtype: DType
    d_head: int
    mask: str  # a ForwardVariant's name
    batch: int
    heads: int
    seq_len: int

    def __str__(self) -> str:
        return (
            f"{self.dtype} d {self.d_head} {self.mask} {self.batch} x {self.heads} x {self.seq_len}"
        )

    @property
    def variant(self) -> ForwardVariant:
        return ForwardVariant.from_name(self.mask)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_len, self.heads, self.d_head

    @property
    def flop(self) -> float:
        """Of the two matrix products; a causal mask leaves half of them."""
        full = 4 * self.batch * self.heads * self.seq_len**2 * self.d_head
        return full / 2 if self.variant.causal else full

    @property
    def intensity(self) -> float:
        """FLOP for each byte of DRAM traffic, if q, k, v and o are moved once."""
        elements = self.batch * self.heads * self.seq_len * self.d_head
        return self.flop / (_TENSORS * elements * self.dtype.to_torch_dtype().itemsize)

    def tflops(self, milliseconds: float) -> float:
        return self.flop / milliseconds / 1e9

    def make_qkv(self, device: str, seed: int = 0) -> QKV:
        """Normally distributed q, k and v."""
        generator = torch.Generator(device).manual_seed(seed)
        dtype = self.dtype.to_torch_dtype()
        q, k, v = (
            torch.randn(self.shape, generator=generator, device=device, dtype=dtype) for _ in "qkv"
        )
        return q, k, v


def make_grid(
    dtypes: Iterable[DType],
    d_heads: Iterable[int],
    masks: Iterable[str],
    seq_lens: Sequence[int],
    *,
    tokens: int,
    hidden: int,
    batch: int | None = None,
    heads: int | None = None,
) -> list[Problem]:
    """Every combination, with tokens / seq_len samples (at least 1) of hidden / d_head heads.

    So all shapes have as many tokens, and all head dimensions as large a model; ``batch`` stands in
    place of ``tokens``, ``heads`` in place of ``hidden``.

    Raises:
        ValueError: A mask is not known, ``hidden`` is no multiple of a head dimension.
    """
    problems = []
    for dtype, d_head, mask, seq_len in product(dtypes, d_heads, masks, seq_lens):
        ForwardVariant.from_name(mask)
        if heads is None and hidden % d_head != 0:
            raise ValueError(
                f"hidden is {hidden}, no multiple of d_head {d_head}; it is the number of heads "
                "times d_head: choose --hidden, or --heads in its place"
            )
        samples = batch or max(1, tokens // seq_len)
        problems.append(Problem(dtype, d_head, mask, samples, heads or hidden // d_head, seq_len))
    return list(dict.fromkeys(problems))
