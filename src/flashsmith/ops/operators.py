"""Attention as operators of torch: what torch.compile and torch.export see of it.

``attention`` calls them where something traces it alone: going through torch's dispatcher would
cost a call more than the rest of its host code does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from flashsmith.configs import AttentionKernelConfig, parse_kernel_name_into_config
from flashsmith.ops.backward import GradientMask, backward_of_saved
from flashsmith.ops.checks import (
    FP8,
    needs_gradient,
    refuse_gradients,
    refuse_out,
    refuse_second_derivative,
)
from flashsmith.ops.flops import backward_flops, forward_flops, register_flops
from flashsmith.ops.forward import run_attention
from flashsmith.ops.gate import CAPTURED, flat
from flashsmith.ops.sharding import let_dtensors_know
from flashsmith.ops.spec import AttentionSpec, tensors_of
from flashsmith.runtime import GradientTensors

# After the tensors and ``return_lse``. Nothing is for keywords alone, because torch registers
# gradients of no such tensors.
_ARGUMENTS = (
    "Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? bias=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "Tensor? rng_state=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "bool causal=False, bool top_left=False, SymInt window_left=-1, SymInt window_right=-1, "
    "float? softmax_scale=None, float softcap=0.0, float dropout_p=0.0, "
    "str? config=None, bool deterministic=False, "
    "Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "int score=0, Tensor[]? mod_tensors=None, Tensor? key_ranges=None, int rows_per_range=1"
)

_library: Any = torch.library.Library("flashsmith", "DEF")  # type: ignore[no-untyped-call]
# Returns o and the log-sum-exp, which is empty where it is not asked for.
_library.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, bool return_lse=False, {_ARGUMENTS}) "
    "-> (Tensor, Tensor)"
)
_SCHEMA = torch.ops.flashsmith.attention_forward.default._schema
_DEFAULTS = {each.name: each.default_value for each in _SCHEMA.arguments[4:]}  # of _ARGUMENTS
# The same into a tensor that is given.
_library.define(
    "attention_forward_out(Tensor q, Tensor k, Tensor v, Tensor(o!) out, bool return_lse=False, "
    f"{_ARGUMENTS}) -> Tensor"
)
# The gradients of attention_forward; those of sinks and bias are empty where they are not wanted.
_library.define(
    "attention_backward(Tensor? do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, "
    f"Tensor lse, bool wants_sinks, bool wants_bias, {_ARGUMENTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_OPERATORS = ("attention_forward", "attention_forward_out", "attention_backward")
_NAMES = ("q", "k", "v", "return_lse", *_DEFAULTS)  # of attention_forward's arguments


def call_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None,
    config: AttentionKernelConfig | None,
    return_lse: bool,
    deterministic: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``run_attention``, as one operator to whatever traces it, and differentiable.

    Args, returns: as there.
    deterministic: Of gradients.
    """
    let_dtensors_know(*_OPERATORS)
    differentiable = needs_gradient(q, k, v, *flat(tensors_of(spec)))
    keywords = _arguments_of(spec) | {
        "config": None if config is None else str(config),
        "return_lse": return_lse or differentiable,
        "deterministic": deterministic,
    }
    if differentiable:
        refuse_out(out)
    if out is None:
        o, lse = torch.ops.flashsmith.attention_forward(q, k, v, **keywords)
    else:
        o, lse = out, torch.ops.flashsmith.attention_forward_out(q, k, v, out, **keywords)
    return (o, lse) if return_lse else o


def _arguments_of(spec: AttentionSpec) -> dict[str, Any]:
    """The operators' arguments that say what a specification does; those at their defaults are left
    out, so that a graph shows what its calls compute."""
    given: dict[str, Any] = dict(zip(AttentionSpec._fields, spec, strict=True))
    given["window_left"], given["window_right"] = given.pop("window_size")
    del given["block_table"]  # operators take no pages
    return {
        name: each
        for name, each in given.items()
        if isinstance(each, torch.Tensor) or each != _DEFAULTS[name]
    }


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any, **keywords: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _call(q, k, v, None, *arguments, **keywords)


def _forward_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *arguments: Any,
    **keywords: Any,
) -> torch.Tensor:
    return _call(q, k, v, out, *arguments, **keywords)[1]


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    return_lse: bool = False,
    *arguments: Any,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what the operators compute; the arguments in the order of their schemas."""
    given = _given(arguments, keywords)
    config = None if given.config is None else parsed_config(given.config)
    result = run_attention(q, k, v, given.spec, out, config, return_lse)
    return result if isinstance(result, tuple) else (result, no_lse(q))


class _Given(NamedTuple):
    """What the operators' arguments say."""

    spec: AttentionSpec
    config: str | None
    deterministic: bool


def _given(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> _Given:
    given = {**_DEFAULTS, **dict(zip(_DEFAULTS, arguments, strict=False)), **keywords}
    config, deterministic = given.pop("config"), given.pop("deterministic")
    given["window_size"] = given.pop("window_left"), given.pop("window_right")
    return _Given(AttentionSpec(**given), config, deterministic)


@functools.cache
def parsed_config(config: str) -> Any:
    """Returns one object for each name: calls are told apart by it."""
    return parse_kernel_name_into_config(config)


def _fake_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    return_lse: bool = False,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.bfloat16 if v.dtype == FP8 else v.dtype
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype), fake_lse(q, return_lse)


def _fake_forward_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    return_lse: bool = False,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    return fake_lse(q, return_lse)


def fake_lse(q: torch.Tensor, return_lse: bool) -> torch.Tensor:
    """Returns what operators return beside o, of the shape that it will have."""
    *batch, seq_len, heads, _ = q.shape
    return q.new_empty((*batch, heads, seq_len), dtype=torch.float32) if return_lse else no_lse(q)


def no_lse(q: torch.Tensor) -> torch.Tensor:
    """Returns what operators return in place of a log-sum-exp."""
    return q.new_empty(0, dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What the backward needs of a call of attention_forward."""
    given = dict(zip(_NAMES, inputs, strict=True))
    refuse_gradients(alibi_slopes=given["alibi_slopes"])
    ctx.set_materialize_grads(False)
    ctx.tensors = [name for name, each in given.items() if isinstance(each, torch.Tensor)]
    captured = given[CAPTURED] or ()
    ctx.n_captured = len(captured)
    ctx.save_for_backward(*captured, *(given[name] for name in ctx.tensors), *output)
    ctx.others = {name: given[name] for name in _DEFAULTS if name not in ctx.tensors}


def _differentiate(
    ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    *saved, o, lse = ctx.saved_tensors
    captured, saved = saved[: ctx.n_captured], saved[ctx.n_captured :]
    given = ctx.others | dict(zip(ctx.tensors, saved, strict=True))
    given[CAPTURED] = captured or None
    # The dispatcher leaves out what is at its default behind the last argument that is not.
    names = _NAMES[: len(ctx.needs_input_grad)]
    wants = dict.fromkeys(_NAMES, False) | dict(zip(names, ctx.needs_input_grad, strict=True))
    q, k, v = (given.pop(name) for name in "qkv")
    dq, dk, dv, dsinks, dbias = torch.ops.flashsmith.attention_backward(
        do, dlse, q, k, v, o, lse, wants["sinks"], wants["bias"], **given
    )
    found = {"q": dq, "k": dk, "v": dv, "sinks": dsinks, "bias": dbias}
    wanted: dict[str, Any] = {name: t for name, t in found.items() if wants[name]}
    if ctx.n_captured:
        wanted[CAPTURED] = [None] * ctx.n_captured  # torch wants a list for a list
    return tuple(wanted.get(name) for name in names)


def _backward(
    do: torch.Tensor | None,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    wants_sinks: bool,
    wants_bias: bool,
    *arguments: Any,
    **keywords: Any,
) -> tuple[torch.Tensor, ...]:
    given = _given(arguments, keywords)  # whose configuration is the forward's
    tensors = GradientTensors(q, k, v, o, lse, do, dlse=dlse)
    wanted = GradientMask(wants_sinks, wants_bias)
    gradients = backward_of_saved(tensors, given.spec, wanted, given.deterministic)
    return tuple(q.new_empty(0) if each is None else each for each in gradients)


def _fake_backward(
    do: torch.Tensor | None,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    wants_sinks: bool,
    wants_bias: bool,
    *arguments: Any,
    **keywords: Any,
) -> tuple[torch.Tensor, ...]:
    given = dict(zip(_DEFAULTS, arguments, strict=False)) | keywords
    wanted = given["sinks"] if wants_sinks else None, given["bias"] if wants_bias else None
    return tuple(
        q.new_empty(0) if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in (q, k, v, *wanted)
    )


def _differentiate_twice(ctx: Any, *_: torch.Tensor) -> Any:
    refuse_second_derivative()


for _key in ("CUDA", "CPU"):
    _library.impl("attention_forward", _forward, _key)
    _library.impl("attention_forward_out", _forward_out, _key)
    _library.impl("attention_backward", _backward, _key)
torch.library.register_fake("flashsmith::attention_forward", _fake_forward, lib=_library)
torch.library.register_fake("flashsmith::attention_forward_out", _fake_forward_out, lib=_library)
torch.library.register_fake("flashsmith::attention_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "flashsmith::attention_forward", _differentiate, setup_context=_remember, lib=_library
)
torch.library.register_autograd(
    "flashsmith::attention_backward", _differentiate_twice, lib=_library
)
register_flops(
    {
        "attention_forward": forward_flops,
        "attention_forward_out": forward_flops,
        "attention_backward": backward_flops,
    }
)
