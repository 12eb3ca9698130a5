"""The forward's kernels in the place of decode's: for many queries, whose products take longer than
their keys to read."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from flashsmith.configs import AttentionKernelConfig, DecodeKernelConfig, Variant, Workload
from flashsmith.configs.variant import PAGE_ROWS
from flashsmith.ops.cache import Cache
from flashsmith.ops.forward import run_attention
from flashsmith.ops.spec import AttentionSpec
from flashsmith.problem import Problem
from flashsmith.selection.choose import forget_with_tables
from flashsmith.selection.select import dtype_of, reads_pages, select_for

# Rows of q to a head of the cache beyond which it is worth while to ask; on the emulator no time
# counts.
FEWEST_ROWS, _FEWEST_ROWS_ON_CPU = 64, 256
# Up to which decode's kernels are as fast over pages, of which the forward's have to copy many
# small boxes.
_MOST_ROWS_OF_PAGES = 2048


class ManyQueries(NamedTuple):
    """A call of ``decode``. To ``run`` it, its new keys have to be in the cache."""

    q: torch.Tensor
    cache: Cache

    def are_for_forward(self, variant: Variant, out: torch.Tensor | None) -> bool:
        """Whether kernels of the forward compute them, and are faster. ``out``: a place for o."""
        q, cache = self.q, self.cache
        rows = q.shape[1] * (q.shape[2] // max(cache.k.shape[2], 1))
        too_few = rows <= (_FEWEST_ROWS_ON_CPU if q.is_cpu else FEWEST_ROWS)
        if cache.block_table is not None and not q.is_cpu:
            too_few |= rows <= _MOST_ROWS_OF_PAGES
        if too_few or not (self._lie_so() and (out is None or out.is_contiguous())):
            return False
        k_shape = (q.shape[0], cache.rows, *cache.k.shape[2:])
        sizes = q.shape, k_shape, cache.v.shape[-1]
        return is_forward_faster(q.dtype, *sizes, variant, q.device)

    def _lie_so(self) -> bool:
        """Whether the forward's kernels read the cache as it lies."""
        q, cache = self.q, self.cache
        if cache.k.dtype != q.dtype or not cache.batch_idx is cache.leftpad is None:
            return False
        if cache.block_table is None:
            strides = (*cache.k.stride(), *cache.v.stride())
            return cache.k.shape[0] == q.shape[0] and min(strides) > 0
        in_order = cache.k.is_contiguous() and cache.v.is_contiguous()
        return in_order and cache.k.shape[1] % PAGE_ROWS == 0 and reads_pages(q.device)

    def run(
        self,
        spec: AttentionSpec,
        out: torch.Tensor | None,
        with_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """o and lse, of the shapes that ``decode`` gives. spec: Without lengths and pages."""
        q, cache = self.q, self.cache
        lengths: dict[str, Any] = {"seqused_k": cache.seqlens}
        n_requests, n_q = q.shape[:2]
        if cache.block_table is not None:
            q, out = q.flatten(0, 1), None if out is None else out.flatten(0, 1)
            lengths |= {
                "block_table": cache.block_table,
                "cu_seqlens_q": torch.arange(
                    0, n_requests * n_q + 1, n_q, dtype=torch.int32, device=q.device
                ),
                "max_seqlen_q": n_q,
                "max_seqlen_k": cache.rows,
            }
            if cache.seqlens is None:
                lengths["seqused_k"] = q.new_full((n_requests,), cache.rows, dtype=torch.int32)
        spec = spec._replace(**lengths)
        found: Any = run_attention(q, cache.k, cache.v, spec, out, return_lse=with_lse)
        o, lse = found if with_lse else (found, None)
        if cache.block_table is None:
            return o, lse
        if lse is not None:
            lse = lse.unflatten(1, (n_requests, n_q)).transpose(0, 1).contiguous()
        return o.unflatten(0, (n_requests, n_q)), lse


def is_forward_faster(*sizes_and_variant: Any) -> bool:
    """Whether ``attention`` would not have decode's kernels compute it. Args: as ``chosen_for``."""
    return not isinstance(chosen_for(*sizes_and_variant), DecodeKernelConfig)


@functools.lru_cache(4096)
def chosen_for(
    dtype: torch.dtype,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    d_v: int,
    variant: Variant,
    device: torch.device,
) -> AttentionKernelConfig:
    """What ``attention`` would take over a cache. Shapes have four sizes, without pages."""
    problem = Problem.of_shapes(dtype_of(dtype, device), q_shape, k_shape, d_v)
    return select_for(Workload(problem, variant), device, is_cache=True)


forget_with_tables(chosen_for.cache_clear)
