"""Block masks on a GPU: a CUDA graph follows lists that are filled anew."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.mods.block_mask import BlockMask
from support.gpu_tensors import random_qkv
from support.sm80_kernels import BASE

pytestmark = pytest.mark.gpu

N, BLOCK = 1024, 128


def mask_of(first: int, last: int) -> BlockMask:
    """Returns a mask in which a block of queries sees the blocks of keys at distances first to
    last."""

    def near(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q // BLOCK - k // BLOCK >= first) & (q // BLOCK - k // BLOCK <= last)

    return flashsmith.create_block_mask(near, None, None, N, N, "cuda", BLOCK)


def everything(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= 0


def refill(mask: BlockMask, other: BlockMask) -> None:
    for field in fields(BlockMask):
        if isinstance(own := getattr(mask, field.name), torch.Tensor):
            own.copy_(getattr(other, field.name))


def test_a_graph_follows_lists_that_are_filled_anew() -> None:
    qkv = random_qkv(BASE, seq_len=N)
    masks = [mask_of(0, 2), mask_of(0, 0), mask_of(-3, 1)]
    expected = [flashsmith.attention(*qkv, mask_mod=everything, block_mask=m) for m in masks]
    assert not any(torch.equal(expected[0], each) for each in expected[1:])
    static, graph = mask_of(0, 2), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flashsmith.attention(*qkv, mask_mod=everything, block_mask=static)
    for mask, right in zip(masks, expected, strict=True):
        refill(static, mask)
        graph.replay()
        assert torch.equal(captured, right)
        assert torch.equal(
            flashsmith.attention(*qkv, mask_mod=everything, block_mask=static), right
        )
