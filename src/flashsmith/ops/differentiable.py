"""Attention that is differentiable, where nothing traces it: ``operators`` would do, too, but cost
several times as much, and take no functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from flashsmith.configs import AttentionKernelConfig
from flashsmith.mods.trace import trace
from flashsmith.ops.backward import Wanted, run_backward
from flashsmith.ops.checks import refuse_gradients, refuse_out
from flashsmith.ops.forward import run_attention


def call_differentiable(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    softmax_scale: float | None,
    out: torch.Tensor | None,
    config: AttentionKernelConfig | None,
    return_lse: bool,
    semantics: Mapping[str, Any] | None,
    deterministic: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``run_attention``, differentiable by q, k, v, sinks and bias.

    Functions are traced once more for the gradients: what they capture must not change before.

    Raises:
        NotImplementedError: alibi_slopes requires a gradient.
        ValueError: So does what a function captures; or ``out`` was given.
    """
    refuse_out(out)
    semantics = dict(semantics or {})
    refuse_gradients(alibi_slopes=semantics.get("alibi_slopes"))
    if "score_mod" in semantics:
        trace(semantics["score_mod"], semantics["mask_mod"], q.device)  # refuses captured tensors
    call = (causal, softmax_scale, config, semantics, deterministic)
    sinks, bias = semantics.get("sinks"), semantics.get("bias")
    o, lse = _Attention.apply(q, k, v, sinks, bias, call)  # type: ignore[no-untyped-call]
    return (o, lse) if return_lse else o


class _Attention(torch.autograd.Function):
    """Of q, k, v, sinks, bias, and what else the call has."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        bias: torch.Tensor | None,
        call: tuple[Any, ...],
    ) -> Any:
        causal, scale, config, semantics, _ = call
        o, lse = run_attention(q, k, v, causal, scale, None, config, True, semantics)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse, sinks, bias)
        ctx.call = call
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
        q, k, v, o, lse, *_ = ctx.saved_tensors  # torch has seen that they are as they were
        causal, scale, _, semantics, deterministic = ctx.call
        wanted = Wanted(*ctx.needs_input_grad[3:5])
        gradients, _ = run_backward(
            None, do, dlse, q, k, v, o, lse, causal, scale, semantics, wanted,
            deterministic=deterministic,
        )  # fmt: skip
        return (*gradients, None)
