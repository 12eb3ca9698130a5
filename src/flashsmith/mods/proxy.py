"""Stand-ins for tensors in a call of a user's function: they record the operations on them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flashsmith.mods.operations import Kind

if TYPE_CHECKING:
    from flashsmith.mods.tracer import Tracer

_DTYPES = {Kind.BOOL: torch.bool, Kind.INT: torch.int32, Kind.FLOAT: torch.float32}

_BRANCH = (
    "its value is only known in the kernel, so Python cannot branch on it; use torch.where for if, "
    "torch.minimum and torch.maximum for min and max, &, | and ~ for and, or and not, and "
    "(a <= x) & (x < b) for a <= x < b"
)
_NUMBER = (
    "its value is only known in the kernel, so it cannot become a Python {}; use functions of "
    "torch instead of math, and tensors of torch instead of lists"
)


def _unary(name: str) -> Callable[[Proxy], Any]:
    return lambda self: self._tracer.call(name, (self,))


def _binary(name: str) -> Callable[[Proxy, Any], Any]:
    return lambda self, other: self._tracer.call(name, (self, other))


def _reflected(name: str) -> Callable[[Proxy, Any], Any]:
    return lambda self, other: self._tracer.call(name, (other, self))


class Proxy:
    """A value of the expression, which looks like a 0-dimensional tensor to the user's function."""

    def __init__(self, tracer: Tracer, place: int) -> None:
        self._tracer = tracer
        self.place = place

    @property
    def kind(self) -> Kind:
        return self._tracer.graph.kind(self.place)

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.kind]

    @property
    def device(self) -> torch.device:
        return self._tracer.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size()

    ndim = 0

    def __repr__(self) -> str:
        return f"<a traced {self.kind.text}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"a traced value has no attribute {name!r}")
        name = "method_where" if name == "where" else name
        return lambda *args, **kwargs: self._tracer.call(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises RuntimeError: the proxy was kept beyond its trace, whose mode sees all calls."""
        raise RuntimeError("a traced value was used after its function had returned")

    def __bool__(self) -> NoReturn:
        self._tracer.refuse(_BRANCH)

    def __int__(self) -> NoReturn:
        self._tracer.refuse(_NUMBER.format("int"))

    def __float__(self) -> NoReturn:
        self._tracer.refuse(_NUMBER.format("float"))

    def __index__(self) -> NoReturn:
        self._tracer.refuse(_NUMBER.format("index"))

    def __iter__(self) -> NoReturn:
        self._tracer.refuse("it is one number, with nothing to iterate over")

    def __hash__(self) -> int:
        self._tracer.refuse(_NUMBER.format("key of a dictionary or set"))

    def __setitem__(self, _index: Any, _value: Any) -> NoReturn:
        self._tracer.refuse("it is one number, with nothing to set")

    def __getitem__(self, _index: Any) -> NoReturn:
        self._tracer.refuse("it is one number, with nothing to index")

    def __eq__(self, other: Any) -> Any:
        return self._tracer.call("eq", (self, other))

    def __ne__(self, other: Any) -> Any:
        return self._tracer.call("ne", (self, other))

    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __neg__, __pos__, __abs__ = _unary("neg"), _unary("positive"), _unary("abs")
    __invert__ = _unary("bitwise_not")
    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _reflected("bitwise_right_shift")


class Partial:
    """A tensor whose first dimensions traced values index: the other indices are still missing."""

    def __init__(self, tracer: Tracer, tensor: torch.Tensor, indices: tuple[Any, ...]) -> None:
        self._tracer = tracer
        self.tensor = tensor
        self.indices = indices

    def __getitem__(self, index: Any) -> Proxy | Partial:
        more = index if isinstance(index, tuple) else (index,)
        return self._tracer.index(self.tensor, (*self.indices, *more))

    def __repr__(self) -> str:
        return f"<a traced tensor of {self.tensor.dim() - len(self.indices)} dimensions>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any) -> NoReturn:
        left = self.tensor.dim() - len(self.indices)
        self._tracer.refuse(f"index all of a captured tensor's dimensions: {left} are left")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a traced tensor was used after its function had returned")


def _refuse_operators() -> None:
    """Makes operators on Partial fail: Python looks them up in the class, not by __getattr__."""
    names = (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
    for name in (*(f"__{n}__" for n in names), *(f"__r{n}__" for n in names)):
        setattr(Partial, name, Partial._refuse)
    for comparison in (operator.lt, operator.le, operator.gt, operator.ge, operator.neg):
        setattr(Partial, f"__{comparison.__name__}__", Partial._refuse)


_refuse_operators()
