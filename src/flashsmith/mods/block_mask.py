"""Block masks: which blocks of keys each block of queries sees in part, and which entirely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.mods.buffers import was_freed
from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.intervals import Bounds, Interval
from flashsmith.mods.trace import MaskMod, Mods, trace

# The number of blocks that are bounded together, and of scores that are evaluated together.
_BLOCKS_AT_ONCE = 2**20
_SCORES_AT_ONCE = 2**22

_MAX_ROWS = 2**30  # rows of q or k, as kernels count them
_MAX_BLOCKS = 2**31 - 1
_NO_KEY = _MAX_ROWS  # behind the last key
_HIDDEN, _PARTIAL, _FULL = 0, 1, 2
LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@dataclass(frozen=True, eq=False)
class BlockMask:
    """The blocks of keys that each block of queries sees.

    Attributes:
        kv_num_blocks: (batch or 1, n_heads or 1, blocks of queries), int32: the number of partial
            blocks, of which not every key is seen.
        kv_indices: (..., blocks of queries, blocks of keys), int32: the indices of partial blocks;
            the first ``kv_num_blocks`` of each row count.
        full_kv_num_blocks, full_kv_indices: the same for full blocks, of which every key is seen.
        block_size: the numbers of queries and of keys of a block.
        seq_lengths: the lengths of q and k.
        mask_mod: the function that says which keys of a partial block are seen.
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
        """Returns a BlockMask with the tensors of torch.nn.attention.flex_attention's."""
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
        """Returns a flashsmith BlockMask for ours or torch's. Raises TypeError for anything
        else."""
        if isinstance(block_mask, cls):
            return block_mask
        if not all(hasattr(block_mask, name) for name in ("kv_num_blocks", "full_kv_indices")):
            raise TypeError(
                f"block_mask is a {type(block_mask).__name__}; expected a flashsmith BlockMask or "
                "torch's"
            )
        return cls.from_torch(block_mask)

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError if the tensors cannot be lists of such blocks."""
        for name in ("block_size", "seq_lengths"):
            _check_sizes(**{f"{name}[{i}]": n for i, n in enumerate(getattr(self, name))})
        shape = *self.kv_num_blocks.shape[:2], -(-self.seq_lengths[0] // self.block_size[0])
        for kind in ("kv", "full_kv"):
            _check_list(f"{kind}_num_blocks", getattr(self, f"{kind}_num_blocks"), shape)
            _check_list(f"{kind}_indices", getattr(self, f"{kind}_indices"), (*shape, None))

    def read(self, mask_mod: MaskMod | None = None) -> tuple[MaskMod, torch.Tensor]:
        """Returns the mask of the lists' present contents. They are read at each call, because
        static buffers may be refilled without torch's knowledge, as by a CUDA graph's replay.

        Args:
            mask_mod: The function that says which keys of a partial block are seen; None: the
                mask's.

        Returns:
            visible: The blocks as a mask_mod: all keys of full blocks are seen, and those of
                partial blocks that ``mask_mod`` shows.
            key_ranges: (batch or 1, n_heads or 1, blocks of queries, 2), int32: the first key that
                a block of queries may see, and one past the last; the range is empty if it sees
                none.
        """
        for name in LISTS:
            if was_freed(getattr(self, name)):
                raise ValueError(f"{name} of a block_mask has no memory: its storage has 0 bytes")
        inner = mask_mod or self.mask_mod
        size_q, size_kv = self.block_size
        n_blocks = -(-self.seq_lengths[1] // size_kv)
        partial = _listed(self.kv_num_blocks, self.kv_indices, n_blocks)
        full = _listed(self.full_kv_num_blocks, self.full_kv_indices, n_blocks)
        all_batches, all_heads = (size == 1 for size in self.shape[:2])

        def visible(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            at = (
                0 if all_batches else b,
                0 if all_heads else h,
                q_idx // size_q,
                kv_idx // size_kv,
            )
            return full[at] | (partial[at] & inner(b, h, q_idx, kv_idx))

        return visible, _key_ranges(partial | full, size_kv)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, _ = self.kv_num_blocks.shape
        return batch, heads, *self.seq_lengths

    def sparsity(self) -> float:
        """Returns the share of blocks that no query sees, in percent."""
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
    """Finds the blocks that ``mask_mod`` shows, without evaluating every pair of query and key.

    Bounds over whole blocks decide most blocks; the others are evaluated score by score, in chunks.

    Args:
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key.
        B, H: Batch and heads of q; None or 1: the mask is the same for all.
        Q_LEN, KV_LEN: Lengths of q and k. Blocks that end beyond them are never full.
        device: The device of the mask; None: the GPU if there is one, else the CPU.
        BLOCK_SIZE: Queries and keys of a block, one number for both or two.

    Raises:
        TracingError: mask_mod does what kernels cannot; the message names the line.
        TypeError, ValueError: an argument is wrong.
    """
    if not isinstance(BLOCK_SIZE, int | tuple | list):
        raise TypeError(f"BLOCK_SIZE is {BLOCK_SIZE!r}; expected an int or a pair of them")
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    B, H = (1 if n is None else n for n in (B, H))
    named = {"B": B, "H": H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}
    _check_sizes(**named, **{f"BLOCK_SIZE[{i}]": size for i, size in enumerate(sizes)})
    if len(sizes) != 2:
        raise ValueError(f"BLOCK_SIZE is {BLOCK_SIZE!r}; expected an int or a pair of them")
    _check_blocks(B, H, (Q_LEN, KV_LEN), sizes)
    device = _checked_device(device)
    if mask_mod is None:
        raise TypeError("mask_mod is None; expected a function of (b, h, q_idx, kv_idx)")
    mods = trace(None, mask_mod, device)
    states = _Blocks(mods, (Q_LEN, KV_LEN), sizes, device).states(B, H).expand(B, H, -1, -1)
    partial, full = (_rows(states == state) for state in (_PARTIAL, _FULL))
    return BlockMask(*partial, *full, sizes, (Q_LEN, KV_LEN), mask_mod)


def _listed(counts: torch.Tensor, indices: torch.Tensor, n_blocks: int) -> torch.Tensor:
    """Returns whether each block is among the first ``counts`` indices of its row; later indices,
    and indices beyond the last block, do not count."""
    places = torch.arange(indices.shape[-1], dtype=torch.int32, device=indices.device)
    found = torch.where(places < counts[..., None], indices, n_blocks).clamp_(max=n_blocks)
    listed = torch.zeros(*indices.shape[:-1], n_blocks + 1, dtype=torch.bool, device=indices.device)
    return listed.scatter_(-1, found.long(), True)[..., :n_blocks]


def _key_ranges(seen: torch.Tensor, size: int) -> torch.Tensor:
    """Returns the first key, and one past the last, of the blocks that each row lists."""
    first = torch.arange(seen.shape[-1], device=seen.device, dtype=torch.int32) * size
    begin = torch.where(seen, first, _NO_KEY).amin(-1)
    end = torch.where(seen, first + size, 0).amax(-1)
    return torch.stack([begin, end], -1)


def _check_list(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """Checks a tensor of a block mask; None in ``shape`` allows any size."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise TypeError(f"{name} of a block_mask is nested or sparse; expected torch.strided")
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected torch.int32")
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(
        wanted not in (size, None) for size, wanted in zip(sizes, shape, strict=True)
    ):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(
            f"{name} has shape {sizes}; expected ({expected}): batch and n_heads as kv_num_blocks, "
            "and a row for each block of queries that seq_lengths and block_size make"
        )


def _check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if type(size) is not int:
            raise TypeError(f"{name} is {size!r}; expected an int")
        if not 1 <= size <= _MAX_ROWS:
            maximum = "at least 1" if size < 1 else f"at most {_MAX_ROWS}"
            raise ValueError(f"{name} is {size}; expected {maximum}")


def _check_blocks(batch: int, heads: int, lengths: tuple[int, int], sizes: tuple[int, ...]) -> None:
    """Raises ValueError for too many blocks: kernels index a table of all blocks by 32-bit
    integers."""
    rows, columns = (-(-n // size) for n, size in zip(lengths, sizes, strict=True))
    if (n_blocks := batch * heads * rows * (columns + 1)) > _MAX_BLOCKS:
        raise ValueError(
            f"BLOCK_SIZE is {sizes}, which makes {n_blocks} blocks of (B, H, Q_LEN, KV_LEN) = "
            f"{(batch, heads, *lengths)}; expected at most {_MAX_BLOCKS}: pass larger blocks, or "
            "None for B or H"
        )


def _checked_device(device: Any) -> torch.device:
    """Returns the device; for None the GPU if there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device is {device!r}; expected cpu, cuda or cuda:<number>, or None for the GPU if "
            "there is one"
        )
    n_gpus = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= n_gpus:
        raise ValueError(f"device is {device!r}, but torch sees {n_gpus} GPUs")
    return found


def _rows(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the number of wanted columns in each row, and all column indices, wanted ones
    first."""
    order = torch.argsort((~wanted).to(torch.int8), dim=-1, stable=True)
    return wanted.sum(-1, dtype=torch.int32), order.to(torch.int32)


class _Blocks:
    """Finds the states of the blocks of one mask."""

    def __init__(
        self, mods: Mods, lengths: tuple[int, int], sizes: tuple[int, int], device: torch.device
    ) -> None:
        self._mods = mods
        self._root = mods.expression.visible or 0
        self._bounds = Bounds(mods, self._root)
        self._lengths, self._sizes, self._device = lengths, sizes, device
        self._counts = [-(-n // size) for n, size in zip(lengths, sizes, strict=True)]

    def states(self, batch: int, heads: int) -> torch.Tensor:
        """Returns (batch or 1, heads or 1, blocks of queries, blocks of keys); a size is 1 if the
        mask does not depend on b or h."""
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
        """Returns the states of some rows of blocks of one head."""
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
        """Returns the first and the last query or key of each block."""
        first = blocks * self._sizes[axis]
        return Interval(first, (first + self._sizes[axis]).clamp(max=self._lengths[axis]) - 1)

    def _look(
        self, position: dict[str, torch.Tensor], rows: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor:
        """Returns the states of some blocks, evaluated score by score."""
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
