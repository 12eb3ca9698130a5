"""The mask of dropout: Philox's known answers, chances, and its dependence on the position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.reference import dropout as module
from flashsmith.reference import (
    dropout_mask,
    dropout_scale,
    reference_attention,
    reference_gradients,
    reference_varlen,
)

STATE = torch.tensor([2**40 + 17, -3])
SHAPE = (2, 3, 150, 170)


def tensor(words: str) -> list[torch.Tensor]:
    return [torch.tensor([int(word, 16)]) for word in words.split()]


def words(found: Any) -> str:
    return " ".join(f"{int(t):08x}" for t in found)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0", "0", "257a3673 cd26be2a"),
        ("ffffffff ffffffff", "ffffffff", "ab302c4d 3dc9d239"),
        ("243f6a88 85a308d3", "13198a2e", "bedbbe6b e4c770b3"),
    ],
)
def test_numbers_of_cells_are_those_of_philox_2x32_7(counter: str, key: str, expected: str) -> None:
    """The expected words are Random123's known answers."""
    left, right = tensor(counter)
    assert words(module._philox_2x32(left, right, *tensor(key))) == expected


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_keys_of_heads_are_those_of_philox_4x32_10(counter: str, key: str, expected: str) -> None:
    given = [int(word, 16) for word in key.split()]
    assert words(module._philox_4x32(tensor(counter), given)) == expected


def deviation(found: torch.Tensor, chance: float) -> float:
    """Returns how far a share of independent events is from their chance, in standard
    deviations."""
    return abs(found.double().mean().item() - chance) / math.sqrt(
        max(chance * (1 - chance), 1e-12) / found.numel()
    )


@pytest.mark.parametrize("p", [0.001, 0.1, 0.25, 0.5, 0.9, 0.99])
def test_weights_are_kept_with_the_chance_that_is_asked_for(p: float) -> None:
    kept = dropout_mask(STATE, p, (4, 4, 300, 301))
    assert abs(1 / dropout_scale(p) - (1 - p)) <= 2.0**-16
    assert deviation(kept, 1 / dropout_scale(p)) < 4
    along = [kept.float().mean(dim).sub(1 - p).abs().max() for dim in ((0, 1, 2), (0, 1, 3))]
    assert max(along) < 5.5 * math.sqrt(p * (1 - p) / (16 * 300))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_two_weights_are_dropped_independently(p: float) -> None:
    """The pairs are neighbours, bits of one random word, of one cell, and of other heads, samples
    and states."""
    kept = dropout_mask(STATE, p, (4, 4, 256, 256))
    both = (1 - p) ** 2
    for rows, keys in ((0, 1), (1, 0), (0, 8), (8, 0), (8, 8), (16, 0), (0, 16), (1, 1), (64, 0)):
        pair = kept[..., : 256 - rows, : 256 - keys] & kept[..., rows:, keys:]
        assert deviation(pair, both) < 6, (rows, keys)
    others = [STATE + torch.tensor(step) for step in ([1, 0], [0, 1], [2**32, 0], [0, 2**32])]
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.mT,
                  *(dropout_mask(state, p, kept.shape) for state in others)):  # fmt: skip
        assert deviation(kept & other, both) < 6


def test_a_mask_is_part_of_any_larger_one() -> None:
    whole = dropout_mask(STATE, 0.3, (3, 4, 100, 90))
    for n_q, n_k in ((0, 5), (1, 1), (15, 17), (16, 16), (33, 90)):
        assert torch.equal(dropout_mask(STATE, 0.3, (3, 4, n_q, n_k)), whole[:, :, :n_q, :n_k])
    part = dropout_mask(STATE, 0.3, (1, 2, 100, 90), first=(2, 1))
    assert torch.equal(part, whole[2:, 1:3])


@pytest.mark.parametrize(
    ("p", "scale"), [(0, 1.0), (1e-9, 1.0), (0.5, 2.0), (0.75, 4.0), (0.999999, 256.0)]
)
def test_probabilities_are_rounded_to_those_that_there_are(p: float, scale: float) -> None:
    assert dropout_scale(p) == scale
    kept = dropout_mask(STATE, p, SHAPE)
    assert kept.all() == (scale == 1) and deviation(kept, 1 / scale) < 4


@pytest.mark.parametrize(
    ("p", "error", "words"),
    [
        (1.0, ValueError, "dropout_p is 1.0; expected a number from 0 to below 1"),
        (-0.1, ValueError, "dropout_p is -0.1"),
        (math.nan, ValueError, "dropout_p is nan"),
        (True, TypeError, "dropout_p is True; expected a float"),
        ("0.1", TypeError, "dropout_p is '0.1'; expected a float"),
    ],
)
def test_what_is_no_probability_is_refused(p: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        flashsmith.dropout_mask(STATE, p, SHAPE)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Computes FlashAttention-2's formula: softmax, then dropout, then the values."""
    s = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * q.shape[-1] ** -0.5
    return (s.softmax(-1) * kept / 0.75 @ v.transpose(1, 2)).transpose(1, 2)


def test_the_reference_drops_normalised_weights() -> None:
    q, k, v, do = (torch.randn(2, n, 3, 16).double() for n in (40, 50, 50, 40))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    expected = plain(*leaves, dropout_mask(STATE, 0.25, (2, 3, 40, 50)))
    given: dict[str, Any] = {"dropout_p": 0.25, "rng_state": STATE}
    assert torch.allclose(reference_attention(q, k, v, **given), expected)
    found = reference_gradients(q.detach(), k.detach(), v.detach(), do, **given)
    for own, right in zip((found.q, found.k, found.v),
                          torch.autograd.grad(expected, leaves, do), strict=True):  # fmt: skip
        assert torch.allclose(own, right)


def test_sequences_have_masks_by_their_numbers() -> None:
    q, k, v = (torch.randn(n, 2, 16).double() for n in (50, 60, 60))
    offsets = [torch.tensor(each).int() for each in ([0, 20, 20, 50], [0, 25, 40, 60])]
    given: dict[str, Any] = {"dropout_p": 0.25, "rng_state": STATE}
    o, _ = reference_varlen(q, k, v, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], **given)
    kept = dropout_mask(STATE, 0.25, (3, 2, 30, 30))
    assert torch.allclose(o[:20], plain(q[None, :20], k[None, :25], v[None, :25],
                                        kept[:1, :, :20, :25])[0])  # fmt: skip
    assert torch.allclose(o[20:], plain(q[None, 20:], k[None, 40:], v[None, 40:],
                                        kept[2:, :, :, :20])[0])  # fmt: skip
