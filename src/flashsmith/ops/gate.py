"""The gate: every call checks here what its tensors are before anything reads their memory.

A tensor may be memory, or stand for something else: a value in a graph, a value of a function
transform, a number with a tangent. Memory goes straight to a kernel. Tensors that torch's
dispatcher can turn into memory, or record, go through ``operators``. All others are refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch._C import (
    DispatchKey,
    _dispatch_tls_is_dispatch_key_included,
    _get_dispatch_mode,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _TorchDispatchModeKey,
)
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from flashsmith.mods.buffers import was_freed

Function = TypeVar("Function", bound=Callable[..., Any])

# These classes are nothing but memory; other subclasses may need to see the operator.
_OF_MEMORY = {torch.Tensor, torch.nn.Parameter}
_PRE_DISPATCH = DispatchKey.PreDispatch
_FUNCTIONAL = _TorchDispatchModeKey.FUNCTIONAL
_RECORDING_MODES = (_TorchDispatchModeKey.PROXY, _TorchDispatchModeKey.FAKE, _FUNCTIONAL)
# This argument alone holds a list: the tensors that functions capture, which have no names.
CAPTURED = "mod_tensors"
_WRITTEN = ("out", "k_cache", "v_cache")


def are_memory(*tensors: Any) -> bool:
    """Returns whether kernels may read the memory of these tensors, and nothing in torch must see
    the call; False for objects that are not tensors.

    Every call runs this, so no check costs more than some tens of nanoseconds. The library refuses
    tensors whose data pointer is null.
    """
    if (
        is_compiling()
        or _len_torch_dispatch_stack()  # FakeTensorMode, make_fx, FlopCounterMode, checkpointing
        or _get_tracing_state() is not None  # torch.jit.trace
        or peek_interpreter_stack() is not None  # torch.func
        or forward_ad._current_level >= 0
        or _dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)  # make_fx(pre_dispatch=True)
    ):
        return False
    for t in tensors:  # noqa: SIM110 - every call asks, and all() takes twice as long
        if type(t) not in _OF_MEMORY or t.is_neg():
            return False
    return True


def refuse_unknown(**tensors: Any) -> None:
    """Raises for tensors that torch's dispatcher cannot turn into a kernel's input.

    Args:
        tensors: The tensors, by the names of the caller's arguments.

    Raises:
        TypeError: An argument is not a tensor, has no dense rows in memory, or is inside a
            transform of torch.func.
        NotImplementedError: A tensor has a tangent; forward-mode derivatives are not computed.
    """
    found = named(tensors)
    for name, t in found:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor")
    if is_compiling():
        return  # every argument is a tensor of the graph
    for name, t in found:
        _refuse_layout(name, t)
        _refuse_transform(name, t)
        _refuse_tangent(name, t)
    _refuse_some_fake(found)
    for t in tensors.get(CAPTURED, ()):
        _refuse_captured(t, found[0][1])


def explaining(function: Function) -> Function:
    """Wraps a function so that its errors are explained by its tensors, with the names of its
    arguments, if their kind is not supported: torch's own errors say less."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception:
            explain(**signature.bind(*arguments, **keywords).arguments)
            raise

    return call  # type: ignore[return-value]


def explain(**arguments: Any) -> None:
    """Raises if a tensor among a call's arguments explains why the call failed."""
    given = {name: t for name, t in arguments.items() if isinstance(t, torch.Tensor)}
    captured = arguments.get(CAPTURED) or ()
    refuse_unknown(**given, **({CAPTURED: captured} if captured else {}))
    for name, t in given.items():
        refuse_freed(name, t)


def refuse_all_but_memory(**tensors: Any) -> None:
    """Raises TypeError or NotImplementedError for a tensor that a kernel cannot read, and while a
    graph is recorded; for functions that are not operators."""
    refuse_unknown(**tensors)
    if _is_recording():
        name, t = named(tensors)[0]
        raise TypeError(
            f"{name} is a {type(t).__name__} while a graph is recorded or fake tensors are in use, "
            "and this function is no operator: call attention"
        )
    for name, t in named(tensors):
        if t.is_neg():
            raise TypeError(f"{name} is a lazily negated view; pass {name}.resolve_neg()")
        if _has_own_dispatch(t):
            raise TypeError(f"{name} is a {type(t).__name__}; expected a tensor with memory")


def _is_recording() -> bool:
    """Returns whether torch records a graph now, or computes with stand-ins."""
    return (
        _get_tracing_state() is not None
        or _dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)
        or any(_get_dispatch_mode(mode) is not None for mode in _RECORDING_MODES)
    )


def flat(tensors: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors of arguments, captured ones one by one."""
    if CAPTURED not in tensors:
        return list(tensors.values())
    return [t for _, t in named(tensors)]


def named(tensors: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Returns each tensor with its name in messages."""
    if CAPTURED not in tensors:
        return list(tensors.items())
    named = [(name, t) for name, t in tensors.items() if name != CAPTURED]
    return named + [("a captured tensor", t) for t in tensors[CAPTURED]]


def _refuse_layout(name: str, t: torch.Tensor) -> None:
    if torch.nn.parameter.is_lazy(t):
        raise TypeError(f"{name} is a {type(t).__name__}; run its module once before")
    if name in _WRITTEN and t.is_neg():
        raise ValueError(f"{name} is a lazily negated view; nothing can be written into it")
    if t.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; pass its values with cu_seqlens (its offsets as int32)"
        )
    if t.layout != torch.strided:
        raise TypeError(f"{name} has layout {t.layout}; expected torch.strided (dense)")
    if t.is_quantized:
        raise TypeError(f"{name} has dtype {t.dtype}, which is quantized; pass {name}.dequantize()")


def refuse_freed(name: str, t: torch.Tensor) -> None:
    """Raises ValueError for a tensor without memory, which torch itself would read."""
    if not is_compiling() and was_freed(t):
        raise ValueError(f"{name} has no memory: its storage was freed, or never made")


def _refuse_transform(name: str, t: torch.Tensor) -> None:
    """Refuses tensors of torch.vmap, grad and similar; tensors of functionalize are recorded."""
    if torch._is_functional_tensor(t):
        if peek_interpreter_stack() is None and _get_dispatch_mode(_FUNCTIONAL) is None:
            raise TypeError(f"{name} is a functional tensor outside of functionalize")
        return
    if is_functorch_wrapped_tensor(t):
        raise TypeError(
            f"{name} is inside torch.vmap or another function transform, which kernels do not "
            "support; attention takes a batch dimension itself: call it on the whole batch; for "
            "gradients call .backward() or torch.autograd.grad"
        )


def _refuse_tangent(name: str, t: torch.Tensor) -> None:
    if forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(t).tangent is not None:  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            f"{name} has a tangent; forward-mode derivatives are not computed: use reverse mode "
            "(.backward(), torch.autograd.grad), or pass its primal"
        )


def _refuse_captured(t: torch.Tensor, first: torch.Tensor) -> None:
    """Refuses a captured tensor without memory if ``first`` has memory: torch's dispatcher ignores
    tensors in an optional list."""
    if not _has_own_dispatch(t) or type(t) is type(first):
        return
    raise TypeError(
        f"a captured tensor is a {type(t).__name__}, but the call's first tensor is a "
        f"{type(first).__name__}; expected a tensor with memory"
    )


def _has_own_dispatch(t: torch.Tensor) -> bool:
    return type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _refuse_some_fake(named: list[tuple[str, torch.Tensor]]) -> None:
    """Refuses fake tensors beside real ones: a result would have values that nobody computed, and
    real tensors would not be written."""
    is_active = _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None
    fake = [name for name, t in named if isinstance(t, torch._subclasses.FakeTensor)]
    real = [name for name, t in named if not isinstance(t, torch._subclasses.FakeTensor)]
    if real and (fake or is_active):
        others = f"{', '.join(fake)} are" if fake else "a FakeTensorMode is active"
        raise TypeError(
            f"{', '.join(real)} are no FakeTensors, but {others}: pass all of a call as "
            "FakeTensors, or none and outside of their mode"
        )
