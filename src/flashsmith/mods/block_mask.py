"""Which blocks of keys the blocks of queries see at all, and of which they see every key."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.intervals import Bounds, Interval
from flashsmith.mods.trace import MaskMod, Mods, trace

# Blocks whose bounds are found together, and scores that are looked at together.
_BLOCKS_AT_ONCE = 2**20
_SCORES_AT_ONCE = 2**22

_NO_KEY = 2**30  # beyond all
_HIDDEN, _PARTIAL, _FULL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class BlockMask:
    """For each block of queries: how many blocks of keys it sees, and which.

    Attributes:
        kv_num_blocks: (batch or 1, n_heads or 1, blocks of queries), int32: of blocks of keys that
            are seen in part.
        kv_indices: (..., blocks of queries, blocks of keys), int32: which; the first
            ``kv_num_blocks`` of each row count.
        full_kv_num_blocks, full_kv_indices: the same of blocks of which every key is seen.
        block_size: queries and keys of a block.
        seq_lengths: of q and k.
        mask_mod: what says of a partial block which keys are seen.
    """

    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor
    full_kv_indices: torch.Tensor
    block_size: tuple[int, int]
    seq_lengths: tuple[int, int]
    mask_mod: MaskMod

    @classmethod
    def from_torch(cls, block_mask: Any) -> BlockMask:
        """That of torch.nn.attention.flex_attention, as it is."""
        n, indices = block_mask.kv_num_blocks, block_mask.kv_indices
        full_n, full_indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
        return cls(
            n,
            indices,
            torch.zeros_like(n) if full_n is None else full_n,
            torch.zeros_like(indices) if full_indices is None else full_indices,
            tuple(block_mask.BLOCK_SIZE),
            tuple(block_mask.seq_lengths),
            block_mask.mask_mod,
        )

    @classmethod
    def of(cls, block_mask: Any) -> BlockMask:
        """Ours, or torch's. Raises TypeError if it is neither."""
        if isinstance(block_mask, cls):
            return block_mask
        if not all(hasattr(block_mask, name) for name in ("kv_num_blocks", "full_kv_indices")):
            raise TypeError(
                f"block_mask is a {type(block_mask).__name__}; expected a flashsmith BlockMask or "
                "torch's"
            )
        return cls.from_torch(block_mask)

    def restricted(self, mask_mod: MaskMod | None = None) -> MaskMod:
        """The blocks as a mask_mod: of full ones all is seen, of partial ones what ``mask_mod``
        shows, by default the mask's own."""
        inner = mask_mod or self.mask_mod
        partial, full = self._seen
        size_q, size_kv = self.block_size
        all_batches, all_heads = (size == 1 for size in self.shape[:2])

        def visible(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            at = (
                0 if all_batches else b,
                0 if all_heads else h,
                q_idx // size_q,
                kv_idx // size_kv,
            )
            return full[at] | (partial[at] & inner(b, h, q_idx, kv_idx))

        return visible

    @functools.cached_property
    def _seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For each block whether it is partial, and whether it is full."""
        return (
            _listed(self.kv_num_blocks, self.kv_indices),
            _listed(self.full_kv_num_blocks, self.full_kv_indices),
        )

    @functools.cached_property
    def key_ranges(self) -> torch.Tensor:
        """(batch or 1, n_heads or 1, blocks of queries, 2), int32: from and before which key a
        block of queries sees any; one that sees none has no keys between its ends."""
        partial, full = self._seen
        seen = partial | full
        first = torch.arange(seen.shape[-1], device=seen.device, dtype=torch.int32)
        first *= self.block_size[1]
        begin = torch.where(seen, first, _NO_KEY).amin(-1)
        end = torch.where(seen, first + self.block_size[1], 0).amax(-1)
        return torch.stack([begin, end], -1).to(torch.int32)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, _ = self.kv_num_blocks.shape
        return batch, heads, *self.seq_lengths

    def sparsity(self) -> float:
        """The share of blocks that no query of theirs sees, in percent."""
        seen = int(self.kv_num_blocks.sum()) + int(self.full_kv_num_blocks.sum())
        return 100 * (1 - seen / self.kv_indices.numel())


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
) -> BlockMask:
    """Finds the blocks that ``mask_mod`` shows, without a look at every pair of query and key.

    Bounds over whole blocks decide most of them; the others are looked at score by score, some at
    a time.

    Args:
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key.
        B, H: Batch and heads of q; None or 1: the mask is the same for all.
        Q_LEN, KV_LEN: Lengths of q and k. Blocks that end beyond them are never full.
        device: Where the mask is; None: the GPU if there is one, else the CPU.
        BLOCK_SIZE: Queries and keys of a block, one number for both or two.

    Raises:
        TracingError: mask_mod does what kernels cannot; names the line.
        TypeError, ValueError: an argument is wrong.
    """
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    B, H = (1 if n is None else n for n in (B, H))
    named = {"B": B, "H": H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    _check_sizes(**named, **{f"BLOCK_SIZE[{i}]": size for i, size in enumerate(sizes)})
    if len(sizes) != 2:
        raise ValueError(f"BLOCK_SIZE is {BLOCK_SIZE!r}; expected an int or a pair of them")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if mask_mod is None:
        raise TypeError("mask_mod is None; expected a function of (b, h, q_idx, kv_idx)")
    mods = trace(None, mask_mod, device)
    states = _Blocks(mods, (Q_LEN, KV_LEN), sizes, device).states(B, H).expand(B, H, -1, -1)
    partial, full = (_rows(states == state) for state in (_PARTIAL, _FULL))
    return BlockMask(*partial, *full, sizes, (Q_LEN, KV_LEN), mask_mod)


def _listed(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Whether a block is among the first of its row's indices."""
    places = torch.arange(indices.shape[-1], device=indices.device)
    first = places < counts[..., None]
    listed = torch.zeros(indices.shape, dtype=torch.bool, device=indices.device)
    return listed.scatter_(-1, indices.long(), first)


def _check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if type(size) is not int:
            raise TypeError(f"{name} is {size!r}; expected an int")
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1")


def _rows(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many of a row are wanted, and which: those first, in order."""
    order = torch.argsort((~wanted).to(torch.int8), dim=-1, stable=True)
    return wanted.sum(-1, dtype=torch.int32), order.to(torch.int32)


class _Blocks:
    """The blocks of one mask."""

    def __init__(
        self, mods: Mods, lengths: tuple[int, int], sizes: tuple[int, int], device: torch.device
    ) -> None:
        self._mods = mods
        self._root = mods.expression.visible or 0
        self._bounds = Bounds(mods, self._root)
        self._lengths, self._sizes, self._device = lengths, sizes, device
        self._counts = [-(-n // size) for n, size in zip(lengths, sizes, strict=True)]

    def states(self, batch: int, heads: int) -> torch.Tensor:
        """(batch or 1, heads or 1, blocks of queries, blocks of keys): one for all batches or heads
        if the mask does not ask for them."""
        inputs = self._mods.expression.inputs_of(self._root)
        batch, heads = (n if name in inputs else 1 for n, name in ((batch, "b"), (heads, "h")))
        shape = (batch, heads, *self._counts)
        states = torch.empty(shape, dtype=torch.int8, device=self._device)
        for b in range(batch):
            for h in range(heads):
                for first, last in self._chunks():
                    states[b, h, first:last] = self._chunk(b, h, first, last)
        return states

    def _chunks(self) -> Iterator[tuple[int, int]]:
        rows, columns = self._counts
        step = max(1, _BLOCKS_AT_ONCE // columns)
        for first in range(0, rows, step):
            yield first, min(first + step, rows)

    def _chunk(self, b: int, h: int, first: int, last: int) -> torch.Tensor:
        """The states of some rows of blocks of one head."""
        position = {name: torch.tensor(n, device=self._device) for name, n in (("b", b), ("h", h))}
        rows = torch.arange(first, last, device=self._device)[:, None]
        columns = torch.arange(self._counts[1], device=self._device)[None]
        q, kv = self._range(0, rows), self._range(1, columns)
        inputs = {name: Interval.point(n) for name, n in position.items()} | {"q": q, "kv": kv}
        found = self._bounds.of(inputs)
        whole = (q.high - q.low + 1 == self._sizes[0]) & (kv.high - kv.low + 1 == self._sizes[1])
        seen = torch.where(whole, _FULL, _PARTIAL)
        states = torch.where(found.low == 1, seen, _HIDDEN).to(torch.int8)
        undecided = (found.low != found.high).expand_as(states).nonzero()
        tiles = max(1, _SCORES_AT_ONCE // (self._sizes[0] * self._sizes[1]))
        for some in torch.split(undecided, tiles):
            row, column = some.unbind(-1)
            states[row, column] = self._look(position, row + first, column)
        return states

    def _range(self, axis: int, blocks: torch.Tensor) -> Interval:
        """The first and the last query or key of blocks."""
        first = blocks * self._sizes[axis]
        return Interval(first, (first + self._sizes[axis]).clamp(max=self._lengths[axis]) - 1)

    def _look(
        self, position: dict[str, torch.Tensor], rows: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor:
        """The states of some blocks, score by score."""
        q = self._members(0, rows)[:, :, None]
        kv = self._members(1, columns)[:, None, :]
        inputs = {name: n.int() for name, n in position.items()} | {"q": q.int(), "kv": kv.int()}
        visible = evaluate(self._mods, self._root, inputs)
        visible = visible & (q < self._lengths[0]) & (kv < self._lengths[1])
        some, every = visible.flatten(1).any(1), visible.flatten(1).all(1)
        return torch.where(every, _FULL, torch.where(some, _PARTIAL, _HIDDEN)).to(torch.int8)

    def _members(self, axis: int, blocks: torch.Tensor) -> torch.Tensor:
        size = self._sizes[axis]
        return blocks[:, None] * size + torch.arange(size, device=self._device)
