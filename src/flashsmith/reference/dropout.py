"""The weights that dropout keeps, in plain torch; kernels recompute them where they need them.

docs/dropout.md describes the method and its reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_WORD = 0xFFFFFFFF
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of Philox 4x32
_MULTIPLIER = 0xD256D193  # of Philox 2x32
_HEAD_ROUNDS, _CELL_ROUNDS = 10, 7
_NUMBERS, _MAX = 1 << 15, 0x7F80  # the range of a weight's number, and the largest bound


def dropout_mask(
    rng_state: torch.Tensor,
    dropout_p: float,
    shape: Sequence[int],
    *,
    first: tuple[int, int] = (0, 0),
) -> torch.Tensor:
    """Returns which weights ``flashsmith.attention`` keeps with ``dropout_p`` and ``rng_state``.

    The result for a sequence does not depend on any length: in a varlen batch, the first rows and
    columns of entry b are the mask of sequence b.

    Args:
        rng_state: (2,), int64: a seed and an offset.
        dropout_p: From 0 to below 1.
        shape: (batch, n_heads, seq_len_q, seq_len_k); the heads are q's.
        first: The index in the batch, and the head, of the result's first ones.

    Returns:
        (batch, n_heads, seq_len_q, seq_len_k), bool, on rng_state's device. True: the weight is
        kept, and multiplied by ``dropout_scale(dropout_p)``.

    Raises:
        TypeError, ValueError: dropout_p is not a number from 0 to below 1.
    """
    bound = _bound(dropout_p)
    batch, heads, seq_len_q, seq_len_k = shape
    device = rng_state.device
    samples = torch.arange(first[0], first[0] + batch, device=device)[:, None, None, None]
    of_q = torch.arange(first[1], first[1] + heads, device=device)[None, :, None, None]
    seed, offset = rng_state.tolist()
    key, begin = _philox_4x32(
        [*(torch.full_like(samples, word) for word in _words(offset)), samples, of_q], _words(seed)
    )[:2]
    cells_q = torch.arange(-(-seq_len_q // 16) * 8, device=device)[None, None, :, None]
    cells_k = torch.arange(-(-seq_len_k // 16) * 8, device=device)[None, None, None, :]
    words = _philox_2x32(cells_k, (begin + cells_q) & _WORD, key)
    # A cell of the block (i, j) has the queries 16 i + g + 8 h and the keys 16 j + t + 8 l.
    numbers = torch.stack([word >> 16 * half for word in words for half in (0, 1)], -1)
    numbers = numbers.view(batch, heads, cells_q.numel() // 8, 8, cells_k.numel() // 8, 8, 2, 2)
    numbers = numbers.permute(0, 1, 2, 6, 3, 4, 7, 5).flatten(5, 7).flatten(2, 4)
    kept: torch.Tensor = (numbers & (_NUMBERS - 1)) >= bound
    return kept[:, :, :seq_len_q, :seq_len_k]


def dropout_scale(dropout_p: float) -> float:
    """Returns the factor of the weights that are kept, which preserves each weight's mean: 1 / (1 -
    p), with p rounded to a multiple of 2^-15, as for the mask.

    Raises:
        TypeError, ValueError: dropout_p is not a number from 0 to below 1.
    """
    return _NUMBERS / (_NUMBERS - _bound(dropout_p))


def check_dropout(dropout_p: float, name: str = "dropout_p") -> float:
    """Returns dropout_p. Raises TypeError or ValueError unless it is a number from 0 to below 1."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float):
        raise TypeError(f"{name} is {dropout_p!r}; expected a float from 0 to below 1")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"{name} is {dropout_p}; expected a number from 0 to below 1")
    return float(dropout_p)


def _bound(dropout_p: float) -> int:
    """Returns the bound below which a weight's number drops it."""
    return min(round(check_dropout(dropout_p) * _NUMBERS), _MAX)


def _words(number: int) -> list[int]:
    """Returns the 32-bit words of a 64-bit number, the lower first."""
    return [number & _WORD, number >> 32 & _WORD]


def _product(factor: int, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the upper and the lower word; the 64-bit product wraps around as it should."""
    product = t * factor
    return product >> 32 & _WORD, product & _WORD


def _philox_4x32(counter: list[torch.Tensor], key: list[int]) -> list[torch.Tensor]:
    a, b, c, d = counter
    for i in range(_HEAD_ROUNDS):
        keys = [(word + i * weyl) & _WORD for word, weyl in zip(key, _WEYL, strict=True)]
        (high_a, low_a), (high_c, low_c) = (
            _product(_MULTIPLIERS[0], a),
            _product(_MULTIPLIERS[1], c),
        )
        a, b, c, d = high_c ^ b ^ keys[0], low_c, high_a ^ d ^ keys[1], low_a
    return [a, b, c, d]


def _philox_2x32(
    left: torch.Tensor, right: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    for i in range(_CELL_ROUNDS):
        high, low = _product(_MULTIPLIER, left)
        left, right = high ^ ((key + i * _WEYL[0]) & _WORD) ^ right, low
    return left, right
