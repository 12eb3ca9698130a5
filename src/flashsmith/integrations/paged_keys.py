"""Keys and values in pages: what their layout allows, and copies of them in a row."""

from __future__ import annotations

from typing import NamedTuple

import torch

from flashsmith.configs.variant import PAGE_ROWS
from flashsmith.ops.cache import has_counted_rows
from flashsmith.ops.checks import FP8
from flashsmith.ops.lengths import is_of_tokens

_CHUNK_BYTES = 16  # that kernels copy at a time


class Pages(NamedTuple):
    """k, v: (n_pages, page_size, n_heads_kv, d_head); table: (batch, pages); lengths: (batch,);
    k_scale, v_scale: as ``decode`` takes them, of k and v of 8 bits."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def are_fp8(self) -> bool:
        return self.k.dtype == FP8

    def gathered(
        self, max_seqlen_k: int | None, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v of each request in a row, (batch, rows, n_heads_kv, d_head): copies of the pages
        that the table names, as many of each request as the longest may have. Those of 8 bits
        become numbers of ``dtype``."""
        batch, n_listed = self.table.shape
        n_pages, page_size = self.k.shape[:2]
        if max_seqlen_k is not None:
            n_listed = min(n_listed, -(-max_seqlen_k // page_size))
        pages = self.table[:, :n_listed].clamp(0, n_pages - 1).flatten()

        def in_rows(t: torch.Tensor) -> torch.Tensor:
            return t.index_select(0, pages).view(batch, n_listed * page_size, *t.shape[2:])

        def in_16_bit(t: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
            copied = in_rows(t.view(torch.uint8)).view(FP8).to(dtype)
            if scale is None:
                return copied
            by_row = in_rows(scale) if is_of_tokens(scale) else scale.view(-1, 1, scale.shape[-1])
            copied.mul_(by_row.unsqueeze(-1))  # computed in FP32
            largest = torch.finfo(dtype).max
            return copied.clamp_(-largest, largest) if dtype == torch.float16 else copied

        if self.are_fp8:
            return in_16_bit(self.k, self.k_scale), in_16_bit(self.v, self.v_scale)
        return in_rows(self.k), in_rows(self.v)

    def are_dense(self, d_head: int) -> bool:
        """Whether ``decode`` takes them as they lie."""
        sizes = d_head, self.v.shape[-1], *self.k.stride()[:-1], *self.v.stride()[:-1]
        offsets = self.k.storage_offset(), self.v.storage_offset()
        dense = self.k.stride(-1) == self.v.stride(-1) == 1
        of_chunk = _CHUNK_BYTES // self.k.element_size()
        return dense and not any(size % of_chunk for size in (*sizes, *offsets))

    def are_in_order(self, d_head: int) -> bool:
        """Whether the forward takes them as they lie: rows are reached by counting them."""
        return (
            not self.are_fp8
            and self.table.shape[1] > 0
            and self.k.shape[1] % PAGE_ROWS == 0
            and self.are_dense(d_head)
            and all(map(has_counted_rows, (self.k, self.v)))
        )
