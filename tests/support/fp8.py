"""Makes FP8 q, k and v with scales, and checks the results of forwards on them."""

from __future__ import annotations

from typing import Any

import torch

import flashsmith
from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.reference import (
    attention_with_rounded_weights,
    compare,
    reference_lse,
    reference_varlen,
)
from support.problems import FP8

SCORES = parse_kernel_name_into_config(
    "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+tiles+lazy_8+stale+fp8_scores"
)
VALUES = parse_kernel_name_into_config(
    "(BF16, 64, 64, 32, 1): wgmma+stages_2+overlap+persistent+queue+tiles+tma_store"
    "+fp8_scores+fp8_values+two_level"
)


class Quantised:
    """q, k and v, in FP8 where a configuration says so, their scales, and the exact products."""

    def __init__(
        self,
        cfg: Sm90ForwardKernelConfig,
        lengths: tuple[int, int] = (150, 130),
        heads: tuple[int, int] = (2, 1),
        rows: tuple[int, int] = (64, 64),
        batch: int = 2,
        per: str = "request",
    ):
        shapes = {
            "q": (batch, lengths[0], heads[0], rows[0]),
            "k": (batch, lengths[1], heads[1], rows[0]),
            "v": (batch, lengths[1], heads[1], rows[1]),
        }
        sizes = {"tensor": (1,), "head": (heads[1],), "request": (batch, heads[1])}[per]
        self.given: dict[str, Any] = {}
        self.exact: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            self.given[name] = self.exact[name] = torch.randn(shape).bfloat16()
            if name not in cfg.fp8_tensors:
                continue
            scale = torch.rand(sizes) + 0.5
            small = torch.randn(shape).to(FP8)
            self.given |= {name: small, f"{name}_scale": scale}
            self.exact[name] = small.double() * spread(scale, shape[2])

    def set_first_columns(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Sets the first column of all rows of q and of k; there is one scale for each tensor."""
        for name, column in {"q": q, "k": k}.items():
            self.given[name][..., 0] = column[None, :, None].to(FP8)
            self.exact[name] = self.given[name].double() * self.given[f"{name}_scale"].double()

    def run(self, cfg: Sm90ForwardKernelConfig | None, **keywords: Any) -> Any:
        return flashsmith.attention(**self.given, config=cfg, return_lse=True, **keywords)

    def assert_right(self, cfg: Sm90ForwardKernelConfig, **keywords: Any) -> None:
        assert_right(cfg, self.exact, *self.run(cfg, **keywords), **keywords)


def spread(scale: torch.Tensor, heads: int) -> torch.Tensor:
    """Returns a scale that broadcasts over (batch, rows, heads, d_head)."""
    of_heads = scale.double().reshape(1 if scale.ndim == 1 else scale.shape[0], 1, -1, 1)
    return (
        of_heads
        if of_heads.shape[2] == 1
        else of_heads.repeat_interleave(heads // of_heads.shape[2], 2)
    )


def assert_right(
    cfg: Sm90ForwardKernelConfig,
    exact: dict[str, torch.Tensor],
    o: torch.Tensor,
    lse: torch.Tensor,
    **semantics: Any,
) -> None:
    """Asserts that errors are at most twice those of torch with weights of the same precision."""
    wide = {name: t.double() for name, t in exact.items()}
    truth, _ = reference_varlen(**wide, compute=torch.float64, **semantics)
    if "v" in cfg.fp8_tensors:
        low = attention_with_rounded_weights(**wide, weights_in=FP8, **semantics)
    else:
        low, _ = reference_varlen(**wide, compute=o.dtype, **semantics)
    found = compare(o, truth, low)
    assert found.ok, found
    expected = reference_lse(wide["q"], wide["k"], **semantics).float()
    torch.testing.assert_close(lse, expected, atol=2e-3, rtol=1e-3)
