"""The keys and values of requests in memory that outlives a call, as a caller gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from flashsmith.configs.variant import PAGE_ROWS
from flashsmith.ops.checks import FP8, check_rank, check_tensors
from flashsmith.ops.lengths import check_fp8_scales, is_of_tokens, may_look_at
from flashsmith.runtime import AppendArguments

_CHUNK_BYTES = 16  # that kernels copy at a time
_MAX_ROWS = 2**31 - 1  # of a tensor, counted in strides of a row


class KVCache(NamedTuple):
    """A cache and what says where requests lie in it, as ``decode`` takes them.

    seqlens: How many rows each request has: a tensor, a number for all, or None for all rows.
    k_scale, v_scale: What keys and values of 8 bits are multiplied with; None: 1.
    """

    k: torch.Tensor
    v: torch.Tensor
    seqlens: Any = None
    block_table: torch.Tensor | None = None
    batch_idx: torch.Tensor | None = None
    leftpad: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def is_fp8(self) -> bool:
        return self.k.dtype == FP8

    @property
    def rows(self) -> int:
        """That a request may have."""
        pages = 1 if self.block_table is None else self.block_table.shape[-1]
        return self.k.shape[1] * pages

    @property
    def is_in_boxes(self) -> bool:
        """Whether bulk copies bring its keys and values: see ``DecodeWorkload``."""
        if self.block_table is not None and (
            self.k.shape[1] % PAGE_ROWS or self.leftpad is not None
        ):
            return False
        return has_counted_rows(self.k) and has_counted_rows(self.v)

    @property
    def is_ready(self) -> bool:
        """Whether nothing has to be checked that the library does not see at every call."""
        lengths_are = self.seqlens is None or isinstance(self.seqlens, torch.Tensor)
        return lengths_are and not may_look_at(self.k)

    def checked(self, q: torch.Tensor, new: KVAppend | None, window_left: int) -> KVCache:
        """With lengths in a tensor. What they say is looked at where that costs nothing, or if it
        is asked for; of the pages, those that hold keys within the window.

        Raises:
            TypeError, ValueError: They are none; names the argument.
        """
        given = {
            "cache_seqlens": self.seqlens if isinstance(self.seqlens, torch.Tensor) else None,
            "block_table": self.block_table,
            "cache_batch_idx": self.batch_idx,
            "cache_leftpad": self.leftpad,
        }
        for name, t in given.items():
            if t is not None:
                _check_numbers(name, t, q, 2 if name == "block_table" else 1)
        check_fp8_scales(k_scale=self.k_scale, v_scale=self.v_scale)
        if new is not None:
            new.check(q)
            if self.seqlens is None:
                raise ValueError("cache_seqlens is None, but k_new goes behind so many rows")
        n_new = 0 if new is None else new.k.shape[1]
        self.check_length(n_new)
        cache = self._replace(seqlens=lengths_in_a_tensor(self.seqlens, q))
        if may_look_at(self.k):
            cache._look(q, n_new, window_left)
        return cache

    def is_dense(self, d_head: int) -> bool:
        """Returns whether ``decode`` takes keys and values as they lie, with rows of q of so
        many elements."""
        sizes = d_head, self.v.shape[-1], *self.k.stride()[:-1], *self.v.stride()[:-1]
        offsets = self.k.storage_offset(), self.v.storage_offset()
        dense = self.k.stride(-1) == self.v.stride(-1) == 1
        of_chunk = _CHUNK_BYTES // self.k.element_size()
        return dense and not any(size % of_chunk for size in (*sizes, *offsets))

    def has_pages_in_order(self, d_head: int) -> bool:
        """Returns whether the forward takes pages as they lie: rows are reached by counting
        them."""
        return (
            not self.is_fp8
            and self.block_table is not None
            and self.block_table.shape[1] > 0
            and self.k.shape[1] % PAGE_ROWS == 0
            and self.is_dense(d_head)
            and all(map(has_counted_rows, (self.k, self.v)))
        )

    def gathered(
        self, max_seqlen_k: int | None, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v of each request in a row, (batch, rows, n_heads_kv, d_head): copies of the pages
        that the table names, as many of each request as the longest may have. Those of 8 bits
        become numbers of ``dtype``."""
        assert self.block_table is not None
        batch, n_listed = self.block_table.shape
        n_pages, page_size = self.k.shape[:2]
        if max_seqlen_k is not None:
            n_listed = min(n_listed, -(-max_seqlen_k // page_size))
        pages = self.block_table[:, :n_listed].clamp(0, n_pages - 1).flatten()

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

        if self.is_fp8:
            return in_16_bit(self.k, self.k_scale), in_16_bit(self.v, self.v_scale)
        return in_rows(self.k), in_rows(self.v)

    def check_length(self, n_new: int) -> None:
        """Raises ValueError for a length of all requests that none can have."""
        n, maximum = self.seqlens, self.rows - n_new
        if type(n) is int and not 0 <= n <= maximum:
            raise ValueError(f"cache_seqlens is {n}; expected 0 to {maximum}, {_room(n_new)}")

    def _look(self, q: torch.Tensor, n_new: int, window_left: int) -> None:
        """Raises ValueError for numbers that kernels cut off, or take for none; and for new rows of
        two requests in one place."""
        used = _numbers("cache_seqlens", self.seqlens, self.rows - n_new, _room(n_new))
        lengths = [n + n_new for n in used] or [self.rows] * q.shape[0]
        _numbers("cache_batch_idx", self.batch_idx, self.k.shape[0] - 1, "the last entry")
        given = _numbers("cache_leftpad", self.leftpad, self.rows, "the rows of a request")
        pads = given or [0] * len(lengths)
        spans = []
        for pad, length in zip(pads, lengths, strict=True):
            if pad > length:
                raise ValueError(f"cache_leftpad has {pad}, but the request has {length} rows")
            first = pad if window_left < 0 else max(pad, length - q.shape[1] - window_left)
            spans.append((min(first, length - n_new), length))
        if self.block_table is not None:
            check_pages("k_cache", self.k, self.block_table, spans)
        if n_new:
            self._check_written_once([range(n, n + n_new) for n in used])

    def _check_written_once(self, written: Sequence[range]) -> None:
        """Raises ValueError if two requests write the same row. written: Each request's rows."""
        if self.block_table is not None:
            name, what, rows_of_place = "block_table", "page", self.k.shape[1]
            places = self.block_table.tolist()
        elif self.batch_idx is not None:
            name, what, rows_of_place = "cache_batch_idx", "entry", self.rows
            places = [[entry] for entry in self.batch_idx.tolist()]
        else:
            return
        writers: dict[tuple[int, int], int] = {}
        for request, rows in enumerate(written):
            for row in rows:
                number, within = divmod(row, rows_of_place)
                place = places[request][number], within
                if place in writers:
                    raise ValueError(
                        f"{name} says that requests {writers[place]} and {request} have row "
                        f"{within} of {what} {place[0]}, where both would put keys of k_new; "
                        "expected another place for each"
                    )
                writers[place] = request


class KVAppend(NamedTuple):
    """Keys and values that go into a cache."""

    k: torch.Tensor
    v: torch.Tensor
    rotary_cos: torch.Tensor | None
    rotary_sin: torch.Tensor | None
    interleaved: bool

    @classmethod
    def of(
        cls,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        rotary_cos: torch.Tensor | None,
        rotary_sin: torch.Tensor | None,
        interleaved: bool,
    ) -> KVAppend | None:
        """None if there are none. Raises ValueError: some of them are missing."""
        if k is not None and v is not None:
            return cls(k, v, rotary_cos, rotary_sin, interleaved)
        if k is not None or v is not None:
            raise ValueError("k_new and v_new go together; one of them is None")
        if rotary_cos is not None or rotary_sin is not None:
            raise ValueError(
                "rotary_cos or rotary_sin was passed without k_new; turn q before the call"
            )
        return None

    def check(self, q: torch.Tensor) -> None:
        """What the library does not see. Raises TypeError, ValueError that names the argument."""
        rotary = {"rotary_cos": self.rotary_cos, "rotary_sin": self.rotary_sin}
        given = {name: t for name, t in rotary.items() if t is not None}
        check_tensors(k_new=self.k, v_new=self.v, **given)
        check_rank("k_new", self.k, None)
        check_rank("v_new", self.v, None)
        if self.k.shape[0] != q.shape[0]:
            raise ValueError(
                f"k_new has batch size {self.k.shape[0]}, but q has {q.shape[0]}; they need the "
                "same"
            )

    def turned(self, q: torch.Tensor) -> torch.Tensor | None:
        """Where q goes, turned as new keys are; None: nothing is turned."""
        if self.rotary_cos is None:
            return None
        return torch.empty_like(q, memory_format=torch.contiguous_format)

    def arguments(
        self, q: torch.Tensor, turned: torch.Tensor | None, cache: KVCache, in_a_row: bool
    ) -> AppendArguments:
        """in_a_row: Query i is at the place of new key i; else all are at that of the first."""
        return AppendArguments(
            self.interleaved, in_a_row, self.k, self.v, cache.k, cache.v,
            None if turned is None else q, turned, self.rotary_cos, self.rotary_sin,
            cache.seqlens, cache.block_table, cache.batch_idx, cache.k_scale, cache.v_scale,
        )  # fmt: skip


def has_counted_rows(t: torch.Tensor) -> bool:
    """Returns whether an entry, or a page, begins a whole number of rows behind the one before,
    so that bulk copies reach all rows by their number."""
    if t.is_contiguous() and t.numel() <= _MAX_ROWS:  # as most are, which is faster to ask
        return True
    entries, n_rows, n_heads, d_head = t.shape
    of_entry, of_row, of_head, _ = t.stride()
    of_row = of_row if n_rows > 1 else of_entry if entries > 1 else d_head
    if of_row <= 0 or (n_heads > 1 and of_head <= 0):
        return False
    return entries == 1 or (
        of_entry > 0 and of_entry % of_row == 0 and entries * (of_entry // of_row) <= _MAX_ROWS
    )


def check_pages(
    name: str, pages: torch.Tensor, block_table: torch.Tensor, spans: Sequence[tuple[int, int]]
) -> None:
    """Raises ValueError for pages of rows in use that are nowhere; reads the table.

    Args:
        name: Of ``pages``, (n_pages, page_size, ...).
        spans: Each request's first row in use, and that behind its last.
    """
    n_pages, page_size = pages.shape[:2]
    for request, (first, end) in enumerate(spans):
        if first == end:
            continue
        for page in block_table[request, first // page_size : -(-end // page_size)].tolist():
            if not 0 <= page < n_pages:
                raise ValueError(
                    f"block_table has page {page} for request {request}; expected 0 to "
                    f"{n_pages - 1}, the pages of {name}"
                )


def _check_numbers(name: str, t: torch.Tensor, q: torch.Tensor, n_dims: int) -> None:
    check_tensors(**{name: t})
    check_rank("q", q, None)
    if t.dtype != torch.int32:
        raise TypeError(f"{name} has dtype {t.dtype}; it must be torch.int32")
    if t.ndim != n_dims or t.shape[0] != q.shape[0]:
        expected = ("batch", "pages")[:n_dims]
        raise ValueError(
            f"{name} has shape {tuple(t.shape)}; expected ({', '.join(expected)}), and q has batch "
            f"size {q.shape[0]}"
        )


def lengths_in_a_tensor(lengths: Any, q: torch.Tensor) -> torch.Tensor | None:
    """Those of requests, also where one is given for all. Raises TypeError: they are none."""
    if lengths is None or isinstance(lengths, torch.Tensor):
        return lengths
    if type(lengths) not in (int, torch.SymInt):
        raise TypeError(
            f"cache_seqlens is a {type(lengths).__name__}; expected an int32 tensor, an int or None"
        )
    return torch.full((q.shape[0],), lengths, dtype=torch.int32, device=q.device)


def _room(n_new: int) -> str:
    return f"the rows of a request{f' but {n_new} for k_new' if n_new else ''}"


def _numbers(name: str, t: torch.Tensor | None, maximum: int, what: str) -> list[int]:
    """Returns what a tensor says; nothing of None."""
    if t is None:
        return []
    values: list[int] = t.tolist()
    for value in values:
        if not 0 <= value <= maximum:
            raise ValueError(f"{name} has {value}; expected 0 to {maximum}, {what}")
    return values
