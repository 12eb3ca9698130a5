"""scaled_dot_product_attention on emulated kernels against torch's in float64: each argument, and
many at once."""

from __future__ import annotations

import math
import random as python_random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsmith.integrations.sdpa import scaled_dot_product_attention
from support.layouts import LAYOUTS
from support.trained import build_for_training

Tensors = Sequence[torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    meanings = ("", "causal", "bias")
    build_for_training(*("+".join(filter(None, (m, "padded"))) for m in meanings))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: Any, **keywords: Any) -> Any:
    """Computes with torch's function in float64, on its math backend."""
    wide = [m if m is None or m.dtype == torch.bool else m.double() for m in masks]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), *wide, **keywords)


def assert_near(found: torch.Tensor, right: torch.Tensor, rough: float = 4e-3) -> None:
    """Checks that results differ by the rounding of float16, relative to the largest element."""
    assert found.shape == right.shape
    largest = right.nan_to_num(0, 0, 0).abs().amax().item() if right.numel() else 0.0
    torch.testing.assert_close(
        found.double(), right, rtol=rough, atol=rough * max(1.0, largest), equal_nan=True
    )


def inputs() -> Tensors:
    return random(2, 4, 7, 16), random(2, 4, 9, 16), random(2, 4, 9, 16)


# ---- many arguments at once ----


class Draw:
    """A random call."""

    def __init__(self, seed: int) -> None:
        self._random = python_random.Random(seed)
        draw = self._random.choice
        batch = draw([(), (1,), (2,), (2, 2), (3, 1), (0,)])
        self.enable_gqa = draw([True, False])
        self.heads = draw([1, 2, 4])
        has_heads = self.enable_gqa or batch or draw([True, False])
        self.places = (*batch, *([self.heads] if has_heads else []))
        self.lengths = draw([1, 7, 17, 66, 0]), draw([1, 9, 16, 70, 0])
        self.d_head, self.d_v = draw([8, 16, 20]), draw([8, 16, 5])

    def tensors(self) -> Tensors:
        n_q, n_k = self.lengths
        sizes = ((n_q, self.d_head), (n_k, self.d_head), (n_k, self.d_v))
        shared = self._random.choice([n for n in (1, 2, 4) if self.heads % n == 0])
        found = []
        for i, size in enumerate(sizes):
            places = self.places
            if self.enable_gqa and i:
                places = (*places[:-1], shared)
            found.append(self._laid(random(*places, *size)))
        if not self.enable_gqa and self.places and self._random.random() < 0.3:
            found[1:] = [t[:1].squeeze(0) if 0 not in t.shape else t for t in found[1:]]
        return found

    def mask(self) -> torch.Tensor | None:
        """Returns a mask with some of the last dimensions of the scores, some of which are 1."""
        kind = self._random.choice([None, "bool", "half", "float"])
        if kind is None:
            return None
        scores = (*self.places, *self.lengths)
        behind = self._random.randint(2, len(scores))
        shape = [self._random.choice([1, n]) for n in scores[-behind:]]
        numbers = torch.randn(shape)
        mask = numbers > 0.5 if kind == "bool" else numbers.to(getattr(torch, kind))
        mask = self._laid(mask)
        if self._random.random() < 0.3:
            mask = mask.expand(*scores[-behind:])
        return mask

    def keywords(self, has_mask: bool) -> dict[str, Any]:
        return {
            "is_causal": not has_mask and self._random.random() < 0.5,
            "scale": self._random.choice([None, 0.3, -0.2, 0.0, 1]),
            "enable_gqa": self.enable_gqa,
        }

    def _laid(self, t: torch.Tensor) -> torch.Tensor:
        layout = self._random.choice([*LAYOUTS, None, None, None])
        return t if layout is None or t.ndim < 3 or not t.numel() else LAYOUTS[layout](t)


@pytest.mark.parametrize("seed", range(80))
def test_random_calls(seed: int) -> None:
    torch.manual_seed(seed)
    draw = Draw(seed)
    tensors, mask = draw.tensors(), draw.mask()
    keywords = draw.keywords(mask is not None)
    leaves = [t.detach().requires_grad_() for t in tensors]
    if mask is not None and mask.dtype == torch.half:
        leaves.append(mask.detach().requires_grad_())
        mask = leaves[-1]
    found = scaled_dot_product_attention(*leaves[:3], mask, **keywords)
    right = exact(*leaves[:3], mask, **keywords)
    assert found.dtype == torch.half
    assert_near(found.detach(), right.detach())
    do = random(*right.shape)
    gradients, wide = (
        torch.autograd.grad(o, leaves, do.to(o), allow_unused=True) for o in (found, right)
    )
    for leaf, own, expected in zip(leaves, gradients, wide, strict=True):
        if own is None or expected is None:
            assert 0 in (*draw.places, *draw.lengths)
        own, expected = (torch.zeros_like(leaf) if g is None else g for g in (own, expected))
        assert own.dtype == torch.half
        assert_near(own, expected.double(), rough=1e-2)


def test_the_draws_have_every_kind_of_argument() -> None:
    """A change of the seeds must leave no kind of argument out."""
    seen: set[object] = set()
    for seed in range(80):
        torch.manual_seed(seed)
        draw = Draw(seed)
        tensors, mask = draw.tensors(), draw.mask()
        keywords = draw.keywords(mask is not None)
        seen |= {keywords["scale"], ("causal", keywords["is_causal"]), ("gqa", draw.enable_gqa)}
        seen |= {("dimensions", t.ndim) for t in tensors} | {("empty", 0 in draw.lengths)}
        seen.add(None if mask is None else mask.dtype)
    wanted = {None, torch.bool, torch.half, torch.float, 0.3, -0.2, 0.0, 1, ("causal", True)}
    wanted |= {("gqa", True), ("gqa", False), ("empty", True)}
    assert seen >= wanted | {("dimensions", n) for n in (2, 3, 4, 5)}


# ---- each argument ----


@pytest.mark.parametrize("drops", [1, 1.0])
def test_all_weights_may_be_dropped(drops: float) -> None:
    """The result is 0, or NaN where torch has NaN; the gradients are 0."""
    leaves = [t.requires_grad_() for t in inputs()]
    o = scaled_dot_product_attention(*leaves, dropout_p=drops)
    assert o.shape == (2, 4, 7, 16) and (o == 0).all()
    for gradient in torch.autograd.grad(o.sum(), leaves):
        assert (gradient == 0).all()
    q, k, v = inputs()
    v[0, 0, 0, 0] = math.nan
    expected = exact(q, k, v, dropout_p=1.0)
    assert_near(scaled_dot_product_attention(q, k, v, dropout_p=drops), expected)


@pytest.mark.parametrize("of", ["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [None, 0.0, -0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_nan_and_infinity_are_where_torch_has_them(
    of: str, value: float, scale: float | None, masked: bool
) -> None:
    q, k, v = inputs()
    mask = torch.zeros(7, 9).half() if masked or of == "attn_mask" else None
    if masked and mask is not None:
        mask[2] = mask[:, 3] = -math.inf
    {"query": q[0, 1], "key": k[0, 1], "value": v[0, 1], "attn_mask": mask}[of][4, 5] = value
    found = scaled_dot_product_attention(q, k, v, mask, scale=scale)
    assert_near(found, exact(q, k, v, mask, scale=scale))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_what_torch_casts(dtype: torch.dtype) -> None:
    q, k, v = (t.float() for t in inputs())
    masks: list[torch.Tensor | None] = [None, torch.rand(7, 9) < 0.5, torch.randn(7, 9)]
    with torch.autocast("cpu", dtype):
        for given in ((q, k, v), (q, k.half(), v.bfloat16())):
            for mask in masks:
                found = scaled_dot_product_attention(*given, mask)
                expected = F.scaled_dot_product_attention(*given, mask)
                assert found.dtype == expected.dtype == dtype
                rough = 2e-2 if dtype == torch.bfloat16 else 4e-3
                torch.testing.assert_close(found, expected, rtol=rough, atol=rough)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    with torch.autocast("cpu", dtype):
        o = scaled_dot_product_attention(*leaves)
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(o.sum(), leaves))
    with torch.autocast("cpu", dtype), pytest.raises(TypeError, match=r"dtype torch\.float64"):
        scaled_dot_product_attention(*(t.double() for t in (q, k, v)))


def test_a_mask_of_float32_is_not_rounded() -> None:
    """torch adds the mask in float32; in float16 all these numbers would be 512."""
    q, k, v = torch.zeros(1, 1, 3, 16).half(), torch.zeros(1, 1, 9, 16).half(), random(1, 1, 9, 16)
    mask = 512 + torch.linspace(-0.2, 0.2, 9).expand(3, 9)
    found = scaled_dot_product_attention(q, k, v, mask)
    assert_near(found, exact(q, k, v, mask))
    assert (found - scaled_dot_product_attention(q, k, v, mask.half())).abs().max() > 0.02


def test_a_mask_of_float32_has_no_gradient() -> None:
    q, k, v = inputs()
    mask = torch.randn(7, 9, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"attn_mask has .* and requires a gradient"):
        scaled_dot_product_attention(q, k, v, mask)
    with torch.no_grad():
        assert scaled_dot_product_attention(q, k, v, mask).shape == q.shape


def test_a_compiled_graph_takes_a_negative_scale_and_no_batch() -> None:
    function = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    for length in (5, 8):
        q, k, v = random(2, length, 16), random(2, 9, 16), random(2, 9, 16)
        found = function(q, k, v, torch.rand(length, 9) < 0.7, scale=-0.3)
        assert found.shape == q.shape
        torch.manual_seed(length)
        mask = torch.rand(length, 9) < 0.7
        assert_near(function(q, k, v, mask, scale=-0.3), exact(q, k, v, mask, scale=-0.3))
