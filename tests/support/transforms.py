"""Applies to functions what torch does with them: transforms, traces, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import flashsmith
from support.gate_calls import Operation, functions_of
from support.strange import Logging, UnfitError

Transform = Callable[[Operation, str], str]
ALL = "*"


def differ(own: torch.Tensor, right: torch.Tensor) -> str:
    """Describes how two tensors differ beyond the order of their sums; empty if they do not."""
    if (own.shape, own.dtype) != (right.shape, right.dtype):
        return f"{own.dtype}{tuple(own.shape)}, expected {right.dtype}{tuple(right.shape)}"
    own, right = own.float(), right.float()
    if torch.allclose(own, right, rtol=1e-2, atol=1e-2, equal_nan=True):
        return ""
    return f"off by {(own - right).abs().max().item():.3g} of {right.abs().max().item():.3g}"


def all_differ(results: Any, expected: Any) -> str:
    found = (differ(*pair) for pair in zip(results, expected, strict=True))
    return next(filter(None, found), "")


class Bound:
    """An operation as a function of one of its arguments, or of all.

    The other arguments are those of the first seed; ``fresh`` restores written ones before a call.
    """

    def __init__(self, given: Operation, argument: str) -> None:
        self.given = given
        self._others = given.make(1)
        self._kept = {name: self._others[name].clone() for name in given.written}
        self.names = [*self._others] if argument == ALL else [argument]

    def tensors(self, seed: int) -> list[torch.Tensor]:
        drawn = self.given.make(seed)
        return [drawn[name] for name in self.names]

    def __call__(self, *own: torch.Tensor) -> Any:
        return self.given.call(**self._others | dict(zip(self.names, own, strict=True)))

    def fresh(self, *own: torch.Tensor, function: Callable[..., Any] | None = None) -> Any:
        for name, t in self._kept.items():
            self._others[name].copy_(t)
        return (function or self)(*own)


# ---- transforms ----


def vmapped(given: Operation, argument: str) -> str:
    """Compares torch.vmap over two samples with two calls."""
    bound = Bound(given, argument)
    samples = bound.tensors(1), bound.tensors(2)
    stacked = [torch.stack(pair) for pair in zip(*samples, strict=True)]
    found = bound.fresh(*stacked, function=torch.vmap(bound))
    for i, own in enumerate(samples):
        if wrong := all_differ([t[i] for t in found], bound.fresh(*own)):
            return wrong
        if wrong := _written_differ(bound, [t[i] for t in stacked], own):
            return wrong
    return ""


def _changed(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns t, which depends on x and has its own value where x is 1."""
    return t * x.to(t.dtype) if t.is_floating_point() else t + (x * 0).to(t.dtype)


def _of_a_factor(given: Operation, argument: str) -> Callable[[torch.Tensor], Any]:
    """Returns the results as a function of a number by which an argument is multiplied."""
    if argument == ALL or argument in given.written:
        raise UnfitError
    bound = Bound(given, argument)
    (t,) = bound.tensors(1)
    if t.dtype in (torch.float8_e4m3fn, torch.bool):
        raise UnfitError
    return lambda x: bound(_changed(t, x))


def functionalized(given: Operation, argument: str) -> str:
    bound = Bound(given, argument)
    own, right = bound.tensors(1), bound.tensors(1)
    found = bound.fresh(*own, function=torch.func.functionalize(bound))
    if wrong := all_differ(found, bound.fresh(*right)):
        return wrong
    return _written_differ(bound, own, right)


def _written_differ(bound: Bound, own: list[torch.Tensor], right: list[torch.Tensor]) -> str:
    for name, t, r in zip(bound.names, own, right, strict=True):
        if name in bound.given.written and (wrong := differ(t, r)):
            return f"{name} was written: {wrong}"
    return ""


def gradient(given: Operation, argument: str) -> str:
    """Compares torch.func.grad with a difference quotient."""
    function = _of_a_factor(given, argument)
    loss = lambda x: sum(t.float().nan_to_num(neginf=0).sum() for t in function(x))  # noqa: E731
    found = torch.func.grad(loss)(torch.tensor(1.0))
    if not given.make(1)[argument].is_floating_point():
        return "" if found == 0 else f"a gradient of {found} by whole numbers"
    low, high = (loss(torch.tensor(x)) for x in (0.75, 1.25))
    slope = (high - low) / 0.5
    close = abs(found - slope) <= 0.2 * abs(slope) + 0.5
    return "" if close else f"gradient {found}, by differences {slope}"


def pushed_forward(given: Operation, argument: str) -> str:
    """Calls torch.func.jvp, which has to be refused: flashsmith computes no tangents."""
    function = _of_a_factor(given, argument)
    torch.func.jvp(function, (torch.tensor(1.0),), (torch.tensor(1.0),))
    return "taken" if given.make(1)[argument].is_floating_point() else ""


def dual(given: Operation, argument: str) -> str:
    """Passes dual numbers, which have to be refused: a missing tangent would read as zeros."""
    bound = Bound(given, argument)
    with forward_ad.dual_level():
        made = []
        for t in bound.tensors(1):
            if t.is_floating_point() and t.dtype != torch.float8_e4m3fn:
                made.append(forward_ad.make_dual(t, torch.ones_like(t)))
            elif argument != ALL:
                raise UnfitError
            else:
                made.append(t)
        bound(*made)
    return "taken"


# ---- graphs ----


def _replayed(bound: Bound, graph: Callable[..., Any]) -> str:
    """Compares a graph, replayed on other values, with calls."""
    for seed in (2, 3):
        own, right = bound.tensors(seed), bound.tensors(seed)
        found = bound.fresh(*own, function=graph)
        if wrong := all_differ(found, bound.fresh(*right)) or _written_differ(bound, own, right):
            return f"the graph, of other values: {wrong}"
    return ""


def made_fx(given: Operation, argument: str, mode: str, **keywords: Any) -> str:
    bound = Bound(given, argument)
    graph = make_fx(bound, tracing_mode=mode, **keywords)(*bound.tensors(1))
    return _replayed(bound, graph)


def jit_traced(given: Operation, argument: str) -> str:
    bound = Bound(given, argument)
    bound.fresh(*bound.tensors(1))  # a call of these shapes comes first
    graph = torch.jit.trace(bound.__call__, tuple(bound.tensors(1)), check_trace=False)
    return _replayed(bound, graph)


def symbolically_traced(given: Operation, argument: str) -> str:
    bound = Bound(given, argument)
    arguments = ", ".join(bound.names)
    space: dict[str, Any] = {"bound": bound}
    exec(f"def wrapped({arguments}): return bound({arguments})", space)
    try:
        graph = torch.fx.symbolic_trace(space["wrapped"])
    except torch.fx.proxy.TraceError:  # torch's error, which tells how to wrap a function
        return ""
    return _replayed(bound, graph)


def exported(given: Operation, argument: str) -> str:
    if argument != ALL:
        raise UnfitError
    bound = Bound(given, argument)

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return bound(*tensors)

    program = torch.export.export(Module(), tuple(bound.tensors(1)), strict=False)
    return _replayed(bound, program.module())


def logged(given: Operation, argument: str) -> str:
    """Checks that a mode of torch's dispatcher sees the operator, if there is one."""
    if argument != ALL:
        raise UnfitError
    bound = Bound(given, argument)
    own, right = bound.tensors(1), bound.tensors(1)
    with Logging() as log:
        found = bound(*own)
    if wrong := all_differ(found, bound(*right)) or _written_differ(bound, own, right):
        return wrong
    if given.traced and not any("flashsmith" in name for name in log.seen):
        return f"the mode saw {sorted(set(log.seen))}, and no operator of flashsmith"
    return ""


def emptied_between(given: Operation, argument: str) -> str:
    """Frees an argument's memory before the backward, as sharded parameters do."""
    tensors = given.make(1)
    if argument == ALL or argument not in tensors:
        raise UnfitError
    leaf = tensors["q"] = tensors["q"].requires_grad_()
    functions = {"table", "ids"} & {*tensors}
    taken = {name: t for name, t in tensors.items() if name not in functions}
    if functions:
        taken |= functions_of(tensors["table"], tensors["ids"])
    o = flashsmith.attention(**taken)
    tensors[argument].untyped_storage().resize_(0)
    torch.autograd.grad(o.sum(), leaf)  # type: ignore[union-attr]
    return "taken"


TRANSFORMS: dict[str, Transform] = {
    "vmap": vmapped,
    "functionalize": functionalized,
    "grad": gradient,
    "jvp": pushed_forward,
    "a dual number": dual,
    "make_fx, real": partial(made_fx, mode="real"),
    "make_fx, fake": partial(made_fx, mode="fake", _allow_non_fake_inputs=True),
    "make_fx, symbolic": partial(made_fx, mode="symbolic", _allow_non_fake_inputs=True),
    "jit.trace": jit_traced,
    "symbolic_trace": symbolically_traced,
    "export": exported,
    "a dispatch mode": logged,
    "emptied before the backward": emptied_between,
}
# These also apply to functions that differentiate inside.
OF_GRADIENTS = ("a dual number", "make_fx, real", "a dispatch mode", "emptied before the backward")
