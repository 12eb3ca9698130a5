"""The cache of a case: its keys and values as they are, or in pages of any order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import torch

from flashsmith.soak.prepared import PreparedCase

_PAGE_SIZES = (None, None, 1, 7, 16, 64)  # None: entries
_SPLITS = (0, 0, 1, 3)
_NOWHERE = -(1 << 30)
_SPARE_PAGES = 2


@dataclass(frozen=True)
class DrawnCache:
    """A cache, and in how many parts it is visited."""

    k: torch.Tensor
    v: torch.Tensor
    seqlens: torch.Tensor | None
    block_table: torch.Tensor | None
    splits: int


def draw_cache(prepared: PreparedCase) -> DrawnCache:
    """By the seed of the case. Pages that are not used, and ends of the last ones, are NaN."""
    case, k, v = prepared.case, prepared.placed.k, prepared.placed.v
    rng = Random(case.seed)
    page_size, splits = rng.choice(_PAGE_SIZES), rng.choice(_SPLITS)
    if page_size is None:
        return DrawnCache(k, v, None, None, splits)
    batch, rows = k.shape[:2]
    pages = -(-rows // page_size)
    order = torch.tensor(rng.sample(range(batch * pages + _SPARE_PAGES), batch * pages))
    table = torch.full((batch, pages + 1), _NOWHERE, dtype=torch.int32)
    table[:, :pages] = order.reshape(batch, pages)
    table = table.to(k.device)
    seqlens = torch.full((batch,), rows, dtype=torch.int32, device=k.device)
    places = table[:, :pages].long()
    paged_k, paged_v = _paged(k, places, page_size), _paged(v, places, page_size)
    return DrawnCache(paged_k, paged_v, seqlens, table, splits)


def _paged(t: torch.Tensor, table: torch.Tensor, page_size: int) -> torch.Tensor:
    """The rows of each entry, in its pages of the table."""
    batch, rows, *row = t.shape
    whole = t.new_full((batch, table.shape[1] * page_size, *row), math.nan)
    whole[:, :rows] = t
    cache = t.new_full((table.numel() + _SPARE_PAGES, page_size, *row), math.nan)
    cache[table.flatten()] = whole.reshape(table.numel(), page_size, *row)
    return cache
