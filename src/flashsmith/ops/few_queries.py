"""A decode kernel in place of a forward one: k and v are a KV cache with a slot for each
sequence."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId, Variant
from flashsmith.ops.bound_decode import BoundDecode
from flashsmith.ops.first_use import find_first
from flashsmith.runtime import CallArgs, DecodeKernel, DecodeTensors, Splitting, find_decode
from flashsmith.runtime.call_args import FULL_EXTRAS, NO_SCALES, Scales
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import counters_for

_HOW = Splitting(of_attention=True)
_OWN = (*NO_SCALES, None)  # a forward kernel's arguments that decode's kernels lack
_OF_A_CACHE = (None,) * (len(DecodeTensors._fields) - len(("q", "k", "v", "o", "lse")))


class BoundFewQueries:
    """Makes calls with the arguments of ``Kernel.bind()``."""

    __slots__ = ("bound",)

    def __init__(self, bound: BoundDecode) -> None:
        self.bound = bound

    def __call__(self, stream: int, q: Any, k: Any, v: Any, o: Any, lse: Any, *rest: Any) -> bool:
        """Makes one call and ignores the stream, because the workspace is found here."""
        scale, *extras = rest[len(_OWN) + 1 :]
        self.bound((q, k, v, o, lse, *_OF_A_CACHE), scale, extras)
        return True


@dataclass(frozen=True, eq=False)
class FewQueries:
    """A decode kernel with the methods, arguments and errors of ``Kernel``; it takes neither scales
    nor pages."""

    kernel: DecodeKernel
    device: torch.device

    def plan(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        *,
        lse: Any = None,
        block_table: Any = None,
        extras: CallArgs = FULL_EXTRAS,
    ) -> Plan:
        return self.kernel.plan(DecodeTensors(q, k, v, o, lse), how=_HOW, extras=extras)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        softmax_scale: float,
        timed: bool = False,
        *,
        lse: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        scales: Scales = NO_SCALES,
        block_table: Any = None,
        extras: CallArgs | None = None,
    ) -> float:
        tensors, told = DecodeTensors(q, k, v, o, lse), self.kernel.extras_or(extras)
        counters = counters_for(self.plan(q, k, v, o, lse=lse, extras=told), q.device)
        return self.kernel(
            tensors, softmax_scale, timed,
            how=_HOW, counters=counters, workspace=workspace, extras=told,
        )  # fmt: skip

    def bind(self) -> BoundFewQueries:
        return BoundFewQueries(BoundDecode(self.kernel, self.device, _HOW))


@functools.cache
def few_queries_kernel_for(
    cfg: DecodeKernelConfig, variant: Variant, device: torch.device
) -> FewQueries:
    """Returns the decode kernel in place of ``launch.kernel_for``."""
    return FewQueries(find_first(find_decode, KernelId(cfg, variant), device), device)
