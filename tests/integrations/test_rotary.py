"""FlashAttention's rotary embedding against complex numbers in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith.flash_attn.layers.rotary import apply_rotary_emb
from flashsmith.flash_attn.ops.triton.rotary import apply_rotary

ROWS, DIM = 23, 12  # rows of cos and sin; rotated dimensions


def angles() -> torch.Tensor:
    return torch.rand(ROWS, DIM // 2, dtype=torch.float64) * 6


def turned(x: torch.Tensor, angle: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Returns rows (..., nheads, headdim), rotated by angles (..., DIM / 2) as complex numbers."""
    part = x[..., :DIM].double()
    pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).mT
    numbers = torch.complex(pairs[..., 0], pairs[..., 1]) * torch.exp(1j * angle)[..., None, :]
    found = torch.view_as_real(numbers)
    found = found.flatten(-2) if interleaved else found.mT.flatten(-2)
    return torch.cat([found, x[..., DIM:].double()], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 5, torch.tensor([0, 14], dtype=torch.int32)])
@pytest.mark.parametrize("headdim", [DIM, 20])
@pytest.mark.parametrize("inplace", [False, True])
def test_rows_are_turned_by_their_positions(
    interleaved: bool, offsets: int | torch.Tensor, headdim: int, inplace: bool
) -> None:
    x, angle = torch.randn(2, 9, 3, headdim), angles()
    first = torch.as_tensor(offsets).expand(2)
    expected = torch.stack(
        [turned(row, angle[at : at + 9], interleaved) for row, at in zip(x, first, strict=True)]
    )
    before = x.clone()
    arguments: Any = (angle.cos().float(), angle.sin().float(), interleaved, inplace, offsets)
    found = apply_rotary_emb(x, *arguments)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert (found is x) == inplace
    assert torch.equal(x, before) == (not inplace)
    back = apply_rotary(
        found, *arguments[:2], seqlen_offsets=offsets, interleaved=interleaved, conjugate=True
    )
    torch.testing.assert_close(back, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offsets", [0, torch.tensor([3, 0, 17])])
def test_packed_sequences_have_positions_of_their_own(offsets: int | torch.Tensor) -> None:
    places, angle = torch.tensor([1, 8, 8, 13], dtype=torch.int32), angles()
    x = torch.randn(15, 2, 16)
    first = torch.as_tensor(offsets).expand(3)
    expected = x.double()  # rows outside all sequences stay
    for i in range(3):
        rows = slice(int(places[i]), int(places[i + 1]))
        own = angle[int(first[i]) :][: rows.stop - rows.start]
        expected[rows] = turned(x[rows], own, False)
    cos, sin = angle.cos().float(), angle.sin().float()
    found = apply_rotary_emb(x, cos, sin, seqlen_offsets=offsets, cu_seqlens=places, max_seqlen=7)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_positions_beyond_the_angles_stay() -> None:
    x, angle = torch.randn(1, 9, 1, DIM), angles()
    offsets = torch.tensor([ROWS - 4])
    found = apply_rotary_emb(x, angle.cos(), angle.sin(), seqlen_offsets=offsets)
    assert torch.equal(found[:, 4:], x[:, 4:]) and not torch.equal(found[:, :4], x[:, :4])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_the_gradient_is_turned_back(interleaved: bool, inplace: bool) -> None:
    x, angle = torch.randn(2, 9, 3, 20, requires_grad=True), angles()
    do = torch.randn(2, 9, 3, 20)
    expected = turned(do, -angle[:9], interleaved)
    cos = angle.cos().float().requires_grad_()
    found = apply_rotary_emb(x * 1, cos, angle.sin().float(), interleaved, inplace)
    found.backward(do)
    assert x.grad is not None and cos.grad is None
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype: torch.dtype) -> None:
    x, angle = torch.randn(2, 9, 3, 16).to(dtype), angles()
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    found = apply_rotary_emb(x, cos, sin)
    assert found.dtype == dtype
    assert torch.equal(found, apply_rotary_emb(x.float(), cos.float(), sin.float()).to(dtype))


@pytest.mark.parametrize(
    "changed, error, words",
    [
        ({"x": torch.randn(9, 3, 16)}, ValueError, r"x has shape \(9, 3, 16\); expected 4"),
        ({"x": [1.0]}, TypeError, "x is a list; expected a torch.Tensor"),
        ({"x": torch.ones(1, 9, 1, 16).int()}, TypeError, r"x has dtype torch\.int32"),
        ({"cos": torch.ones(9)}, ValueError, "cos has shape .* expected 2 dimensions"),
        ({"sin": torch.ones(9, 5)}, ValueError, r"sin has shape \(9, 5\), but cos \(23, 6\)"),
        (
            {"cos": torch.ones(23, 9), "sin": torch.ones(23, 9)},
            ValueError,
            "rotary_dim is 18; supported are 2 to 16",
        ),
        ({"seqlen_offsets": 15}, ValueError, "cos has 23 rows, but positions reach 24"),
        ({"seqlen_offsets": 1.0}, TypeError, "seqlen_offsets is a float"),
        ({"seqlen_offsets": torch.zeros(1)}, TypeError, r"seqlen_offsets has dtype torch\.float"),
        ({"seqlen_offsets": torch.zeros(2).int()}, ValueError, r"has shape \(2,\); expected"),
        ({"interleaved": 1}, TypeError, "interleaved is 1; expected True or False"),
        (
            {"x": torch.randn(9, 1, 16), "cu_seqlens": torch.tensor([0, 9]).int()},
            ValueError,
            "max_seqlen is None; with cu_seqlens it must be an int",
        ),
        (
            {"x": torch.randn(9, 1, 16), "cu_seqlens": torch.tensor([0.0, 9]), "max_seqlen": 9},
            ValueError,
            "cu_seqlens has dtype torch.float32",
        ),
    ],
)
def test_what_is_not_taken_is_named(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    angle = angles()
    given = {"x": torch.randn(1, 9, 1, 16), "cos": angle.cos(), "sin": angle.sin()}
    with pytest.raises(error, match=words):
        apply_rotary_emb(**(given | changed))
