"""Makes tensors that are not what they seem: all kinds that torch has, each from a plain one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class UnfitError(Exception):
    """This kind of tensor does not exist in this shape or dtype."""


@dataclass(frozen=True)
class Kind:
    """One kind of tensor.

    begin: Returns, for one call, a maker of such tensors from plain ones, and the call's context.
    plain: Converts a result, or a written tensor, to a plain one.
    expected: "any": right, or refused; "taken": right; "refused"; "shape": without values, or
        refused.
    value: Returns the plain tensor of the same numbers; None: it is the original one.
    """

    begin: Callable[[], tuple[Callable[[torch.Tensor], Any], AbstractContextManager[Any]]]
    plain: Callable[[Any], torch.Tensor] = lambda t: t.detach()
    expected: str = "any"
    value: Callable[[torch.Tensor], torch.Tensor] | None = None


def of(
    make: Callable[[torch.Tensor], Any],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **keywords: Any,
) -> Kind:
    return Kind(lambda: (make, around()), **keywords)


# ---- subclasses ----


class Plain(torch.Tensor):
    pass


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """A wrapper of another tensor, which alone has memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"Wrapper({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


def unwrapped(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return t.inner if isinstance(t, Wrapper) else t


def plain_of_subclass(t: torch.Tensor) -> torch.Tensor:
    return t.detach().as_subclass(torch.Tensor)


# ---- bits ----


def negative(t: torch.Tensor) -> torch.Tensor:
    if t.dtype in (torch.bool, torch.float8_e4m3fn):
        raise UnfitError
    made = torch._neg_view(-t)
    assert made.is_neg()
    return made


def imaginary(t: torch.Tensor) -> torch.Tensor:
    """Returns the imaginary part of a conjugate, which has the negative bit set."""
    if t.dtype != torch.float32:
        raise UnfitError
    return torch.complex(torch.zeros_like(t), -t).conj().imag


def zero(t: torch.Tensor) -> torch.Tensor:
    """Returns zeros without memory."""
    return torch._efficientzerotensor(t.shape, dtype=t.dtype)


def complex_of(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex64)


# ---- layouts ----


def sparse_rows(t: torch.Tensor) -> torch.Tensor:
    if t.ndim < 2 or t.dtype == torch.float8_e4m3fn:
        raise UnfitError
    return t.to_sparse_csr()


def coordinates(t: torch.Tensor) -> torch.Tensor:
    if t.dtype == torch.float8_e4m3fn:
        raise UnfitError
    return t.to_sparse()


def mkldnn(t: torch.Tensor) -> torch.Tensor:
    if t.dtype not in (torch.float32, torch.bfloat16):
        raise UnfitError
    return t.to_mkldnn()


def quantised(t: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)


def nested(layout: torch.layout) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(t: torch.Tensor) -> torch.Tensor:
        if t.ndim < 2:
            raise UnfitError
        return torch.nested.as_nested_tensor([*t.unbind(0)], layout=layout)

    return make


# ---- memory ----


def emptied(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


def uninitialised(t: torch.Tensor) -> torch.Tensor:
    return torch.nn.UninitializedParameter(requires_grad=False)


# ---- modes ----


class Logging(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def fake(inside: bool, **keywords: Any) -> Kind:
    def begin() -> tuple[Callable[[torch.Tensor], Any], AbstractContextManager[Any]]:
        mode = FakeTensorMode(**keywords)
        return mode.from_tensor, mode if inside else nullcontext()

    return Kind(begin, expected="shape")


def fake_on(device: str) -> Kind:
    """Returns fake tensors of a device that may not exist."""

    def begin() -> tuple[Callable[[torch.Tensor], Any], AbstractContextManager[Any]]:
        mode = FakeTensorMode()

        def make(t: torch.Tensor) -> torch.Tensor:
            meta = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
            with mode:
                return FakeTensor(mode, meta, torch.device(device))

        return make, mode

    return Kind(begin, expected="shape")


def functional(t: torch.Tensor) -> torch.Tensor:
    return torch._to_functional_tensor(t)


def of_functional(t: torch.Tensor) -> torch.Tensor:
    if torch._is_functional_tensor(t):
        torch._sync(t)
        return torch._from_functional_tensor(t)
    return t


KINDS: dict[str, Kind] = {
    "a plain tensor": of(lambda t: t, expected="taken"),
    "a plain subclass": of(
        lambda t: t.as_subclass(Plain), plain=plain_of_subclass, expected="taken"
    ),
    "a subclass that overrides": of(
        lambda t: t.as_subclass(Overriding), plain=plain_of_subclass, expected="taken"
    ),
    "a Parameter": of(lambda t: torch.nn.Parameter(t, requires_grad=False), expected="taken"),
    "a Buffer": of(torch.nn.Buffer, expected="taken"),
    "an UninitializedParameter": of(uninitialised, expected="refused"),
    "a wrapper": of(Wrapper, plain=unwrapped),
    "an inference tensor": Kind(
        lambda: (torch.inference_mode()(torch.clone), torch.inference_mode()), expected="taken"
    ),
    "negative": of(negative, plain=lambda t: t.detach().resolve_neg()),
    "imaginary": of(imaginary, plain=lambda t: t.detach().resolve_neg()),
    "zeros without memory": of(zero, value=torch.zeros_like),
    "complex": of(complex_of, expected="refused"),
    "conjugate": of(lambda t: complex_of(t).conj(), expected="refused"),
    "sparse": of(coordinates, expected="refused"),
    "sparse rows": of(sparse_rows, expected="refused"),
    "mkldnn": of(mkldnn, expected="refused"),
    "quantised": of(quantised, expected="refused"),
    "jagged": of(nested(torch.jagged), expected="refused"),
    "nested": of(nested(torch.strided), expected="refused"),
    "emptied": of(emptied, expected="refused"),
    "meta": of(lambda t: t.to("meta"), expected="shape"),
    "a list": of(lambda t: t.tolist(), expected="refused"),
    "an array": of(lambda t: t.float().numpy(), expected="refused"),
    "functional": of(functional, plain=of_functional),
    "fake, inside": fake(True),
    "fake, outside": fake(False),
    "fake, inside, others real": fake(True, allow_non_fake_inputs=True),
    "fake, outside, others real": fake(False, allow_non_fake_inputs=True),
    "fake of cuda": fake_on("cuda:0"),
    "fake of mps": fake_on("mps:0"),
    "real in a fake mode": Kind(
        lambda: (lambda t: t, FakeTensorMode(allow_non_fake_inputs=True)), expected="shape"
    ),
    "under functions": of(lambda t: t, Functions, expected="taken"),
    "under another device": of(lambda t: t, lambda: torch.device("meta"), expected="taken"),
    "under autocast": of(
        lambda t: t, lambda: torch.autocast("cpu", torch.bfloat16), expected="taken"
    ),
}
