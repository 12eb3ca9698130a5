"""``trace`` turns a user's functions into an expression and the tensors that it reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.mods.expression import Expression
from flashsmith.mods.operations import Kind
from flashsmith.mods.proxy import Partial
from flashsmith.mods.tracer import Tracer

ScoreMod = Callable[..., Any]
MaskMod = Callable[..., Any]

_POSITION = ("b", "h", "q", "kv")


@dataclass(frozen=True)
class Mods:
    """The expression of both functions, and its tensors.

    buffers: The captured tensors, in the expression's order; their values are read at each call.
    """

    expression: Expression
    buffers: tuple[torch.Tensor, ...]


def trace(
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    device: torch.device | str = "cpu",
) -> Mods:
    """Returns the computation of the functions, recorded by calling each once with proxies.

    Args:
        score_mod: (score, b, h, q_idx, kv_idx) -> the score to use instead.
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key.
        device: The device on which the functions run and captured tensors are.

    Raises:
        TracingError: A function branches on a value, or uses an operation that kernels lack; the
            message names the line and what to do.
        TypeError: An argument is not a function with the required arguments.
    """
    tracer = Tracer(torch.device(device))
    score = visible = None
    if score_mod is not None:
        _check_signature("score_mod", score_mod, "(score, b, h, q_idx, kv_idx)")
        returned = tracer.trace("score_mod", score_mod, ("score", *_POSITION))
        score = _result(tracer, returned, Kind.FLOAT)
    if mask_mod is not None:
        _check_signature("mask_mod", mask_mod, "(b, h, q_idx, kv_idx)")
        returned = tracer.trace("mask_mod", mask_mod, _POSITION)
        visible = _result(tracer, returned, Kind.BOOL)
    expression, used = tracer.graph.finish(score, visible)
    return Mods(expression, tuple(tracer.tensors[k] for k in used))


def _check_signature(name: str, function: Any, signature: str) -> None:
    if not callable(function):
        raise TypeError(
            f"{name} is a {type(function).__name__}; expected a function of {signature}, or None"
        )
    arguments = signature.strip("()").split(", ")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise TypeError(
            f"{name} takes {inspect.signature(function)}; expected a function of {signature}"
        ) from None
    except ValueError:  # a C function has no signature
        return


def _result(tracer: Tracer, returned: Any, kind: Kind) -> int:
    """Returns the index of the value that a function returned."""
    if isinstance(returned, Partial):
        tracer.refuse_result(f"a tensor, {returned!r}; expected one {kind.text}")
    if isinstance(returned, torch.Tensor) and returned.dim():
        shape = tuple(returned.shape)
        tracer.refuse_result(f"a tensor of shape {shape}; expected one {kind.text}")
    try:
        place = tracer.place(returned)
    except ValueError as error:
        tracer.refuse_result(f"what cannot be read: {error}")
    except TypeError:
        tracer.refuse_result(f"a {type(returned).__name__}; expected {kind.text}")
    found = tracer.graph.kind(place)
    if (kind is Kind.BOOL) != (found is Kind.BOOL):
        tracer.refuse_result(f"{found.text}; expected {kind.text}")
    return tracer.graph.convert(place, kind)
