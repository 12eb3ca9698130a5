"""Calls a user's function once with proxies; what it does to them becomes an expression."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from flashsmith.errors import TracingError
from flashsmith.mods import buffers
from flashsmith.mods.expression import ELEMENTS
from flashsmith.mods.graph import Graph
from flashsmith.mods.operations import Kind
from flashsmith.mods.proxy import Partial, Proxy
from flashsmith.mods.torch_calls import CALLS, SUPPORTED, constant_of

_OWN_FOLDERS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


class Tracer:
    """Traces calls of a user's functions, which share one graph and its buffers."""

    def __init__(self, device: torch.device) -> None:
        self.graph = Graph()
        self.device = device
        self.tensors: list[torch.Tensor] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._name = ""
        self._function: Any = None

    def trace(self, name: str, function: Any, inputs: tuple[str, ...]) -> Any:
        """Returns the result of ``function`` for proxies of these inputs; messages call it
        ``name``."""
        self._name, self._function = name, function
        proxies = [Proxy(self, self.graph.input(each)) for each in inputs]
        with _Calls(self):
            return function(*proxies)

    def refuse(self, reason: str) -> NoReturn:
        raise TracingError(f"{self._name}{_user_line()}: {reason}")

    def refuse_result(self, reason: str) -> NoReturn:
        """Raises TracingError at the function's first line, because the function has returned."""
        code = getattr(self._function, "__code__", None)
        where = f", {code.co_filename}:{code.co_firstlineno}" if code else ""
        raise TracingError(f"{self._name}{where}: it returns {reason}")

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls torch's function ``name`` with proxies among its arguments."""
        if name not in CALLS:
            self.refuse(f"torch's {name!r} is not supported; supported are {', '.join(SUPPORTED)}")
        try:
            return CALLS[name](self, *args, **(kwargs or {}))
        except (ValueError, TypeError) as error:
            self.refuse(f"torch's {name!r}: {error}")

    def apply(self, name: str, *operands: Any) -> Proxy:
        return Proxy(self, self.graph.apply(name, *(self.place(each) for each in operands)))

    def place(self, value: Any) -> int:
        """Returns the index of a proxy, a number, or a captured tensor of one element."""
        if isinstance(value, Proxy):
            return value.place
        if isinstance(value, bool | int | float):
            return self.graph.constant(value)
        if isinstance(value, torch.Tensor):
            if value.dim():
                raise ValueError(
                    f"a captured tensor of shape {tuple(value.shape)} is used whole; index all of "
                    "its dimensions"
                )
            return self._scalar(value)
        if isinstance(value, Partial):
            value._refuse()
        raise TypeError(f"got a {type(value).__name__}; expected a traced value or a number")

    def index(self, tensor: torch.Tensor, indices: tuple[Any, ...]) -> Proxy | Partial:
        """Returns ``tensor[indices]`` with at least one proxy among the indices."""
        if torch.nn.parameter.is_lazy(tensor):
            self.refuse(f"a captured {type(tensor).__name__} has no elements yet")
        if len(indices) > tensor.dim():
            self.refuse(f"{len(indices)} indices for a tensor of {tensor.dim()} dimensions")
        for index in indices:
            kind = index.kind if isinstance(index, Proxy) else None
            if type(index) is not int and kind is not Kind.INT:
                self.refuse(
                    f"a captured tensor is indexed by {index!r}; expected traced ints and Python "
                    "ints"
                )
        if len(indices) < tensor.dim():
            return Partial(self, tensor, indices)
        try:
            return self._load(tensor, [self.place(index) for index in indices])
        except ValueError as error:
            self.refuse(str(error))

    def _scalar(self, tensor: torch.Tensor) -> int:
        """Returns the index of a 0-dimensional tensor: an integer on the CPU becomes a constant,
        which needs no synchronisation; others are loaded by the kernel."""
        if tensor.device.type == "cpu" and not tensor.is_floating_point():
            return self.graph.constant(tensor.item())
        return self._load(tensor, []).place

    def _load(self, tensor: torch.Tensor, indices: list[int]) -> Proxy:
        described = buffers.describe(tensor)
        buffers.check_device(tensor, self.device)
        # A function that indexes a tensor with numbers first makes a new view at every use, so the
        # key is the memory, which fake tensors have too.
        memory = tensor.untyped_storage()._cdata, tensor.storage_offset()
        # Sizes are text here, because symbolic sizes cannot be keys.
        key = (memory, tensor.dtype, str(tensor.shape), str(tensor.stride()), tensor.device)
        if key not in self._known:
            buffers.check_count(len(self.tensors) + 1)
            self._known[key] = self.graph.buffer(described)
            self.tensors.append(tensor)
        kind = ELEMENTS[described.element]
        return Proxy(self, self.graph.load(self._known[key], kind, indices))


class _Calls(TorchFunctionMode):
    """Intercepts every call of torch in the user's function."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = "method_where" if func is torch.Tensor.where else func.__name__
        name, kwargs = name.removeprefix("special_"), kwargs or {}
        if not any(isinstance(each, Proxy | Partial) for each in _flat((args, kwargs))):
            return constant_of(self._tracer, func, name, args, kwargs)
        if name == "__getitem__":
            tensor, index = args
            return self._tracer.index(tensor, index if isinstance(index, tuple) else (index,))
        return self._tracer.call(name, args, kwargs)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        yield from _flat(tuple(value.values()))
    else:
        yield value


def _user_line() -> str:
    """Returns the user's file and line of the innermost call, like `, mods.py:12`."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    return f", {frame.f_code.co_filename}:{frame.f_lineno}"
