"""The tensors of decode: queries, and a KV cache in the layouts that servers use."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.base import Given
from flashsmith.lab.bench.operations.inputs import TOLERANCE
from flashsmith.reference import reference_attention

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

FP8 = torch.float8_e4m3fn
_VARLEN, _SMALL, _PAGES = "varlen", "fp8", "pages of "  # in the names of caches
_FORMERLY = "ragged"  # the word for varlen in results until 0.2.0
_PAGE_SIZES, _FP8_PAGE_SIZE = (16, 64, 256), 64
_BYTES_BEYOND_L2, _MAX_LAYERS = 400 << 20, 16  # several times the L2 of any GPU so far


def cache_names(context: int, batch: int) -> Iterator[str]:
    """Yields the layouts of a KV cache for a context and a batch; varlen: random lengths from 1 to
    the context's."""
    yield "entries"
    for page_size in _PAGE_SIZES:
        if context % page_size == 0:
            yield f"{_PAGES}{page_size}"
    if batch > 1:
        yield f"{_VARLEN} {_PAGES}{_PAGE_SIZES[0]}"
    yield _SMALL
    yield f"{_SMALL} {_PAGES}{_FP8_PAGE_SIZE}"


@dataclass(frozen=True)
class Cache:
    """A KV cache: slots of shape (batch, rows, n_heads_kv, d_head), or pages of shape
    (n_pages, page_size, n_heads_kv, d_head) with a page table (batch, pages of a request)."""

    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows for which a request has room."""
        return self.k.shape[1] * (1 if self.table is None else self.table.shape[1])

    @property
    def is_full(self) -> bool:
        return bool((self.lengths == self.rows).all())

    def paged(self, page_size: int) -> Cache:
        """Returns the same cache in pages, which are in random order."""
        batch, rows = self.k.shape[:2]
        pages = rows // page_size
        table = torch.randperm(batch * pages, device=self.k.device).int().reshape(batch, pages)
        k, v = (torch.empty_like(t).view(-1, page_size, *t.shape[2:]) for t in (self.k, self.v))
        for to, t in ((k, self.k), (v, self.v)):
            to.view(torch.uint8)[table.flatten().long()] = t.reshape(to.shape).view(torch.uint8)
        return Cache(k, v, self.lengths, table)


class DecodeInputs(Given):
    """The inputs of decode. Errors are those of the first and the last request, against float32.
    ``n_bytes`` counts the keys and values that requests have, each once."""

    tolerance = TOLERANCE

    def __init__(self, case: Case, device: str):
        problem, name = case.workload.problem, case.cache
        dtype = problem.dtype.to_torch_dtype()
        q, k, v = (
            torch.randn(shape, device=device, dtype=dtype)
            for shape in (problem.q_shape, problem.k_shape, problem.k_shape)
        )
        small_k, small_v = k.to(FP8), v.to(FP8)
        k, v = small_k.to(dtype), small_v.to(dtype)  # values that FP8 holds exactly
        lengths = torch.full((problem.batch,), problem.seq_len_k, dtype=torch.int32, device=device)
        if _VARLEN in name or _FORMERLY in name:
            # Drawn from the case's words, so that they do not depend on the cases that came before.
            drawn = random.Random(str(case))
            some = [drawn.randint(1, problem.seq_len_k) for _ in range(problem.batch)]
            lengths = torch.tensor(some, dtype=torch.int32, device=device)
        self.q = q
        self.cache = Cache(small_k, small_v, lengths) if _SMALL in name else Cache(k, v, lengths)
        if _PAGES in name:
            self.cache = self.cache.paged(int(name.rpartition(_PAGES)[2]))
        self.n_bytes = lengths.sum().item() * 2 * self.cache.k[0, 0].nbytes
        rows = (
            reference_attention(
                q[i : i + 1], *(t[i : i + 1, :n] for t in (k, v)), compute=torch.float32
            )
            for i, n in ((0, lengths[0].item()), (len(q) - 1, lengths[-1].item()))
        )
        self._expected = torch.cat([*rows])

    def layers(self) -> Sequence[Self]:
        others = min(math.ceil(_BYTES_BEYOND_L2 / max(self.n_bytes, 1)), _MAX_LAYERS) - 1
        return self, *(self._with_another_cache() for _ in range(others))

    def _with_another_cache(self) -> Self:
        other = copy(self)
        other.cache = replace(self.cache, k=self.cache.k.clone(), v=self.cache.v.clone())
        return other

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of ``decode``."""
        cache = self.cache
        return {
            "q": self.q,
            "k_cache": cache.k,
            "v_cache": cache.v,
            "cache_seqlens": cache.lengths,
            "block_table": cache.table,
        }

    def error_of(self, result: torch.Tensor) -> float:
        """Returns the largest difference, relative to the largest element."""
        difference = result[[0, -1]].float() - self._expected
        return (difference.abs().max() / self._expected.abs().max()).item()
