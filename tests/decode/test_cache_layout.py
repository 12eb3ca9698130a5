"""A KV cache tells the layout of its rows, by which the kernel of a call is chosen."""

from __future__ import annotations

import pytest
import torch

from flashsmith.ops.kv_cache import KVCache


def test_a_cache_knows_whether_it_lies_in_boxes() -> None:
    k = torch.zeros(4, 64, 2, 128, dtype=torch.float16)
    table, pads = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert KVCache(k, k).is_in_boxes
    assert KVCache(k, k, leftpad=pads).is_in_boxes
    assert KVCache(k, k, block_table=table).is_in_boxes
    assert not KVCache(k, k, block_table=table, leftpad=pads).is_in_boxes
    assert not KVCache(k[:, :24], k[:, :24], block_table=table).is_in_boxes
    assert KVCache(k[:, :24], k[:, :24]).is_in_boxes
    assert not KVCache(k, k[:1].expand(4, -1, -1, -1)).is_in_boxes
    assert not KVCache(k.as_strided(k.shape, (100, 256, 128, 1)), k).is_in_boxes
    assert KVCache(k[:1].as_strided((1, 64, 2, 128), (0, 256, 128, 1)), k[:1]).is_in_boxes


SHAPE, STRIDES = (3, 16, 2, 64), (16 * 2 * 64, 2 * 64, 64, 1)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_rows_of_whole_chunks_are_dense(heads: int) -> None:
    """A chunk has 16 bytes, which are 8 elements of 16 bits. The number of heads may be any."""
    k = torch.zeros(3, 16, heads, 64, dtype=torch.float16)
    assert KVCache(k, k).is_dense(64)
    assert KVCache(k, torch.zeros(3, 16, heads, 128, dtype=torch.float16)).is_dense(64)
    assert KVCache(k[1:], k[1:]).is_dense(64)


@pytest.mark.parametrize("of_k", [True, False])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_a_stride_of_no_whole_chunks_is_not_dense(dim: int, of_k: bool) -> None:
    memory = torch.zeros(10_000, dtype=torch.float16)
    even = memory.as_strided(SHAPE, STRIDES)
    odd = memory.as_strided(SHAPE, [n + (i == dim) * 4 for i, n in enumerate(STRIDES)])
    assert KVCache(even, even).is_dense(64)
    assert not KVCache(*((odd, even) if of_k else (even, odd))).is_dense(64)


@pytest.mark.parametrize("of_k", [True, False])
def test_a_first_row_within_a_chunk_is_not_dense(of_k: bool) -> None:
    memory = torch.zeros(10_000, dtype=torch.float16)
    even, odd = (memory.as_strided(SHAPE, STRIDES, first) for first in (8, 4))
    assert not KVCache(*((odd, even) if of_k else (even, odd))).is_dense(64)


def test_sizes_of_no_whole_chunks_are_not_dense() -> None:
    even, odd = (torch.zeros(1, 1, 1, n, dtype=torch.float16) for n in (64, 60))
    assert not KVCache(even, odd).is_dense(64)
    assert not KVCache(even, even).is_dense(60)
