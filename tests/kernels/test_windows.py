"""Each query sees the keys of its window, with bounds at every distance from the edges of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from flashsmith.configs import CAUSAL, ForwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import load_kernels
from support.seen import band, telling, wrong_rows
from support.semantics import BAND, CONFIGS, FAMILIES, call, packing_of

EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
SIDES = {"behind": Variant(window=True), "ahead": CAUSAL, "both": BAND}
VARLEN = {
    side: Variant(causal=of.causal, window=of.window, varlen=True) for side, of in SIDES.items()
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    variants = (*SIDES.values(), *VARLEN.values())
    kernels = [KernelId(cfg, variant) for cfg in CONFIGS.values() for variant in variants]
    load_kernels(kernels, Target.emulator())


def windows(cfg: ForwardKernelConfig, side: str) -> Iterator[tuple[int, int]]:
    """Yields bounds of a side, or of both: no key beside the diagonal, some keys, and about a
    block."""
    far = (0, 5, cfg.B_c - 1, cfg.B_c + 1)
    if side == "behind":
        yield from ((left, -1) for left in far)
    elif side == "ahead":
        yield from ((-1, right) for right in far)
    else:
        yield from ((0, 0), (5, 0), (0, 5), (cfg.B_c - 1, 1), (cfg.B_c + 17, cfg.B_c))


def steps(cfg: ForwardKernelConfig) -> range:
    """Returns the numbers of keys to add, which move every bound by up to a block of keys."""
    return range(0, cfg.B_c + 1, 1 if cfg in FAMILIES.values() else 5)


@pytest.mark.parametrize("side", SIDES)
@EACH
def test_bounds_at_every_distance(cfg: ForwardKernelConfig, side: str) -> None:
    n_q = cfg.B_r + 3
    for (left, right), more in product(windows(cfg, side), steps(cfg)):
        n_k = n_q - 2 + more
        o, lse = call(
            cfg, telling(cfg, (1, n_q, 1), (1, n_k, 1)), Semantics(window_size=(left, right))
        )
        assert not wrong_rows(o[0, :, 0], lse[0, 0], band(n_q, n_k, left, right)), (
            left,
            right,
            n_k,
        )


@pytest.mark.parametrize("side", SIDES)
@EACH
def test_bounds_of_the_top_left_at_every_distance(cfg: ForwardKernelConfig, side: str) -> None:
    """Only the window moves these bounds."""
    n_q, n_k = cfg.B_r + 3, cfg.B_r + cfg.B_c
    qkv = telling(cfg, (1, n_q, 1), (1, n_k, 1))
    for more in steps(cfg):
        left = -1 if side == "ahead" else more
        right = -1 if side == "behind" else (more * 5) % (cfg.B_c + 1)
        o, lse = call(cfg, qkv, Semantics(window_size=(left, right), top_left=True))
        visible = band(n_q, n_k, left, right, top_left=True)
        assert not wrong_rows(o[0, :, 0], lse[0, 0], visible), (left, right)


@pytest.mark.parametrize("top_left", [False, True], ids=["from the ends", "top left"])
@pytest.mark.parametrize("side", SIDES)
@EACH
def test_bounds_of_packed_sequences_at_every_distance(
    cfg: ForwardKernelConfig, side: str, top_left: bool
) -> None:
    """Each sequence begins at another row and key; some have one row, and some have none."""
    lengths_k = [(cfg.B_r + more) % (2 * cfg.B_c) for more in steps(cfg)]
    lengths_q = [(0, 1, 17, cfg.B_r, cfg.B_r + 1)[i % 5] for i in range(len(lengths_k))]
    q, k, v = telling(cfg, (sum(lengths_q), 1), (sum(lengths_k), 1))
    for left, right in windows(cfg, side):
        meaning = Semantics(window_size=(left, right), top_left=top_left)
        o, lse = call(cfg, (q, k, v), meaning, packing_of(lengths_q, lengths_k))
        row = key = 0
        for n_q, n_k in zip(lengths_q, lengths_k, strict=True):
            visible = band(n_q, n_k, left, right, top_left)
            rows = slice(row, row + n_q)
            assert not wrong_rows(o[rows, 0], lse[0, rows], visible, key), (left, right, n_q, n_k)
            row, key = row + n_q, key + n_k
