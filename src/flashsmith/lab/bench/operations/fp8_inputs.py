"""The tensors of an FP8 forward."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.configs import ForwardKernelConfig
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.base import Given
from flashsmith.reference import reference_attention

FP8 = torch.float8_e4m3fn
_TOLERANCE = 0.1  # of the root mean square; FP8 weights alone cost a fortieth


class Fp8Inputs(Given):
    """q, k and v in FP8 with one scale each, and the same values in 16 bits, since scales are
    powers of two. Errors are those of one head, against float64."""

    def __init__(self, case: Case, device: str):
        problem, self.causal = case.workload.problem, case.workload.variant.causal
        self.flop = float(case.workload.flop)
        self.small, self.scales, self.wide = {}, {}, {}
        for name in "qkv":
            t = torch.randn(problem.q_shape, device=device)
            scale = t.abs().amax().div(torch.finfo(FP8).max).log2().ceil().exp2().reshape(1)
            self.small[name], self.scales[name] = (t / scale).to(FP8), scale
            self.wide[name] = (self.small[name].float() * scale).to(problem.dtype.to_torch_dtype())
        q, k, v = (self.wide[name][:1, :, :1] for name in "qkv")
        self._expected = reference_attention(q, k, v, causal=self.causal)
        self.tolerance = _TOLERANCE * self._expected.square().mean().sqrt().item()

    def given_to(self, config: ForwardKernelConfig) -> dict[str, Any]:
        """Returns the keywords of ``attention`` for a kernel, whose FP8 tensors get a scale."""
        names = config.fp8_tensors
        scales = {f"{name}_scale": self.scales[name] for name in names}
        return {n: self.small[n] if n in names else self.wide[n] for n in "qkv"} | scales

    def error_of(self, result: torch.Tensor | tuple[torch.Tensor, float]) -> float:
        """Returns the root mean square error of o, or of o times a scale."""
        o, scale = result if isinstance(result, tuple) else (result, 1.0)
        error: torch.Tensor = o[:1, :, :1].double() * scale - self._expected
        return error.square().mean().sqrt().item()
