"""What torch does with a function rather than with a tensor: transforms, traces, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from support.gate_calls import Operation, Tensors
from support.strange import Logging, UnfitError

Transform = Callable[[Operation, str], str]
ALL = "*"


def differ(own: torch.Tensor, right: torch.Tensor) -> str:
    """ "" if two tensors are the same but for the order of their sums."""
    if (own.shape, own.dtype) != (right.shape, right.dtype):
        return f"{own.dtype}{tuple(own.shape)}, expected {right.dtype}{tuple(right.shape)}"
    own, right = own.float(), right.float()
    if torch.allclose(own, right, rtol=1e-2, atol=1e-2, equal_nan=True):
        return ""
    return f"off by {(own - right).abs().max().item():.3g} of {right.abs().max().item():.3g}"


def all_differ(results: Any, expected: Any) -> str:
    found = (differ(*pair) for pair in zip(results, expected, strict=True))
    return next(filter(None, found), "")


def _split(given: Operation, argument: str, seed: int) -> tuple[list[str], list[torch.Tensor]]:
    """The arguments that a transform gets, and their tensors."""
    tensors = given.make(seed)
    names = [*tensors] if argument == ALL else [argument]
    return names, [tensors[name] for name in names]


def _function(given: Operation, names: list[str]) -> Callable[..., Any]:
    """Of these alone; what is written is nobody else's."""
    return lambda *own: given.call(**{**given.make(1), **dict(zip(names, own, strict=True))})


def _check_writes(given: Operation, argument: str) -> None:
    """Graphs and transforms are called with tensors again, after a call has written to them."""
    if argument in given.written:
        raise UnfitError


# ---- transforms ----


def vmapped(given: Operation, argument: str) -> str:
    """Of two samples beside each other."""
    _check_writes(given, argument)
    names, first = _split(given, argument, 1)
    _, second = _split(given, argument, 2)
    if argument == ALL:
        names, first, second = (
            [each for each, n in zip(group, list(names), strict=True) if n not in given.written]
            for group in (names, first, second)
        )
    function = _function(given, names)
    found = torch.vmap(function)(*map(torch.stack, zip(first, second, strict=True)))
    for i, own in enumerate((first, second)):
        if wrong := all_differ([t[i] for t in found], function(*own)):
            return wrong
    return ""


def _changed(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """t where x is 1, through x."""
    return t * x.to(t.dtype) if t.is_floating_point() else t + (x * 0).to(t.dtype)


def _of_a_factor(given: Operation, argument: str) -> Callable[[torch.Tensor], Any]:
    """The results by a number with which arguments are multiplied."""
    if argument == ALL:
        raise UnfitError
    names, tensors = _split(given, argument, 1)
    if tensors[0].dtype == torch.float8_e4m3fn or tensors[0].dtype == torch.bool:
        raise UnfitError
    return lambda x: _function(given, names)(*(_changed(t, x) for t in tensors))


def functionalized(given: Operation, argument: str) -> str:
    _check_writes(given, argument)
    names, tensors = _split(given, argument, 1)
    function = _function(given, names)
    return all_differ(torch.func.functionalize(function)(*tensors), function(*tensors))


def gradient(given: Operation, argument: str) -> str:
    """torch.func.grad."""
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
    """torch.func.jvp: nothing here computes tangents."""
    function = _of_a_factor(given, argument)
    torch.func.jvp(function, (torch.tensor(1.0),), (torch.tensor(1.0),))
    return "taken" if given.make(1)[argument].is_floating_point() else ""


def dual(given: Operation, argument: str) -> str:
    """A dual number: a result without a tangent would read as a tangent of zeros."""
    names, tensors = _split(given, argument, 1)
    with forward_ad.dual_level():
        made = []
        for t in tensors:
            if t.is_floating_point() and t.dtype != torch.float8_e4m3fn:
                made.append(forward_ad.make_dual(t, torch.ones_like(t)))
            elif argument != ALL:
                raise UnfitError
            else:
                made.append(t)
        _function(given, names)(*made)
    return "taken"


# ---- graphs ----


def _replayed(given: Operation, names: list[str], graph: Callable[..., Any]) -> str:
    """A graph, of other values."""
    for seed in (2, 3, 2):
        given_now = given.make(seed)
        own = [given_now[name] for name in names]
        right = [t.clone() for t in own]
        expected = _function(given, names)(*right)
        if wrong := all_differ(graph(*own), expected):
            return f"the graph, of other values: {wrong}"
        for name, t, r in zip(names, own, right, strict=True):
            if name in given.written and (wrong := differ(t, r)):
                return f"the graph, of other values: {name}: {wrong}"
    return ""


def made_fx(given: Operation, argument: str, mode: str, **keywords: Any) -> str:
    names, tensors = _split(given, argument, 1)
    function = _function(given, names)
    graph = make_fx(function, tracing_mode=mode, **keywords)(*tensors)
    return _replayed(given, names, graph)


def jit_traced(given: Operation, argument: str) -> str:
    names, tensors = _split(given, argument, 1)
    function = _function(given, names)
    function(*(t.clone() for t in tensors))  # a call of these shapes
    graph = torch.jit.trace(function, tuple(tensors), check_trace=False)
    return _replayed(given, names, graph)


def symbolically_traced(given: Operation, argument: str) -> str:
    names, _ = _split(given, argument, 1)
    arguments = ", ".join(names)
    space: dict[str, Any] = {"function": _function(given, names)}
    exec(f"def wrapped({arguments}): return function({arguments})", space)
    graph = torch.fx.symbolic_trace(space["wrapped"])
    return _replayed(given, names, graph)


def exported(given: Operation, argument: str) -> str:
    if argument != ALL:
        raise UnfitError

    class Module(torch.nn.Module):
        def forward(self, tensors: Tensors) -> Any:
            return given.call(**tensors)

    program = torch.export.export(Module(), (given.make(1),), strict=False)
    names = [*given.make(1)]
    return _replayed(
        given, names, lambda *own: program.module()(dict(zip(names, own, strict=True)))
    )


def logged(given: Operation, argument: str) -> str:
    """A mode of torch's dispatcher sees the operator, where there is one."""
    if argument != ALL:
        raise UnfitError
    names, tensors = _split(given, argument, 1)
    with Logging() as log:
        found = _function(given, names)(*tensors)
    if wrong := all_differ(found, _function(given, names)(*_split(given, argument, 1)[1])):
        return wrong
    if given.traced and not any("flashsmith" in name for name in log.seen):
        return f"the mode saw {sorted(set(log.seen))}, and no operator of flashsmith"
    return ""


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
}
