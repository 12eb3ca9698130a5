"""The FP8 forward on a GPU: its soak, graphs, the same bits every time."""

from __future__ import annotations

import pytest
import torch

import flashsmith
from flashsmith.configs.sm90.fp8_space import fp8_candidates
from flashsmith.dtype import DType
from support.fp8 import Quantised, assert_right
from support.problems import FP8

pytestmark = pytest.mark.gpu

RUNS = 300
SHAPE = (2, 1500, 4, 128)
BOTH = pytest.mark.parametrize("v_dtype", [torch.bfloat16, FP8], ids=["16-bit v", "8-bit v"])


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels of 8 bits need compute capability 9.0")


def tensors(v_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    given = {name: torch.randn(SHAPE, device="cuda").to(FP8) for name in "qk"}
    scale = torch.full((1,), 0.5, device="cuda")
    return given | {"v": torch.randn(SHAPE, device="cuda").to(v_dtype), "k_scale": scale}


@BOTH
def test_a_graph_is_replayed_with_other_scales(v_dtype: torch.dtype) -> None:
    given = tensors(v_dtype)
    flashsmith.attention(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flashsmith.attention(**given)
    for scale in (0.5, 0.25, 1.5):
        given["k_scale"].fill_(scale)
        graph.replay()
        assert torch.equal(captured, flashsmith.attention(**given))


@BOTH
def test_every_run_gives_the_same_bits(v_dtype: torch.dtype) -> None:
    given = tensors(v_dtype)
    first = flashsmith.attention(**given, causal=True)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS):
        differing += (flashsmith.attention(**given, causal=True) != first).any()
    assert not int(differing)


@pytest.mark.parametrize("share", [1.0, 0.1], ids="{:.0%} of the rows".format)
@pytest.mark.parametrize("ends", [(-3, -20), (-20, -3), (-20, 2), (2, -20)], ids=str)
def test_rows_of_negative_scores(share: float, ends: tuple[float, float]) -> None:
    (cfg,) = fp8_candidates(DType.BF16, 128, fp8_values=True)
    asked = Quantised(cfg, (300, 1500), rows=(128, 128), per="tensor")
    signs = torch.where(torch.rand(300) < share, 16.0, -16.0)
    asked.set_first_columns(signs, torch.linspace(*ends, 1500))
    found = flashsmith.attention(
        **{name: t.cuda() for name, t in asked.given.items()}, config=cfg, return_lse=True
    )
    assert_right(cfg, asked.exact, *(t.cpu() for t in found))
