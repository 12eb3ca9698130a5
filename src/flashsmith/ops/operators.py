"""Attention as operators of torch, for torch.compile and torch.export.

``attention`` calls them only when it is traced: torch's dispatcher would cost a call more than the
rest of its host code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from flashsmith.configs import AttentionKernelConfig, parse_kernel_name_into_config
from flashsmith.ops.backward import backward_of_saved
from flashsmith.ops.checks import (
    FP8,
    needs_gradient,
    refuse_gradients,
    refuse_out,
    refuse_second_derivative,
)
from flashsmith.ops.forward import run_attention
from flashsmith.ops.gate import CAPTURED, are_memory, flat
from flashsmith.ops.gradients import GradientMask
from flashsmith.ops.sharding import let_dtensors_know
from flashsmith.ops.spec import NO_WINDOW, AttentionSpec, tensors_of
from flashsmith.runtime import GradientTensors

# These arguments follow the tensors and ``return_lse``. None is keyword-only, because torch
# registers no gradients of such tensors.
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
# The operator returns o and the log-sum-exp, which is empty unless it is requested.
_library.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, bool return_lse=False, {_ARGUMENTS}) "
    "-> (Tensor, Tensor)"
)
_SCHEMA = torch.ops.flashsmith.attention_forward.default._schema
_DEFAULTS = {each.name: each.default_value for each in _SCHEMA.arguments[4:]}  # of _ARGUMENTS
# This operator writes o into a tensor of the caller.
_library.define(
    "attention_forward_out(Tensor q, Tensor k, Tensor v, Tensor(o!) out, bool return_lse=False, "
    f"{_ARGUMENTS}) -> Tensor"
)
# The operator returns the gradients of attention_forward; those of sinks and bias are empty unless
# they are requested.
_library.define(
    "attention_backward(Tensor? do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, "
    f"Tensor lse, bool wants_sinks, bool wants_bias, {_ARGUMENTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_KERNEL_KEYS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)
_OPERATORS = ("attention_forward", "attention_forward_out", "attention_backward")
_DEFAULT_VALUES = tuple(_DEFAULTS.values())
_NAMES = ("q", "k", "v", "return_lse", *_DEFAULTS)  # of attention_forward's arguments

# The positions of a specification's fields and of a call's other values among the operators'
# arguments. Operators take no page table and each side of a window by itself, so that None and
# NO_WINDOW follow the arguments.
_PLACES = {name: place for place, name in enumerate((*_DEFAULTS, "block_table", "window_size"))}
_take_spec = itemgetter(*(_PLACES[name] for name in AttentionSpec._fields))
_take_others = itemgetter(
    *(_PLACES[name] for name in ("config", "deterministic", "window_left", "window_right"))
)


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
    """Calls ``run_attention`` as one differentiable operator, for code that traces it.

    Args, returns: See ``run_attention``.
    deterministic: Whether gradients have the same bits in every run.
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
    """Returns the operators' arguments for a specification, without those at their defaults, so
    that a graph shows what its calls compute."""
    given: dict[str, Any] = dict(zip(AttentionSpec._fields, spec, strict=True))
    given["window_left"], given["window_right"] = given.pop("window_size")
    del given["block_table"]  # operators take no pages
    return {
        name: each
        for name, each in given.items()
        if isinstance(each, torch.Tensor) or each != _DEFAULTS[name]
    }


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _call(q, k, v, None, *arguments)


def _forward_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, *arguments: Any
) -> torch.Tensor:
    return _call(q, k, v, out, *arguments)[1]


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    return_lse: bool = False,
    *arguments: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the operators' results; the arguments have the order of the schemas."""
    given = _given(arguments)
    config = None if given.config is None else parsed_config(given.config)
    result = run_attention(q, k, v, given.spec, out, config, return_lse)
    return result if isinstance(result, tuple) else (result, no_lse(q))


class _Given(NamedTuple):
    """The values of the operators' arguments."""

    spec: AttentionSpec
    config: str | None
    deterministic: bool


def _given(arguments: Sequence[Any]) -> _Given:
    """Returns the values of arguments in the order of ``_ARGUMENTS``; the last may be omitted."""
    given = (*arguments, *_DEFAULT_VALUES[len(arguments) :], None, NO_WINDOW)
    spec = AttentionSpec._make(_take_spec(given))
    config, deterministic, *window = _take_others(given)
    if window != [*NO_WINDOW]:
        spec = spec._replace(window_size=tuple(window))
    return _Given(spec, config, deterministic)


@functools.cache
def parsed_config(config: str) -> Any:
    """Returns one object for each name, because calls are distinguished by it."""
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
    """Returns the fake log-sum-exp of an operator, with its real shape."""
    *batch, seq_len, heads, _ = q.shape
    return q.new_empty((*batch, heads, seq_len), dtype=torch.float32) if return_lse else no_lse(q)


def no_lse(q: torch.Tensor) -> torch.Tensor:
    """Returns the empty tensor that stands for a log-sum-exp."""
    return q.new_empty(0, dtype=torch.float32)


class _Differentiable(torch.autograd.Function):
    """Computes attention_forward for tensors that require gradients.

    A graph contains attention_forward and attention_backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        bias: torch.Tensor | None,
        call: _BelowAutograd,
    ) -> Any:
        o, lse = call()
        ctx.set_materialize_grads(False)
        given = dict(zip(_NAMES, call.arguments, strict=False))
        captured = given.pop(CAPTURED, None) or ()
        ctx.n_captured = len(captured)
        ctx.names = [name for name, each in given.items() if isinstance(each, torch.Tensor)]
        ctx.others = {name: given[name] for name in given if name not in ctx.names}
        ctx.save_for_backward(*captured, *(given[name] for name in ctx.names), o, lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
        *saved, o, lse = ctx.saved_tensors
        captured, saved = saved[: ctx.n_captured], saved[ctx.n_captured :]
        given = ctx.others | dict(zip(ctx.names, saved, strict=True))
        given[CAPTURED] = captured or None
        given.pop("return_lse", None)
        q, k, v = (given.pop(name) for name in "qkv")
        *_, wants_sinks, wants_bias, _ = ctx.needs_input_grad
        dq, dk, dv, dsinks, dbias = torch.ops.flashsmith.attention_backward(
            do, dlse, q, k, v, o, lse, wants_sinks, wants_bias, **given
        )
        return dq, dk, dv, dsinks if wants_sinks else None, dbias if wants_bias else None, None


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
) -> tuple[torch.Tensor, ...]:
    given = _given(arguments)  # the configuration in it is the forward's
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


class _DifferentiableOnce(torch.autograd.Function):
    """Computes attention_backward for tensors that require gradients, but only once."""

    @staticmethod
    def forward(ctx: Any, call: _BelowAutograd, *tensors: torch.Tensor) -> Any:
        return call()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        refuse_second_derivative()


class _BelowAutograd(NamedTuple):
    """A call of an operator, to be dispatched to the key below autograd."""

    operator: Any  # torch._ops.OpOverload
    keys: Any  # torch._C.DispatchKeySet
    arguments: tuple[Any, ...]

    def __call__(self) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return self.operator.redispatch(self.keys, *self.arguments)


def _attend_by_autograd(call: _BelowAutograd) -> Any:
    given = dict(zip(_NAMES, call.arguments, strict=False))
    learned = [given.pop(name, None) for name in ("q", "k", "v", "sinks", "bias")]
    captured = given.pop(CAPTURED, None) or ()
    refuse_gradients(**given, **{f"{CAPTURED}[{i}]": t for i, t in enumerate(captured)})
    return _Differentiable.apply(*learned, call)  # type: ignore[no-untyped-call]


def _differentiate_by_autograd(call: _BelowAutograd) -> Any:
    return _DifferentiableOnce.apply(call, *_tensors_of(call.arguments))  # type: ignore[no-untyped-call]


def _tensors_of(arguments: Iterable[Any]) -> list[torch.Tensor]:
    """Returns the tensors among an operator's arguments and in its lists."""
    tensors = []
    for each in arguments:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        elif isinstance(each, list):
            tensors += each
    return tensors


def _register_autograd(
    name: str, compute: Callable[..., Any], differentiate: Callable[[_BelowAutograd], Any]
) -> None:
    """Registers an operator at the dispatcher's autograd key.

    There a call is computed at once if its tensors are plain memory and require no gradient, as all
    calls of a compiled graph, and if no other key, such as that of zeros without memory, comes
    before the kernel's. ``torch.library.register_autograd`` would dispatch such a call a
    second time, which takes three times as long as the rest of its host code.

    Args:
        name: The operator's name.
        compute: Computes the operator's results from its arguments.
        differentiate: Computes a call that requires gradients.
    """
    operator = getattr(torch.ops.flashsmith, name).default

    def dispatch(keys: Any, *arguments: Any) -> Any:
        tensors = _tensors_of(arguments)
        wants_gradient = needs_gradient(*tensors)
        next_key = (keys & torch._C._after_ADInplaceOrView_keyset).highestPriorityTypeId()
        if next_key in _KERNEL_KEYS and not wants_gradient and are_memory(*tensors):
            return compute(*arguments)
        call = _BelowAutograd(operator, keys & torch._C._after_autograd_keyset, arguments)
        return differentiate(call) if wants_gradient else call()

    _library.impl(name, dispatch, "Autograd", with_keyset=True)


for _key in _KERNEL_KEYS:
    _library.impl("attention_forward", _forward, _key.name)
    _library.impl("attention_forward_out", _forward_out, _key.name)
    _library.impl("attention_backward", _backward, _key.name)
torch.library.register_fake("flashsmith::attention_forward", _fake_forward, lib=_library)
torch.library.register_fake("flashsmith::attention_forward_out", _fake_forward_out, lib=_library)
torch.library.register_fake("flashsmith::attention_backward", _fake_backward, lib=_library)
_register_autograd("attention_forward", _forward, _attend_by_autograd)
_register_autograd("attention_backward", _backward, _differentiate_by_autograd)
