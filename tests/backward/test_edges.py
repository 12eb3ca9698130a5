"""Gradients at the boundaries of tiles, of masks and of memory."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, BackwardKernelConfig, DType, KernelId, Variant
from flashsmith.configs.sm80.sums_backward_space import small_heuristic
from flashsmith.jit import Target
from flashsmith.reference import Packing, ReferenceGradients
from flashsmith.runtime import load_kernels
from support.backward_kernels import BAND, PLAIN
from support.gradient_calls import Call, call_of
from support.gradients import assert_near_truth, differing, launch
from support.semantics import offsets, packing_of

# One configuration of each family, and one whose warps share keys.
CONFIGS = PLAIN | {"sm80 sums, shared keys": small_heuristic(DType.BF16, 96)}
BY_FAMILY = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
BF16 = torch.bfloat16
VARLEN = Variant(causal=True, varlen=True)
LENGTHS = (1, 63, 64, 65, 130)
FAR = 10**6


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    variants = (FULL, CAUSAL, BAND, VARLEN)
    kernels = [KernelId(cfg, v) for cfg in CONFIGS.values() for v in variants]
    load_kernels(kernels, Target.emulator())


def small(
    cfg: BackwardKernelConfig, n_q: int, n_k: int, heads: tuple[int, int] = (1, 1), **more: Any
) -> Call:
    return call_of(BF16, (1, n_q, heads[0], cfg.d_head), (1, n_k, heads[1], cfg.d_head), **more)


def assert_right(cfg: BackwardKernelConfig, call: Call) -> ReferenceGradients:
    found = launch(call.kernel(cfg), call)
    sizes = (tuple(call.q.shape), tuple(call.k.shape), call.semantics.keywords)
    assert_near_truth(found, call, sizes)
    return found


@pytest.mark.parametrize("causal", [False, True])
@BY_FAMILY
def test_lengths_beside_the_edges_of_tiles(cfg: BackwardKernelConfig, causal: bool) -> None:
    for i, (n_q, n_k) in enumerate(product(LENGTHS, LENGTHS)):
        assert_right(cfg, small(cfg, n_q, n_k, causal=causal, top_left=i % 2 == 1))


@BY_FAMILY
def test_lengths_beside_the_edges_of_a_block_of_keys(cfg: BackwardKernelConfig) -> None:
    for n_k, n_q in product((cfg.B_c - 1, cfg.B_c, cfg.B_c + 1), (65, 200)):
        assert_right(cfg, small(cfg, n_q, n_k, causal=True))


@BY_FAMILY
def test_windows_of_all_kinds(cfg: BackwardKernelConfig) -> None:
    sizes = ((65, 130), (130, 65), (70, 33))
    for i, ((n_q, n_k), left, right) in enumerate(product(sizes, (0, 1, 63, 64, FAR), (0, 1, 65))):
        window = (left, right)
        assert_right(cfg, small(cfg, n_q, n_k, window_size=window, top_left=i % 2 == 1))


@BY_FAMILY
def test_what_a_query_does_not_see_has_no_gradient(cfg: BackwardKernelConfig) -> None:
    """The mask is exact to the element: gradients are nonzero at seen keys and zero at all
    others."""
    n_q, n_k = 140, 150
    for left, right in ((37, 5), (0, 0), (64, 63)):
        call = small(cfg, n_q, n_k, window_size=(left, right))
        for row in (0, 63, 64, 100, 139):
            alone = torch.zeros_like(call.do)
            alone[:, row] = call.do[:, row]
            found = launch(call.kernel(cfg), Call(**vars(call) | {"do": alone}))
            diagonal = row + n_k - n_q
            seen = torch.zeros(n_k, dtype=torch.bool)
            seen[max(0, diagonal - left) : diagonal + right + 1] = True
            assert torch.equal((found.v[0, :, 0] != 0).any(-1), seen), (left, right, row)
            rows = (found.q[0, :, 0] != 0).any(-1).nonzero().flatten().tolist()
            assert set(rows) <= {row}


@BY_FAMILY
def test_masks_end_where_they_should_at_every_distance(cfg: BackwardKernelConfig) -> None:
    """The window of the first or the last query ends within three keys of a boundary of a tile of
    keys."""
    n_q, n_k = 64, 256
    for end in (edge + i for edge in (32, 64, 128, 192) for i in range(-3, 3)):
        ahead = small(cfg, n_q, n_k, window_size=(-1, end), top_left=True)
        behind = small(cfg, n_q, n_k, window_size=(end, n_k))
        for call, row, seen in (
            (ahead, 0, range(end + 1)),
            (behind, n_q - 1, range(n_k - 1 - end, n_k)),
        ):
            call.do[:, torch.arange(n_q) != row] = 0
            found = launch(call.kernel(cfg), call).v[0, :, 0]
            assert (found != 0).any(-1).nonzero().flatten().tolist() == list(seen)


@pytest.mark.parametrize("heads", [(4, 1), (6, 2), (3, 3)])
@BY_FAMILY
def test_heads_that_share_keys(cfg: BackwardKernelConfig, heads: tuple[int, int]) -> None:
    assert_right(cfg, small(cfg, 70, 90, heads, causal=True))


@BY_FAMILY
def test_heads_of_one_group_add_up(cfg: BackwardKernelConfig) -> None:
    """A KV head has the sum of the gradients of its query heads, and of no others."""
    call = small(cfg, 70, 90, (4, 2))
    kernel = call.kernel(cfg)
    for head in range(4):
        alone = torch.zeros_like(call.do)
        alone[:, :, head] = call.do[:, :, head]
        found = launch(kernel, Call(**vars(call) | {"do": alone}))
        for gradient in (found.k, found.v):
            assert [bool(gradient[:, :, h].any()) for h in (0, 1)] == [head < 2, head >= 2]


@BY_FAMILY
def test_queries_that_see_nothing_and_keys_that_nobody_sees_have_zeros(
    cfg: BackwardKernelConfig,
) -> None:
    found = assert_right(cfg, small(cfg, 150, 50, causal=True))
    assert not found.q[:, :100].any() and found.q[:, 101:].any(-1).all()
    found = assert_right(cfg, small(cfg, 50, 250, window_size=(20, 0)))
    assert not found.k[:, :180].any() and not found.v[:, :180].any()
    assert found.v[:, 180:].any(-1).all()
    found = assert_right(cfg, small(cfg, 50, 250, window_size=(20, 0), top_left=True))
    assert not found.k[:, 50:].any() and not found.v[:, 50:].any()


@BY_FAMILY
def test_sequences_of_their_own_lengths(cfg: BackwardKernelConfig) -> None:
    """Sequences are packed on both sides or on one, used in part, and empty on either side or on
    both."""
    lengths_q, lengths_k = [70, 0, 1, 0, 33, 5], [50, 20, 130, 0, 0, 200]
    packed = packing_of(lengths_q, lengths_k)
    used_q, used_k = (
        torch.tensor([n - n // 3 for n in each]).int() for each in (lengths_q, lengths_k)
    )
    of_q, of_k = (sum(lengths_q) + 3, 2, cfg.d_head), (sum(lengths_k) + 3, 1, cfg.d_head)
    dense_q, dense_k = (6, 70, 2, cfg.d_head), (6, 210, 1, cfg.d_head)
    for shapes, packing in (
        ((of_q, of_k), packed),
        ((of_q, of_k), Packing(packed.cu_seqlens_q, packed.cu_seqlens_k, used_q, used_k)),
        ((of_q, dense_k), Packing(cu_seqlens_q=packed.cu_seqlens_q, seqused_k=used_k)),
        ((dense_q, of_k), Packing(cu_seqlens_k=packed.cu_seqlens_k, seqused_q=used_q)),
        ((dense_q, dense_k), Packing(seqused_q=used_q, seqused_k=used_k)),
    ):
        for gaps in (False, True):
            call = call_of(BF16, *shapes, None, packing, causal=True, with_dlse=gaps)
            found = launch(call.kernel(cfg), call, gaps=gaps)
            assert_near_truth(found, call, packing)


@BY_FAMILY
def test_a_sequence_has_the_same_bits_alone_and_among_others(cfg: BackwardKernelConfig) -> None:
    lengths_q, lengths_k = [70, 1, 33], [50, 130, 65]
    call = call_of(
        BF16,
        (104, 2, cfg.d_head),
        (245, 1, cfg.d_head),
        None,
        packing_of(lengths_q, lengths_k),
        causal=True,
    )
    whole = launch(call.kernel(cfg), call)
    begin_q = begin_k = 0
    for n_q, n_k in zip(lengths_q, lengths_k, strict=True):
        rows, keys = slice(begin_q, begin_q + n_q), slice(begin_k, begin_k + n_k)
        begin_q, begin_k = begin_q + n_q, begin_k + n_k
        of_q = {name: getattr(call, name)[rows] for name in ("q", "o", "do")}
        of_k = {name: getattr(call, name)[keys] for name in ("k", "v")}
        of_lse = {"lse": call.lse[:, rows].contiguous(), "packing": packing_of([n_q], [n_k])}
        alone = launch(call.kernel(cfg), Call(**vars(call) | of_q | of_k | of_lse))
        part = ReferenceGradients(whole.q[rows], whole.k[keys], whole.v[keys])
        assert not differing(cfg, alone, part)


@BY_FAMILY
def test_places_begin_where_they_say(cfg: BackwardKernelConfig) -> None:
    """Rows before the first sequence belong to no sequence, so their gradients are not written."""
    packing = Packing(9 + offsets([40, 30]), 5 + offsets([20, 66]))
    call = call_of(BF16, (90, 2, cfg.d_head), (100, 2, cfg.d_head), None, packing, causal=True)
    found = launch(call.kernel(cfg), call)
    assert_near_truth(found, call)
    assert found.q[:9].isnan().all() and found.q[79:].isnan().all(), "they stay as they were"
    assert found.k[:5].isnan().all() and found.v[91:].isnan().all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, 60_000.0])
@BY_FAMILY
def test_what_no_sequence_uses_reaches_nothing(cfg: BackwardKernelConfig, value: float) -> None:
    """Unused rows may hold any value; in all other tests they hold NaN."""
    used = torch.tensor([50, 3]).int()
    lengths = Packing(seqused_q=used, seqused_k=used)
    call = call_of(BF16, (2, 70, 2, cfg.d_head), (2, 90, 1, cfg.d_head), None, lengths, causal=True)
    expected = launch(call.kernel(cfg), call)
    for t in (call.q, call.k, call.v, call.o, call.do, call.lse):
        t.nan_to_num_(nan=value)
    assert not differing(cfg, launch(call.kernel(cfg), call), expected)


@BY_FAMILY
def test_large_scores_have_finite_gradients(cfg: BackwardKernelConfig) -> None:
    """Either one key takes all the weight of a row, or all scores are so low that a key beyond the
    sequence, whose score would be 0, would have an infinite weight."""
    assert_right(cfg, small(cfg, 70, 90, causal=True, softmax_scale=4.0))

    def opposite(q: torch.Tensor, k: torch.Tensor, *_: torch.Tensor) -> None:
        q.fill_(-2)
        k.fill_(2).narrow(-1, 0, 1).normal_()

    for causal in (False, True):
        call = small(cfg, 70, 90, causal=causal, softmax_scale=1.0, change=opposite)
        assert call.lse.max() < -200
        found = assert_right(cfg, call)
        assert all(t.isfinite().all() for t in (found.q, found.k, found.v))
