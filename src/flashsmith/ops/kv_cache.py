"""The KV cache of requests, as a caller passes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from flashsmith.configs.variant import PAGE_ROWS
from flashsmith.ops.checks import FP8, check_rank, check_tensors
from flashsmith.ops.lengths import check_fp8_scales, is_of_tokens, may_look_at
from flashsmith.runtime import AppendArguments

_CHUNK_BYTES = 16  # bytes that kernels copy at a time
_MAX_ROWS = 2**31 - 1  # rows of a tensor, counted in strides of a row


class KVCache(NamedTuple):
    """A KV cache and the positions of requests in it, with the meaning of ``decode``'s arguments.

    seqlens: The rows of each request: a tensor, a number for all, or None for all rows.
    k_scale, v_scale: The scales of FP8 keys and values; None: 1.
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
        """The max number of rows of a request."""
        pages = 1 if self.block_table is None else self.block_table.shape[-1]
        return self.k.shape[1] * pages

    @property
    def is_in_boxes(self) -> bool:
        """Whether bulk copies can load its keys and values; see ``DecodeWorkload``."""
        if self.block_table is not None and (
            self.k.shape[1] % PAGE_ROWS or self.leftpad is not None
        ):
            return False
        return has_counted_rows(self.k) and has_counted_rows(self.v)

    @property
    def is_ready(self) -> bool:
        """Whether the library's checks at every call suffice."""
        lengths_are = self.seqlens is None or isinstance(self.seqlens, torch.Tensor)
        return lengths_are and not may_look_at(self.k)

    def checked(self, q: torch.Tensor, new: KVAppend | None, window_left: int) -> KVCache:
        """Returns the checked cache, with lengths in a tensor. Their values are checked if that
        costs nothing, or if the user enables it; so are pages that hold keys within the window.

        Raises:
            TypeError, ValueError: An argument is invalid; the message names it.
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
        """Returns whether ``decode`` can read keys and values in place, for rows of q with
        ``d_head`` elements."""
        sizes = d_head, self.v.shape[-1], *self.k.stride()[:-1], *self.v.stride()[:-1]
        offsets = self.k.storage_offset(), self.v.storage_offset()
        dense = self.k.stride(-1) == self.v.stride(-1) == 1
        of_chunk = _CHUNK_BYTES // self.k.element_size()
        return dense and not any(size % of_chunk for size in (*sizes, *offsets))

    def has_pages_in_order(self, d_head: int) -> bool:
        """Returns whether the forward can read pages in place: their rows are at multiples of one
        stride."""
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
        """Returns k and v of each request in contiguous rows, (batch, rows, n_heads_kv, d_head):
        copies of the pages in the table, for each request as many as the longest may have. FP8
        pages are converted to ``dtype``."""
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
        """Raises ValueError if one length for all requests is out of range."""
        n, maximum = self.seqlens, self.rows - n_new
        if type(n) is int and not 0 <= n <= maximum:
            raise ValueError(f"cache_seqlens is {n}; expected 0 to {maximum}, {_room(n_new)}")

    def _look(self, q: torch.Tensor, n_new: int, window_left: int) -> None:
        """Raises ValueError for numbers that kernels would clamp or ignore, and for new rows of two
        requests in one position."""
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
        """Raises ValueError if two requests write the same row; ``written`` are each request's
        rows."""
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
    """Keys and values that are appended to a cache."""

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
        """Returns the record, or None without new keys. Raises ValueError if only some arguments
        are given."""
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
        """Checks what the library does not see. Raises TypeError or ValueError that names the
        argument."""
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
        """Returns a new tensor for rotated queries; None without rotation."""
        if self.rotary_cos is None:
            return None
        return torch.empty_like(q, memory_format=torch.contiguous_format)

    def arguments(
        self, q: torch.Tensor, turned: torch.Tensor | None, cache: KVCache, in_a_row: bool
    ) -> AppendArguments:
        """Returns the record; ``in_a_row`` says whether query i has the position of new key i, else
        all have that of the first."""
        return AppendArguments(
            self.interleaved, in_a_row, self.k, self.v, cache.k, cache.v,
            None if turned is None else q, turned, self.rotary_cos, self.rotary_sin,
            cache.seqlens, cache.block_table, cache.batch_idx, cache.k_scale, cache.v_scale,
        )  # fmt: skip


def has_counted_rows(t: torch.Tensor) -> bool:
    """Returns whether slots, or pages, begin a whole number of rows apart, so that bulk copies
    reach each row by its number."""
    if t.is_contiguous() and t.numel() <= _MAX_ROWS:  # true for most tensors, and faster to check
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
    """Raises ValueError for page numbers out of range among rows in use; reads the page table.

    Args:
        name: The name of ``pages``, (n_pages, page_size, ...).
        spans: Each request's first row in use, and one past its last.
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
    """Returns the requests' lengths as a tensor, also if one int is given for all. Raises TypeError
    for other types."""
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
    """Returns the numbers in a tensor, each checked to be 0 to ``maximum``; None gives []."""
    if t is None:
        return []
    values: list[int] = t.tolist()
    for value in values:
        if not 0 <= value <= maximum:
            raise ValueError(f"{name} has {value}; expected 0 to {maximum}, {what}")
    return values
