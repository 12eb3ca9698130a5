"""flex_attention beside torch's, on emulated kernels: random calls. Plain torch computes the
expected gradients, because flex_attention has none on a CPU."""

from __future__ import annotations

import math
import random as python_random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention import flex_attention as module_of_torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

from flashsmith.integrations.flex import flex_attention
from support.layouts import LAYOUTS
from support.trained import build_for_training

BATCH, HEADS, MAX = 2, 4, 80  # the maximum number of rows
SLOPES, TABLE = torch.rand(HEADS), torch.randn(2 * MAX)
DOCUMENTS = torch.randint(3, (BATCH, MAX), dtype=torch.int32).sort().values
NUMBERS = torch.randn(BATCH, HEADS, MAX, MAX).half()
SHOWN = torch.rand(BATCH, HEADS, MAX) < 0.6  # queries that see any key


class Functions(NamedTuple):
    """Functions that are drawn together, so that few kernels serve many calls."""

    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    of_batch: int | None = None  # batch size of the block mask
    of_heads: int | None = None
    block_size: int | tuple[int, int] = 128


FUNCTIONS = {
    "nothing": Functions(),
    "causal": Functions(None, lambda b, h, i, j: i >= j, block_size=16),
    "windows of heads": Functions(
        lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
        lambda b, h, i, j: (i - j).abs() <= 4 * (h + 1),
        None, HEADS, (16, 32),
    ),
    "documents of a batch": Functions(
        lambda s, b, h, i, j: s + TABLE[i - j + MAX],
        lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j],
        BATCH, None, 128,
    ),
    "a curve and numbers": Functions(
        lambda s, b, h, i, j: 2 * torch.tanh(s / 2) + NUMBERS[b, h, i, j]
    ),
    "queries that see nothing": Functions(
        lambda s, b, h, i, j: torch.where(j % 3 == 1, -math.inf, s * (b + 1)),
        lambda b, h, i, j: SHOWN[b, h, i] & (j != 1),
        BATCH, HEADS, (32, 16),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_for_training("padded")


def plain(q: Any, k: Any, v: Any, scale: float | None, functions: Functions) -> Any:
    """Computes in float64, with the functions applied to all scores at once."""
    groups = q.shape[1] // k.shape[1]
    k, v = (
        t.double().expand(q.shape[0], *t.shape[1:]).repeat_interleave(groups, 1) for t in (k, v)
    )
    s = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = torch.meshgrid(*(torch.arange(n) for n in s.shape), indexing="ij")
    if functions.score_mod is not None:
        s = functions.score_mod(s, *at)
    if functions.mask_mod is not None:
        s = s.masked_fill(~functions.mask_mod(*at), -math.inf)
    unseen = (s == -math.inf).all(-1)
    s = s.masked_fill(unseen[..., None], 0)
    o = s.softmax(-1).masked_fill(unseen[..., None], 0) @ v
    return o, s.logsumexp(-1).masked_fill(unseen, -math.inf)


def assert_near(found: torch.Tensor, right: torch.Tensor, rough: float) -> None:
    assert found.shape == right.shape
    finite = right[right.isfinite()]
    atol = rough * max(1.0, finite.abs().max().item() if finite.numel() else 0.0)
    torch.testing.assert_close(found.double(), right.double(), rtol=rough, atol=atol)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("seed", range(5))
def test_random_calls(monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    torch.manual_seed(seed)
    draw = python_random.Random(f"{name}{seed}").choice
    functions = FUNCTIONS[name]
    n_q, n_k = draw([1, 17, 40, 66, 80]), draw([1, 16, 33, 80])
    heads_kv, d_v = draw([1, 2, 4]), draw([16, 8, 5])
    has_mask = functions.mask_mod is not None
    batch_kv = draw([1, BATCH]) if has_mask and functions.of_batch else BATCH
    shapes = (BATCH, HEADS, n_q, 16), (batch_kv, heads_kv, n_k, 16), (batch_kv, heads_kv, n_k, d_v)
    leaves = []
    for shape in shapes:
        t, layout = torch.randn(shape).half(), draw([*LAYOUTS, None, None, None])
        leaves.append((t if layout is None else LAYOUTS[layout](t)).detach().requires_grad_())
    mask = None
    if has_mask:
        sizes = functions.of_batch, functions.of_heads, n_q, n_k
        mask = create_block_mask(functions.mask_mod, *sizes, "cpu", functions.block_size)
    scale = draw([None, 0.3, -0.2, 0.0])
    keywords: dict[str, Any] = {
        "score_mod": functions.score_mod, "block_mask": mask, "scale": scale, "enable_gqa": True,
    }  # fmt: skip
    o, aux = flex_attention(*leaves, **keywords, return_aux=AuxRequest(lse=True))
    right, right_lse = plain(*leaves, scale, functions)
    assert o.dtype == torch.half and aux.lse is not None
    assert_near(o.detach(), right.detach(), 4e-3)
    assert_near(aux.lse.detach(), right_lse.detach(), 4e-3)
    do, dlse = torch.randn_like(o), torch.randn_like(aux.lse)
    found = torch.autograd.grad([o, aux.lse], leaves, [do, dlse])
    expected = torch.autograd.grad([right, right_lse], leaves, [do.double(), dlse.double()])
    for own, wide in zip(found, expected, strict=True):
        assert_near(own, wide, 1e-2)
    # The plain function above is compared with torch's own here.
    monkeypatch.setattr(module_of_torch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    theirs, of_theirs = module_of_torch.flex_attention(
        *(t.detach().double() for t in leaves), **keywords, return_aux=AuxRequest(lse=True)
    )
    assert_near(o.detach(), theirs, 4e-3)
    assert_near(aux.lse.detach(), of_theirs.lse, 4e-3)


def test_autocast_casts_as_torch_does() -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (5, 9, 9))
    leaves = [t.requires_grad_() for t in (q, k.double().float(), v.half())]
    with torch.autocast("cpu", torch.bfloat16):
        o = flex_attention(*leaves)
    assert isinstance(o, torch.Tensor) and o.dtype == torch.bfloat16
    right, _ = plain(q, k, v, None, Functions())
    assert_near(o.detach(), right.detach(), 3e-2)
    dtypes = [g.dtype for g in torch.autograd.grad(o.sum(), leaves)]
    assert dtypes == [torch.float, torch.float, torch.half]


def test_keys_of_one_batch_are_shared_under_a_mask_alone() -> None:
    """torch refuses the call as well."""
    q, k = torch.randn(2, 2, 5, 16).half(), torch.randn(1, 2, 9, 16).half()
    with pytest.raises(ValueError, match=r"k has shape \(1, 9, 2, 16\), but q has \(2, 5, 2, 16\)"):
        flex_attention(q, k, k)
