"""Requests whose keys and values are FP8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.reference import Semantics
from support.decoding import (
    Placed,
    Requests,
    assert_near_truth,
    in_slots,
    launch_on,
    requests,
)

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
SMALL = DECODE.families[0].heuristic(DecodeWorkload(DType.BF16, 64, fp8_cache=True))


class Quantised:
    """Requests with FP8 keys and values, and the exact products with their scales."""

    def __init__(self, cfg: DecodeKernelConfig, *args: Any, per: str = "head", **keywords: Any):
        asked = requests(cfg, *args, **keywords)
        self.k_scale, self.v_scale = (scales_of(t, per) for t in (asked.k, asked.v))
        self.k, self.v = quantised(asked.k, self.k_scale), quantised(asked.v, self.v_scale)
        self.exact = replace(
            asked,
            k=self.k.double() * spread(self.k_scale),
            v=self.v.double() * spread(self.v_scale),
        )

    @property
    def stored(self) -> Requests:
        return replace(self.exact, k=self.k, v=self.v)

    def run(
        self, cfg: DecodeKernelConfig, placed: Placed | None = None, *args: Any, **emulated: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scales = self.k_scale, self.v_scale
        placed = in_slots(self.stored) if placed is None else placed
        return launch_on(cfg, self.exact.q, placed, *args, scales=scales, **emulated)

    def assert_right(
        self,
        cfg: DecodeKernelConfig,
        semantics: Semantics | None = None,
        placed: Placed | None = None,
        splits: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.run(cfg, placed, semantics, splits)
        assert_near_truth(found, self.exact, semantics)
        return found


def scales_of(t: torch.Tensor, per: str) -> torch.Tensor | None:
    """Returns scales by which the largest number becomes FP8's maximum. Heads or requests of zeros
    get 1, and tokens of NaN get NaN."""
    dims = {"head": (0, 1, 3), "request": (1, 3), "tensor": (0, 1, 2, 3), "token": 3}
    if per == "none":
        return None
    if per == "token":
        return t.float().abs().amax(3).div(LARGEST)
    scale = t.float().nan_to_num(0).abs().amax(dims[per]).div(LARGEST)
    return torch.where(scale > 0, scale, 1.0).reshape(1 if per == "tensor" else scale.shape)


def spread(scale: torch.Tensor | None) -> torch.Tensor | float:
    """Returns a scale that broadcasts over (batch, rows, heads, d_head)."""
    if scale is None:
        return 1.0
    return scale.double()[:, None, :, None] if scale.ndim == 2 else scale.double()[..., None]


def quantised(t: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return (t.double() / spread(scale)).clamp(-LARGEST, LARGEST).float().to(FP8)
