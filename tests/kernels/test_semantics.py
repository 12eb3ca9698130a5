"""Every feature of attention, in kernels of both families, against float64."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest
import torch

from flashsmith.configs import VARIANTS, ForwardKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.lab.soak import EMULATOR, random_case, tile_boundary_cases
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.ops.launch import kernel_for
from flashsmith.reference import Packing, Semantics
from flashsmith.runtime import emulation, load_kernels
from support.semantics import (
    BAND,
    CONFIGS,
    FAMILIES,
    KERNELS,
    SINGLE,
    assert_right,
    call,
    offsets,
    packed,
    packing_of,
    tensors_of,
)
from support.soak import failures

RANDOM_CASES = 6  # for each kernel
RERUNS = 1  # with another order of warps
SMALL = 3_000  # scores of a case at a tile's boundary
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.slug)
BY_FAMILY = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    plain = [KernelId(cfg, variant) for cfg in FAMILIES.values() for variant in VARIANTS]
    load_kernels([*KERNELS, *plain], Target.emulator())


@EACH
def test_random_cases(kernel: KernelId) -> None:
    rng = Random(kernel.name)
    cases = [random_case(rng, kernel.config, kernel.variant, EMULATOR) for _ in range(RANDOM_CASES)]
    wrong = failures(kernel.config, cases, RERUNS)
    assert not wrong, wrong


@EACH
def test_small_cases_at_the_tile_boundaries(kernel: KernelId) -> None:
    cases = tile_boundary_cases(kernel.config, kernel.variant, EMULATOR)
    wrong = failures(kernel.config, [c for c in cases if c.problem.n_scores <= SMALL], 0)
    assert not wrong, wrong


# ---- windows ----


@pytest.mark.parametrize("first_row", [0, 16, 64])
@pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
def test_windows_end_where_they_should_at_every_distance(
    first_row: int, cfg: ForwardKernelConfig
) -> None:
    """The hidden keys are so large that a single one of them would dominate the result."""
    n_q, B_c = first_row + 3, cfg.B_c
    step = 1 if first_row == 0 and cfg in FAMILIES.values() else 5
    for left in range(0, B_c + 2, step):
        n_k = n_q + 2 * B_c + left % 7
        q, k, v = tensors_of(cfg, n_q, n_k, batch=1, heads=(1, 1))
        hidden = max(0, first_row + n_k - n_q - left)
        q[..., 0] = 8.0
        k[:, :hidden, :, 0], v[:, :hidden] = 8.0, 50.0
        assert_right(cfg, (q, k, v), Semantics(causal=True, window_size=(left, -1)))


@BY_FAMILY
def test_windows_of_all_kinds_beside_the_edges_of_blocks(cfg: ForwardKernelConfig) -> None:
    B_r, B_c = cfg.B_r, cfg.B_c
    lengths = ((1, 2 * B_c + 1), (B_r + 1, 2 * B_c + 1), (B_r + 1, B_c - 1))
    bounds = (0, 1, B_c - 1, B_c, 10**6)
    for i, ((n_q, n_k), left, right) in enumerate(product(lengths, bounds, (0, 1, B_c + 1))):
        qkv = tensors_of(cfg, n_q, n_k, batch=1, heads=(1, 1))
        assert_right(cfg, qkv, Semantics(window_size=(left, right), top_left=i % 2 == 1))


def tiles(
    cfg: ForwardKernelConfig, n_q: int, n_k: int, left: int, right: int
) -> list[tuple[int, int]]:
    """Returns the first block of keys that each block of rows sees, and the one after the last."""
    found = []
    for first in range(0, n_q, cfg.B_r):
        last = first + cfg.B_r - 1
        begin = max(0, first + n_k - n_q - left) // cfg.B_c
        end = -(-min(n_k, last + n_k - n_q + right + 1) // cfg.B_c)
        found.append((begin, max(end, begin + 1)))
    return found


@pytest.mark.parametrize("right", [0, 100])
@pytest.mark.parametrize("left", [0, 31, 200])
@BY_FAMILY
def test_blocks_outside_of_a_window_are_not_visited(
    cfg: ForwardKernelConfig, left: int, right: int
) -> None:
    """A block outside of the window is neither loaded nor multiplied."""
    kernel = kernel_for(cfg, BAND, torch.device("cpu"))  # as calls find it, whatever was loaded
    n_q, n_k = 4 * cfg.B_r, 20 * cfg.B_c
    qkv = tensors_of(cfg, n_q, n_k, batch=1, heads=(1, 1))
    with emulation(kernel) as emulator:
        call(cfg, qkv, Semantics(window_size=(left, right)))
        counted = emulator.counters()
    spans = tiles(cfg, n_q, n_k, left, right)
    visits = sum(end - begin for begin, end in spans)
    assert visits < 0.7 * 20 * len(spans)
    block = 2 * 2 * cfg.B_r * cfg.B_c * cfg.d_head  # operations of a visit's two products
    if cfg.family == "sm80":
        assert counted["mma"] == visits * block // (2 * 16 * 8 * 16)
    else:
        assert counted["wgmma_flops"] == visits * block
        row = -(-cfg.d_head * 2 // 64) * 64
        assert counted["tma_load_bytes"] == (len(spans) * cfg.B_r + 2 * visits * cfg.B_c) * row


# ---- rows that see no key ----


def nothing_seen(cfg: ForwardKernelConfig) -> dict[str, tuple[Semantics, torch.Tensor]]:
    """Returns semantics for 70 queries and 50 keys, with the rows that see no key."""
    rows = torch.arange(70)
    bias = torch.zeros(1, 1, 70, 50, dtype=cfg.dtype.to_torch_dtype())
    bias[:, :, 3:60:2] = -math.inf
    return {
        "window": (Semantics(causal=True, window_size=(3, -1)), rows < 20),
        "window behind all": (Semantics(window_size=(3, 0), top_left=True), rows > 52),
        "bias": (Semantics(bias=bias), bias[0, 0, :, 0].isneginf()),
    }


@pytest.mark.parametrize("name", ["window", "window behind all", "bias"])
@BY_FAMILY
def test_rows_that_see_nothing_are_zero(cfg: ForwardKernelConfig, name: str) -> None:
    meaning, blind = nothing_seen(cfg)[name]
    o, lse = assert_right(cfg, tensors_of(cfg, 70, 50), meaning)
    assert blind.any() and not blind.all()
    assert (o[:, blind] == 0).all() and lse[:, :, blind].isneginf().all()
    assert (o[:, ~blind] != 0).any(-1).all() and lse[:, :, ~blind].isfinite().all()


@BY_FAMILY
def test_rows_that_see_nothing_have_their_sink_alone(cfg: ForwardKernelConfig) -> None:
    sinks = torch.tensor([0.5, -2.0, 20.0, -math.inf])
    bias = torch.zeros(1, 1, 70, 50, dtype=cfg.dtype.to_torch_dtype())
    blind = torch.arange(70) % 3 == 1
    bias[:, :, blind] = -math.inf
    meaning = Semantics(bias=bias, sinks=sinks, softcap=20.0, window_size=(48, -1))
    o, lse = assert_right(cfg, tensors_of(cfg, 70, 50), meaning)
    assert (o[:, blind] == 0).all()
    expected = sinks[None, :, None].expand(2, -1, int(blind.sum()))
    torch.testing.assert_close(lse[:, :, blind], expected, rtol=1e-6, atol=0)


# ---- sequences of different lengths ----

VARLEN = Semantics(causal=True)
LENGTHS_Q, LENGTHS_K = [70, 0, 1, 33, 5], [50, 20, 130, 0, 5]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@BY_FAMILY
def test_what_no_sequence_uses_reaches_nothing(cfg: ForwardKernelConfig, value: float) -> None:
    """Rows between sequences, behind the last and before the first are unused, in q, k and v."""
    q, k, v = packed(cfg, [9, *LENGTHS_Q, 9], [9, *LENGTHS_K, 9])
    used_q = torch.tensor([n // 2 for n in LENGTHS_Q]).int()
    used_k = torch.tensor([n - n // 3 for n in LENGTHS_K]).int()
    lengths = Packing(9 + offsets(LENGTHS_Q), 9 + offsets(LENGTHS_K), used_q, used_k)
    clean_o, clean_lse = assert_right(cfg, (q, k, v), VARLEN, lengths)
    unused_q, unused_k = torch.ones(len(q), dtype=torch.bool), torch.ones(len(k), dtype=torch.bool)
    for sequence in lengths.sequences(q[:, 0], k[:, 0], Semantics()):
        unused_q[sequence.place_q[-1]] = False
        unused_k[sequence.place_k[-1]] = False
    q[unused_q], k[unused_k], v[unused_k] = value, value, value
    o, lse = call(cfg, (q, k, v), VARLEN, lengths)
    assert torch.equal(o[~unused_q], clean_o[~unused_q])
    assert torch.equal(lse[:, ~unused_q], clean_lse[:, ~unused_q])
    assert o[unused_q].isnan().all(), "they stay as they were"


@BY_FAMILY
def test_a_sequence_has_the_same_bits_alone_and_among_others(cfg: ForwardKernelConfig) -> None:
    q, k, v = packed(cfg, LENGTHS_Q, LENGTHS_K)
    o, lse = assert_right(cfg, (q, k, v), VARLEN, packing_of(LENGTHS_Q, LENGTHS_K))
    begin_q = begin_k = 0
    for n_q, n_k in zip(LENGTHS_Q, LENGTHS_K, strict=True):
        rows, keys = slice(begin_q, begin_q + n_q), slice(begin_k, begin_k + n_k)
        begin_q, begin_k = begin_q + n_q, begin_k + n_k
        alone = call(cfg, (q[rows], k[keys], v[keys]), VARLEN, packing_of([n_q], [n_k]))
        assert torch.equal(alone[0], o[rows]) and torch.equal(alone[1], lse[:, rows])
        dense = Packing(seqused_q=torch.tensor([n_q]).int(), seqused_k=torch.tensor([n_k]).int())
        if n_q:
            padded = [
                torch.nn.functional.pad(t, (0, 0, 0, 0, 0, 11)) for t in (q[rows], k[keys], v[keys])
            ]
            o_dense, lse_dense = call(cfg, tuple(t[None] for t in padded), VARLEN, dense)
            assert torch.equal(o_dense[0, :n_q], o[rows])
            assert torch.equal(lse_dense[0, :, :n_q], lse[:, rows])


@BY_FAMILY
def test_packed_queries_and_dense_keys(cfg: ForwardKernelConfig) -> None:
    """Either side is packed while the other is dense, also with fewer keys used than there are."""
    q = packed(cfg, [40, 0, 7], [1])[0]
    _, k, v = tensors_of(cfg, 1, 90, batch=3)
    used = torch.tensor([90, 3, 49]).int()
    assert_right(cfg, (q, k, v), VARLEN, Packing(cu_seqlens_q=offsets([40, 0, 7]), seqused_k=used))
    assert_right(cfg, (q, k, v), VARLEN, Packing(cu_seqlens_q=offsets([40, 0, 7])))
    q = tensors_of(cfg, 75, 1, batch=3)[0]
    _, k, v = packed(cfg, [1], [40, 0, 77])
    lengths = Packing(cu_seqlens_k=offsets([40, 0, 77]), seqused_q=used.clamp(max=75))
    assert_right(cfg, (q, k, v), VARLEN, lengths)


@BY_FAMILY
def test_sequences_of_one_row_in_dense_tensors(cfg: ForwardKernelConfig) -> None:
    """A dense tensor of one row has an arbitrary row stride, which must not be used."""
    used = torch.tensor([1, 0, 1]).int()
    q, k, v = tensors_of(cfg, 1, 60, batch=3)
    assert_right(cfg, (q, k, v), VARLEN, Packing(seqused_q=used))
    q, k, v = tensors_of(cfg, 60, 1, batch=3)
    assert_right(cfg, (q, k, v), VARLEN, Packing(seqused_k=used))
    wide = [torch.zeros(3, 1, 6, cfg.d_head + 16, dtype=q.dtype) for _ in range(2)]
    for whole, t in zip(wide, (k, v), strict=True):
        whole[:, :, 2:4, 8:-8] = t
    strided = (q, *(t[:, :, 2:4, 8:-8] for t in wide))
    assert_right(cfg, strided, VARLEN, Packing(seqused_k=used))


def test_lists_are_whole() -> None:
    """Each family has every feature."""
    for cfg in FAMILIES.values():
        variants = {kernel.variant for kernel in KERNELS if kernel.config == cfg}
        assert variants == {*SINGLE, *MIXED_VARIANTS}
    assert len(set(KERNELS)) == len(KERNELS)
