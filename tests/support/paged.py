"""Packed queries over keys in pages, for ``flash_attn_varlen_func``, and the check of results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.flash_attn import flash_attn_varlen_func
from flashsmith.lab.soak import truth_of
from flashsmith.reference import Packing, Semantics
from support.decoding import PLAIN, Requests, in_pages, requests

D_HEAD = 64
LENGTHS_K = (40, 0, 1, 33, 70)
MANY, FEW = (9, 3, 1, 33, 130), (2, 3, 1, 0, 4)  # queries a request: gathered pages; decode


@dataclass(frozen=True, eq=False)
class Paged:
    """Packed q of requests, with ``spare`` unused rows before and behind them; their keys in pages,
    and in slots."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    in_a_row: Requests
    n_q: tuple[int, ...]

    def attend(
        self, lengths: tuple[int, ...] = (), **keywords: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns o and lse; ``lengths``: the maximum lengths of q and k."""
        tensors = self.arguments[:5]
        return flash_attn_varlen_func(
            *tensors, *(lengths or self.arguments[5:]), block_table=self.table, return_lse=True,
            **keywords,
        )  # fmt: skip

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of ``flash_attn_varlen_func``."""
        longest = max(self.n_q, default=0), max(self.in_a_row.lengths, default=0)
        return self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k, *longest

    def assert_right(self, o: torch.Tensor, lse: torch.Tensor, **semantics: Any) -> None:
        packing = Packing(cu_seqlens_q=self.cu_seqlens_q, seqused_k=self.in_a_row.seqlens)
        keys = self.in_a_row
        truth = truth_of(self.q, keys.k, keys.v, Semantics(**semantics), packing)
        nobody = torch.ones(len(o), dtype=torch.bool)
        nobody[self.cu_seqlens_q[0] : self.cu_seqlens_q[-1]] = False
        of_o, of_lse = truth.compare(
            o.masked_fill(nobody[:, None, None], math.nan), lse.masked_fill(nobody, math.nan)
        )
        assert of_o.ok, f"o {of_o}"
        assert of_lse.ok, f"lse {of_lse}"


def paged(
    n_q: tuple[int, ...] = MANY,
    lengths: tuple[int, ...] = LENGTHS_K,
    page_size: int = 16,
    heads: tuple[int, int] = (4, 2),
    spare: int = 0,
    **sizes: Any,
) -> Paged:
    keys = requests(PLAIN, lengths, heads=heads, **sizes)
    placed = in_pages(keys, page_size)
    assert placed.block_table is not None
    q = torch.randn(sum(n_q) + 2 * spare, *keys.q.shape[2:]).to(keys.q.dtype)
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (n_q, lengths))
    return Paged(q, placed.k, placed.v, placed.block_table, cu_q + spare, cu_k, keys, n_q)
