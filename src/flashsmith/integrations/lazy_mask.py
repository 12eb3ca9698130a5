"""A mask of transformers that is described, and materialised only when its elements are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

# Python looks these methods up in the class alone.
_OPERATORS = (
    *("bool", "len", "iter", "invert", "and", "rand", "or", "ror", "xor", "rxor"),
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul"),
)


class LazyMask:
    """Describes a tensor (batch, 1, q_length, kv_length) that is added to the scores: 0 where a
    query sees a key, and the dtype's min elsewhere, as all models expect it for eager attention.

    ``attention_forward`` reads the description. Models may use it like a tensor: it is then
    materialised. It is not a subclass of ``torch.Tensor``, so that a compiled graph can take and
    make one, and specialises on the numbers that it reads.

    Attributes:
        offset: The number of keys before the first query's diagonal.
        behind, ahead: The number of keys that a query sees on each side of its diagonal; None: all.
        tokens: bool (batch, kv_length), True for a token; None: all are tokens.
        sequences: (batch, length), the number of each token's sequence; None: one sequence.
    """

    ndim = 4
    requires_grad = False

    def __init__(
        self,
        batch: int,
        q_length: int,
        kv_length: int,
        *,
        offset: int = 0,
        behind: int | None = None,
        ahead: int | None = None,
        tokens: torch.Tensor | None = None,
        sequences: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.batch = batch
        self.q_length = q_length
        self.kv_length = kv_length
        self.offset = offset
        self.behind = behind
        self.ahead = ahead
        self.tokens = tokens
        self.sequences = sequences
        self.dtype = dtype
        self.device = torch.device(device)
        self._found: dict[object, Any] = {}

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.batch, 1, self.q_length, self.kv_length))

    @property
    def is_banded(self) -> bool:
        """Whether the position of a query restricts the keys that it sees."""
        return self.behind is not None or self.ahead is not None

    @property
    def has_window(self) -> bool:
        """Whether a query sees fewer keys than all, or than all up to its diagonal."""
        cut = self.behind is not None and self.behind < self.seen - 1
        return cut or bool(self.ahead)

    @property
    def hides_nothing(self) -> bool:
        """Whether every query sees every key, which is decided without reading positions."""
        sides = (self.behind, self.ahead)
        wide = all(n is None or n > self.kv_length + abs(self.offset) for n in sides)
        return wide and self.tokens is None and self.sequences is None

    @property
    def seen(self) -> int:
        """The number of first keys that some query may see; none sees a later key."""
        if self.ahead is None:
            return self.kv_length
        return min(self.kv_length, max(0, self.offset + self.q_length + self.ahead))

    def once(self, key: object, find: Callable[[], Any]) -> Any:
        """Returns a result that all layers need of the mask; the first layer computes it."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def whole(self) -> torch.Tensor:
        """Returns the tensor. A graph makes a new one, which does not outlive the graph."""
        if torch.compiler.is_compiling():
            return self._made()
        tensor: torch.Tensor = self.once("whole", self._made)
        return tensor

    def _made(self) -> torch.Tensor:
        queries = torch.arange(self.q_length, device=self.device)[:, None] + self.offset
        keys = torch.arange(self.kv_length, device=self.device)
        sees = (queries >= 0) | (keys >= 0)
        if self.behind is not None:
            sees = sees & (keys >= queries - self.behind)
        if self.ahead is not None:
            sees = sees & (keys <= queries + self.ahead)
        sees = sees[None, None]
        if self.tokens is not None:
            sees = sees & self.tokens[:, None, None]
        if self.sequences is not None:
            sees = sees & (self.sequences[:, None, :, None] == self.sequences[:, None, None])
        return added(sees, self.dtype).expand(self.batch, 1, -1, -1)

    # ---- what a tensor has ----

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def contiguous(self) -> LazyMask:
        return self

    def detach(self) -> LazyMask:
        return self

    def is_floating_point(self) -> bool:
        return True

    def to(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns a description, or a tensor for a dtype that is not floating-point."""
        like = torch.empty((), dtype=self.dtype, device=self.device).to(*arguments, **keywords)
        if not like.is_floating_point():
            return self.whole().to(*arguments, **keywords)
        if (like.dtype, like.device) == (self.dtype, self.device):
            return self
        return self._part(slice(None), slice(None), like)

    def __getitem__(self, index: Any) -> Any:
        """Returns a description for a slice of queries and keys; else a tensor."""
        every = slice(None)
        if (
            self.sequences is None
            and isinstance(index, tuple)
            and len(index) == self.ndim
            and all(isinstance(part, slice) and part.step is None for part in index)
            and index[0] == every == index[1]
        ):
            return self._part(index[2], index[3])
        return self.whole()[index]

    def _part(self, queries: slice, keys: slice, like: torch.Tensor | None = None) -> LazyMask:
        first, end, _ = queries.indices(self.q_length)
        first_key, end_of_keys, _ = keys.indices(self.kv_length)
        dtype, device = (self.dtype, self.device) if like is None else (like.dtype, like.device)
        return LazyMask(
            self.batch,
            max(0, end - first),
            max(0, end_of_keys - first_key),
            offset=self.offset + first - first_key,
            behind=self.behind,
            ahead=self.ahead,
            tokens=None if self.tokens is None else self.tokens[:, keys].to(device),
            sequences=None if self.sequences is None else self.sequences.to(device),
            dtype=dtype,
            device=device,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name.endswith("_"):
            raise AttributeError(f"a mask, which layers share, has no {name}")
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(_as_tensor, (args, kwargs or {}))
        return function(*args, **kwargs)


def added(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the tensor that is added to the scores, for a bool tensor that is True where a query
    sees a key."""
    return torch.zeros_like(sees, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)


def _as_tensor(value: Any) -> Any:
    return value.whole() if isinstance(value, LazyMask) else value


def _by_tensor(name: str) -> Any:
    def method(self: LazyMask, *arguments: Any) -> Any:
        return getattr(self.whole(), name)(*(_as_tensor(value) for value in arguments))

    return method


for _name in _OPERATORS:
    setattr(LazyMask, f"__{_name}__", _by_tensor(f"__{_name}__"))
