"""The call that `flashsmith run` makes: its options beside the mask, and the check of results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Variant, Workload
from flashsmith.lab.bench.operations.forward_kernels import Checker, Run
from flashsmith.lab.commands.inputs import Inputs
from flashsmith.lab.soak.launches import compare_result
from flashsmith.lab.soak.prepared import truth_of
from flashsmith.ops.checks import FP8, check_scale, checked_cap, checked_window
from flashsmith.ops.lengths import check_fp8_scales
from flashsmith.reference import (
    Comparison,
    Packing,
    Semantics,
    check_dropout,
    reference_by_head,
)
from flashsmith.runtime import CallArgs, Kernel, find_kernel
from flashsmith.runtime.call_args import Scales
from flashsmith.runtime.device import target_of
from flashsmith.runtime.workspace import workspace_for

NO_WINDOW = (-1, -1)


@dataclass(frozen=True)
class Asked:
    """The options of a call, which are keywords of ``flashsmith.attention``.

    Raises:
        TypeError, ValueError: An option has a value that no call accepts; the message names it.
    """

    causal: bool = False
    window_size: tuple[int, int] = NO_WINDOW
    softcap: float = 0.0
    softmax_scale: float | None = None
    lse: bool = False
    dropout_p: float = 0.0
    seed: int = 0  # of dropout

    def __post_init__(self) -> None:
        checked_window(self.window_size)
        checked_cap(self.softcap)
        check_dropout(self.dropout_p)
        if self.softmax_scale is not None:
            check_scale(self.softmax_scale)

    @property
    def is_plain(self) -> bool:
        """Whether the call has nothing beside a causal mask."""
        return self == Asked(causal=self.causal, seed=self.seed)

    def extras(self, device: torch.device) -> CallArgs:
        left, right = self.window_size
        return CallArgs(
            softcap=float(self.softcap),
            window_left=left,
            window_right=0 if self.causal else right,
            rng_state=self._rng_state(device),
            dropout_p=self.dropout_p,
        )

    @property
    def variant(self) -> Variant:
        """The variant of kernels without padded rows; ``kernel_of`` adds padding."""
        return self.extras(torch.device("cpu")).variant

    def semantics(self, device: torch.device) -> Semantics:
        return Semantics(
            causal=self.causal,
            window_size=self.window_size,
            softcap=self.softcap,
            softmax_scale=self.softmax_scale,
            dropout_p=self.dropout_p,
            rng_state=self._rng_state(device),
        )

    def _rng_state(self, device: torch.device) -> torch.Tensor | None:
        return torch.tensor([self.seed, 0], device=device) if self.dropout_p else None


def kernel_of(config: ForwardKernelConfig, variant: Variant, inputs: Inputs) -> KernelId:
    """Returns the kernel of a configuration for tensors whose rows may be shorter than d_head."""
    sizes = {inputs.q.shape[-1], inputs.v.shape[-1]}
    return KernelId(config, replace(variant, padded=sizes != {config.d_head}))


class CallChecker(Checker):
    """A ``Checker`` of one call on tensors that ``attention`` takes.

    o of 16-bit tensors is compared as in every check. o of FP8 tensors, and the LSE, are compared
    with the soak's bounds, which include the errors of FP8 products and of a score.
    """

    def __init__(self, inputs: Inputs, scales: Scales, asked: Asked) -> None:
        """Computes the reference of ``inputs`` and ``scales``, which are on the kernels' device."""
        self.workload = Workload(inputs.problem, asked.variant)
        self.qkv, self.asked, self._inputs, self._scales = inputs, asked, inputs, scales
        check_fp8_scales(**scales._asdict())
        q, _, v = inputs
        self.o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=inputs.dtype_of_o)
        lse_shape = (q.shape[0], q.shape[2], q.shape[1])
        self.lse = q.new_empty(lse_shape, dtype=torch.float32) if asked.lse else None
        self._is_fp8 = q.dtype == FP8
        exact = _multiplied(inputs, scales)
        meaning = asked.semantics(q.device)
        self.exact = reference_by_head(*exact, compute=torch.float64, **meaning.keywords)
        if self._is_fp8 or asked.lse:
            weights_in = FP8 if v.dtype == FP8 else self.o.dtype
            self._truth = truth_of(
                exact.q,
                exact.k,
                exact.v,
                meaning,
                Packing(),
                weights_in=weights_in,
                fp8_scores=self._is_fp8,
            )
        if not self._is_fp8:
            self.low_precision = reference_by_head(*exact, compute=self.o.dtype, **meaning.keywords)

    def kernel(self, config: ForwardKernelConfig) -> Kernel:
        instance = kernel_of(config, self.workload.variant, self._inputs)
        return find_kernel(instance, target_of(self.o.device))

    def prepare(self, candidate: ForwardKernelConfig) -> Run:  # type: ignore[override]
        """Returns a function that runs a configuration's kernel; all write the same o and lse."""
        self.o.fill_(torch.nan)  # the previous kernel's result must not pass for this one's
        if self.lse is not None:
            self.lse.fill_(torch.nan)
        kernel, extras = self.kernel(candidate), self.asked.extras(self.o.device)
        plan = kernel.plan(*self.qkv, self.o, lse=self.lse, extras=extras)
        scale = self.asked.softmax_scale or self.workload.problem.d_head**-0.5
        self._config, self._kernel = candidate, kernel

        def run() -> torch.Tensor:
            kernel(
                *self.qkv, self.o, scale, lse=self.lse, scales=self._scales, extras=extras,
                workspace=workspace_for(plan, self.o.device),
            )  # fmt: skip
            return self.o

        return run

    def compare(self, o: torch.Tensor) -> Comparison:
        """Returns the error of o, or of the LSE if that is larger."""
        if not self._is_fp8 and self.lse is None:
            return super().compare(o)
        lse = self._truth.lse.float() if self.lse is None else self.lse
        of_o, of_lse = compare_result(self._config, self._truth, o, lse)
        if not self._is_fp8:
            of_o = super().compare(o)
        if of_lse.ratio > of_o.ratio:
            return replace(of_lse, worst=f"lse {of_lse.worst}")
        return of_o

    def not_finite(self) -> dict[str, dict[str, int]]:
        """Counts the NaN and the infinite elements of q, k, v and the result."""
        named = dict(zip(("q", "k", "v", "o"), (*self.qkv, self.o), strict=True))
        counts = {
            name: {"nan": int(t.float().isnan().sum()), "inf": int(t.float().isinf().sum())}
            for name, t in named.items()
        }
        return {name: found for name, found in counts.items() if any(found.values())}


def _multiplied(inputs: Inputs, scales: Scales) -> Inputs:
    """Returns FP8 tensors multiplied with their scales in float64, and 16-bit tensors unchanged."""
    batch, heads_kv = inputs.k.shape[0], inputs.k.shape[2]
    exact = []
    for t, scale in zip(inputs, scales, strict=True):
        if t.dtype == FP8:
            t = t.double()
            if scale is not None:
                of_heads = scale.double().expand(batch, heads_kv)
                t *= of_heads.repeat_interleave(t.shape[2] // heads_kv, 1)[:, None, :, None]
        exact.append(t)
    return Inputs(*exact)
