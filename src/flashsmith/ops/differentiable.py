"""Differentiable attention for calls that are not traced; ``operators`` would work too, but cost
several times as much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from flashsmith.configs import AttentionKernelConfig
from flashsmith.ops.backward import backward_of_saved
from flashsmith.ops.checks import refuse_out, refuse_second_derivative
from flashsmith.ops.forward import run_attention
from flashsmith.ops.gate import CAPTURED
from flashsmith.ops.gradients import GradientMask, Gradients
from flashsmith.ops.spec import CAUSAL, FIELDS_OF_TENSORS, FULL, AttentionSpec, make_spec
from flashsmith.runtime import GradientTensors

_MOD_TENSORS = AttentionSpec._fields.index(CAPTURED)


def call_differentiable(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None,
    config: AttentionKernelConfig | None,
    return_lse: bool,
    deterministic: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``run_attention``, differentiable by q, k, v, sinks and bias.

    Raises:
        ValueError: ``out`` was given.
    """
    refuse_out(out)
    call = spec, config, deterministic
    o, lse = _Attention.apply(q, k, v, spec.sinks, spec.bias, call)  # type: ignore[no-untyped-call]
    return (o, lse) if return_lse else o


class _Attention(torch.autograd.Function):
    """The autograd function of attention by q, k, v, sinks and bias.

    The backward uses the forward's arguments: torch saves every tensor of the call, and refuses one
    that was changed in place since; all else is kept by value.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        bias: torch.Tensor | None,
        call: tuple[AttentionSpec, AttentionKernelConfig | None, bool],
    ) -> Any:
        spec, config, ctx.deterministic = call
        o, lse = run_attention(q, k, v, spec, None, config, True)
        ctx.set_materialize_grads(False)
        ctx.spec, tensors = _taken_apart(spec)
        ctx.save_for_backward(q, k, v, o, lse, *tensors)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
        # torch has checked that the saved tensors are unchanged; its hooks may have moved them.
        q, k, v, o, lse, *saved = ctx.saved_tensors
        spec = ctx.spec.with_tensors(saved)
        tensors = GradientTensors(q, k, v, o, lse, do, dlse=dlse)
        wanted = GradientMask(*ctx.needs_input_grad[3:5])
        if not torch.is_grad_enabled():
            return (*backward_of_saved(tensors, spec, wanted, ctx.deterministic), None)
        with torch.no_grad():  # create_graph
            gradients = backward_of_saved(tensors, spec, wanted, ctx.deterministic)
        return (*_differentiable_once(gradients, [q, k, v, do, dlse, *saved]), None)


class _Apart(NamedTuple):
    """A specification without its tensors, which the caller keeps.

    fields: The fields of the specification, with None in place of tensors.
    places: The indices of the tensors among the fields, in the order in which they are kept.
    n_captured: The number of captured tensors that follow.
    """

    fields: AttentionSpec
    places: tuple[int, ...] = ()
    n_captured: int = 0

    def with_tensors(self, kept: Sequence[torch.Tensor]) -> AttentionSpec:
        """Returns the specification with these tensors."""
        if not kept:
            return self.fields
        fields: list[Any] = list(self.fields)
        for place, t in zip(self.places, kept, strict=False):
            fields[place] = t
        if self.n_captured:
            fields[_MOD_TENSORS] = list(kept[len(self.places) :])
        return make_spec(*fields)


def _taken_apart(spec: AttentionSpec) -> tuple[_Apart, list[torch.Tensor]]:
    """Returns ``spec`` without its tensors, and the tensors."""
    if spec is FULL or spec is CAUSAL:
        return _Apart(spec), []
    fields: list[Any] = list(spec)
    places = tuple([i for _, i in FIELDS_OF_TENSORS if fields[i] is not None])
    kept = [fields[i] for i in places]
    for i in places:
        fields[i] = None
    captured = spec.mod_tensors or ()
    if captured:
        fields[_MOD_TENSORS] = None
    return _Apart(make_spec(*fields), places, len(captured)), [*kept, *captured]


def _differentiable_once(gradients: Gradients, of: Sequence[torch.Tensor | None]) -> Gradients:
    """Returns the gradients, which refuse to be differentiated; ``of`` are the tensors they depend
    on."""
    found = [each for each in gradients if each is not None]
    found = list(_Once.apply(len(found), *found, *of))  # type: ignore[no-untyped-call]
    return Gradients(*(None if each is None else found.pop(0) for each in gradients))  # type: ignore[arg-type]


class _Once(torch.autograd.Function):
    """Keeps gradients connected with the tensors that they depend on, so that a second derivative
    cannot treat them as constants: ``once_differentiable`` considers only gradients by o."""

    @staticmethod
    def forward(ctx: Any, n: int, *tensors: torch.Tensor | None) -> Any:
        return tensors[:n]

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        refuse_second_derivative()
