"""The lists of a BlockMask are read at each call, up to the counts that they have."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.mods.block_mask import BlockMask
from support.seen import telling, wrong_rows
from support.semantics import SM80

BLOCK, ROWS, COLUMNS = 16, 3, 4
N_Q, N_K = ROWS * BLOCK - 5, COLUMNS * BLOCK - 7
GARBAGE = (0, 1, -1, 2**31 - 1)


def below(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


def lists(listed: list[list[int]], beyond: int, width: int = COLUMNS) -> list[torch.Tensor]:
    """Returns the number of blocks of each row, and their indices; ``beyond`` fills unused
    places."""
    indices = torch.full((1, 1, ROWS, width), beyond, dtype=torch.int32)
    for row, blocks in zip(indices[0, 0], listed, strict=True):
        row[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    return [torch.tensor([[[len(blocks) for blocks in listed]]], dtype=torch.int32), indices]


PARTIAL, FULL = [[1, 0], [], [2]], [[3], [0, 2], []]


def mask_of(
    partial: list[list[int]] = PARTIAL, full: list[list[int]] = FULL, beyond: int = 0, **more: Any
) -> BlockMask:
    tensors = *lists(partial, beyond, **more), *lists(full, beyond, **more)
    return BlockMask(*tensors, (BLOCK, BLOCK), (N_Q, N_K), below)


def seen(partial: list[list[int]] = PARTIAL, full: list[list[int]] = FULL) -> torch.Tensor:
    q, k = torch.arange(N_Q)[:, None], torch.arange(N_K)
    whole, part = torch.zeros(2, ROWS, COLUMNS, dtype=torch.bool)
    for row in range(ROWS):
        whole[row, full[row]], part[row, partial[row]] = True, True
    return whole[q // BLOCK, k // BLOCK] | (part[q // BLOCK, k // BLOCK] & (k <= q))


def assert_sees(mask: BlockMask, visible: torch.Tensor) -> None:
    q, k, v = telling(SM80, (1, N_Q, 1), (1, N_K, 1))
    o, lse = flashsmith.attention(q, k, v, block_mask=mask, config=SM80, return_lse=True)
    assert not wrong_rows(o[0, :, 0], lse[0, 0], visible)


@pytest.mark.parametrize("beyond", GARBAGE)
def test_what_stands_behind_the_last_block_of_a_row_does_not_count(beyond: int) -> None:
    assert_sees(mask_of(beyond=beyond), seen())


def test_lists_have_room_for_as_many_blocks_as_a_row_has() -> None:
    """No row sees all blocks of keys, so that narrower lists are enough."""
    assert_sees(mask_of(width=2), seen())
    none: list[list[int]] = [[], [], []]
    assert_sees(mask_of(none, FULL, width=2), seen(none, FULL))


def test_lists_that_are_filled_anew_count_at_the_next_call() -> None:
    """The replay of a CUDA graph fills static buffers without telling torch, as is done here."""
    mask, other = mask_of(), mask_of(FULL, PARTIAL)
    assert_sees(mask, seen())
    for field in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        tensor: torch.Tensor = getattr(mask, field)
        version = tensor._version
        tensor.data.copy_(getattr(other, field))
        assert tensor._version == version
    assert_sees(mask, seen(FULL, PARTIAL))


def test_a_mask_keeps_nothing_of_a_call() -> None:
    """A tensor that a compiled graph made would not outlive its next replay."""
    mask = mask_of()
    assert_sees(mask, seen())
    assert vars(mask).keys() == {field.name for field in fields(BlockMask)}


OF_LISTS = r"; expected \(1, 1, 3"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kv_num_blocks": torch.zeros(1, 3)}, "kv_num_blocks has dtype torch.float32; expected"),
        ({"kv_num_blocks": torch.zeros(1, 3).int()}, r"kv_num_blocks has shape \(1, 3\)"),
        ({"kv_indices": torch.zeros(1, 1, 2, 4).int()}, r"kv_indices has shape \(1, 1, 2, 4\)"),
        ({"kv_indices": torch.zeros(1, 1, 3).int()}, r"kv_indices has shape \(1, 1, 3\)"),
        (
            {"full_kv_num_blocks": torch.zeros(2, 1, 3).int()},
            rf"full_kv_num_blocks has shape \(2, 1, 3\){OF_LISTS}\): batch and n_heads as",
        ),
        (
            {"full_kv_indices": torch.zeros(3, 4).int()},
            rf"full_kv_indices has shape \(3, 4\){OF_LISTS}, any\)",
        ),
        ({"block_size": (16, 0)}, r"block_size\[1\] is 0; expected at least 1"),
        ({"block_size": (8, 16)}, r"kv_num_blocks has shape \(1, 1, 3\); expected \(1, 1, 6\)"),
        ({"seq_lengths": (43, -1)}, r"seq_lengths\[1\] is -1; expected at least 1"),
    ],
)
def test_lists_that_do_not_fit_are_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        replace(mask_of(), **changed)
