"""The KV cache of a case: 16-bit or FP8 keys and values, in slots or in pages of any order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

import torch

from flashsmith.lab.soak.prepared import PreparedCase
from flashsmith.ops.checks import FP8
from flashsmith.ops.lengths import is_of_tokens

_PAGE_SIZES = (None, None, 1, 7, 16, 64)  # None: slots, without pages
_SPLITS = (0, 0, 1, 3)
_NOWHERE = -(1 << 30)
_SPARE_PAGES = 2
# Dimensions over which a scale is constant: no scale, one, one a head, one a head of each request.
SCALES = (None, (0, 1, 2, 3), (0, 1, 3), (1, 3))
_OF_TOKENS = (3,)
_SMALLEST_SCALE = 1e-15  # the product of two scales must not underflow in float32


@dataclass(frozen=True)
class DrawnCache:
    """A KV cache, and the number of splits that decode visits it in.

    Attributes:
        exact: FP8 keys and values multiplied with their scales, in slots; None if the cache is not
            FP8.
    """

    k: torch.Tensor
    v: torch.Tensor
    seqlens: torch.Tensor | None
    block_table: torch.Tensor | None
    splits: int
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    exact: tuple[torch.Tensor, torch.Tensor] | None = None


def draw_cache(
    prepared: PreparedCase,
    fp8: bool = False,
    per_token_scale: bool = False,
    page_multiple: int = 1,
) -> DrawnCache:
    """Draws a KV cache by the seed of the case. Unused pages, and the ends of last pages, are NaN.

    fp8: Whether keys and values are FP8.
    per_token_scale: Whether each row of them may have its own scale.
    page_multiple: The page size is a multiple of this.
    """
    case, k, v = prepared.case, prepared.placed.k, prepared.placed.v
    rng = Random(case.seed)
    sizes = [size for size in _PAGE_SIZES if size is None or size % page_multiple == 0]
    page_size, splits = rng.choice(sizes), rng.choice(_SPLITS)
    if not fp8:
        return _placed(rng, k, v, page_size, splits)
    kinds = (*SCALES, _OF_TOKENS, _OF_TOKENS) if per_token_scale else SCALES
    (k, k_scale, exact_k), (v, v_scale, exact_v) = (quantised(t, rng.choice(kinds)) for t in (k, v))
    cache = _placed(rng, k, v, page_size, splits)
    small_k, small_v = cache.k.to(FP8), cache.v.to(FP8)
    k_scale, v_scale = (_beside(scale, cache) for scale in (k_scale, v_scale))
    return replace(
        cache, k=small_k, v=small_v, k_scale=k_scale, v_scale=v_scale, exact=(exact_k, exact_v)
    )


def quantised(
    t: torch.Tensor, dims: tuple[int, ...] | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Returns FP8 numbers, held in float32, their scales, and the products of both.

    t: (batch, rows, heads, d_head).
    dims: Dimensions over which a scale is constant; None: there is no scale.
    """
    largest, scale = torch.finfo(FP8).max, None
    spread = torch.ones((), dtype=torch.float64, device=t.device)
    if dims is not None and t.numel():
        finite = t.float().nan_to_num(0, posinf=0, neginf=0).abs()
        spread = finite.amax(dims, keepdim=True).div(largest).clamp(min=_SMALLEST_SCALE)
        scale = spread.squeeze(dims) if dims in (SCALES[-1], _OF_TOKENS) else spread.flatten()
        scale, spread = scale.contiguous(), spread.double()
    small = (t.double() / spread).clamp(-largest, largest).float().to(FP8).float()
    return small, scale, small.double() * spread


def _beside(scale: torch.Tensor | None, cache: DrawnCache) -> torch.Tensor | None:
    """Returns a scale in the cache's layout: per-token scales are paged like the tokens."""
    if scale is None or not is_of_tokens(scale) or cache.block_table is None:
        return scale
    return _paged(scale, cache.block_table[:, :-1].long(), cache.k.shape[1])


def _placed(
    rng: Random, k: torch.Tensor, v: torch.Tensor, page_size: int | None, splits: int
) -> DrawnCache:
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
    """Returns a cache whose pages, by the page table, hold the rows of each request."""
    batch, rows, *row = t.shape
    whole = t.new_full((batch, table.shape[1] * page_size, *row), math.nan)
    whole[:, :rows] = t
    cache = t.new_full((table.numel() + _SPARE_PAGES, page_size, *row), math.nan)
    cache[table.flatten()] = whole.reshape(table.numel(), page_size, *row)
    return cache
