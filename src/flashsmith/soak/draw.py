"""Which cases a kernel is soaked in: those at the seams of its tiles, and random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from flashsmith.configs import ForwardKernelConfig
from flashsmith.soak.case import SoakCase
from flashsmith.soak.check import takes
from flashsmith.soak.layout import LAYOUTS
from flashsmith.soak.values import PATTERNS, Values

_ROWS_OF_A_WARPGROUP = 64
_STEPS = (0.99, 1.01)  # just under and just over the bound of the lazy rescale
_REFUSED = 3  # of a kernel that takes few cases, so many that it has to refuse


@dataclass(frozen=True)
class Extent:
    """How large cases may be.

    Attributes:
        multiprocessors: Of the device: what many tiles are.
        samples, heads, heads_kv: Of a case with many tiles.
        max_scores: batch * heads * seq_len_q * seq_len_k of a random case.
        max_length: Of a random case.
    """

    multiprocessors: int
    samples: int
    heads: int
    heads_kv: int
    max_scores: int
    max_length: int


EMULATOR = Extent(4, 2, 4, 2, max_scores=60_000, max_length=300)


def gpu_extent(multiprocessors: int) -> Extent:
    """Eighteen heads over three, as no power of two divides them evenly over anything."""
    return Extent(multiprocessors, 4, 18, 3, max_scores=30_000_000, max_length=4096)


def seam_cases(config: ForwardKernelConfig, causal: bool, extent: Extent) -> list[SoakCase]:
    """What stresses the seams between the tiles of a configuration, the most telling first."""
    drawn = [*_many_tiles(config, causal, extent), *_edges(config, causal), *_patterns(config)]
    if causal:
        drawn += _first_rows(config)
    cases = [
        replace(
            case,
            causal=causal,
            layout=LAYOUTS[i % len(LAYOUTS)] if case.layout == "contiguous" else case.layout,
            seed=i,
        )
        for i, case in enumerate(drawn)
        if not (causal and case.values.reach_hidden_rows)
    ]
    taken = [case for case in cases if takes(config, case)]
    refused = [case for case in cases if not takes(config, case)]
    return [*taken, *refused[:_REFUSED]]


def _case(config: ForwardKernelConfig, seq_len_q: int, seq_len_k: int, **more: object) -> SoakCase:
    sizes = {"batch": 1, "heads": 1, "heads_kv": 1, **more}
    return SoakCase(config.dtype, config.d_head, seq_len_q=seq_len_q, seq_len_k=seq_len_k, **sizes)  # type: ignore[arg-type]


def _many_tiles(config: ForwardKernelConfig, causal: bool, extent: Extent) -> Iterator[SoakCase]:
    """Far more tiles than multiprocessors, of one block of keys each, and of a few."""
    several = {"batch": extent.samples, "heads": extent.heads, "heads_kv": extent.heads_kv}
    tiles = 9 * extent.multiprocessors if extent.multiprocessors > 8 else 16
    blocks = math.ceil(tiles / (extent.samples * extent.heads))
    B_r, B_c = config.B_r, config.B_c
    ragged = blocks * B_r - B_r * 3 // 8
    for seq_len_k in (B_c, max(1, B_c // 2), 1, 2 * B_c + B_c // 3):
        yield _case(config, ragged, seq_len_k, **several)
    square = max(4 * B_c, 4 * B_r) - 12 if extent.multiprocessors > 8 else B_r + 4
    yield _case(config, square, square, **several)
    yield _case(config, ragged, B_c, **several, values=Values("huge"))
    # What the sm80 family takes of this kind.
    whole = math.lcm(B_r, B_c)
    alike = several | {"heads_kv": extent.heads}
    yield _case(config, whole, whole, **alike)
    yield _case(config, 2 * whole, 2 * whole, **alike, values=Values("huge"))


def _edges(config: ForwardKernelConfig, causal: bool) -> Iterator[SoakCase]:
    """Lengths 0, 1, and one more and less than blocks; k longer and shorter than q."""
    B_r, B_c = config.B_r, config.B_c
    pairs = (
        (1, 1), (1, B_c), (1, B_c + 1), (1, 4 * B_c + 1), (B_r, 1), (B_r - 1, B_c - 1),
        (B_r, B_c), (B_r + 1, B_c + 1), (B_r + 1, 2 * B_c - 1), (B_r - 1, 2 * B_c + 1),
        (2 * B_r, 3 * B_c), (3 * B_r, B_r // 2 + 1), (2 * B_r + 1, B_c), (0, B_c), (0, 0), (B_r, 0),
    )  # fmt: skip
    for i, (seq_len_q, seq_len_k) in enumerate(pairs):
        values = Values(("normal", "spike", "match")[i % 3], B_c)
        heads, heads_kv = ((1, 1), (4, 2), (3, 1))[i % 3]
        yield _case(
            config, seq_len_q, seq_len_k, heads=heads, heads_kv=heads_kv, values=values,
            batch=1 + i % 2,
        )  # fmt: skip
    for n_blocks in (1, 3):
        length = n_blocks * math.lcm(B_r, B_c)
        yield _case(config, length, length, heads=3, heads_kv=3)


def _first_rows(config: ForwardKernelConfig) -> Iterator[SoakCase]:
    """The first row of a warpgroup sees whole blocks of keys exactly, or a few keys more or less.

    The rows from 64 w on see seq_len_k - seq_len_q + 64 w + 1 keys; here that is n * B_c - 1 to
    n * B_c + 2. Later warpgroups have k longer than q first, then shorter.
    """
    B_c = config.B_c
    for warpgroup in range(config.B_r // _ROWS_OF_A_WARPGROUP + 1):
        row = _ROWS_OF_A_WARPGROUP * warpgroup
        for keys_beyond in (-1, 0, 1, 2):
            n_blocks = 1 + (warpgroup + keys_beyond) % 2
            seen = n_blocks * B_c + keys_beyond
            yield _case(config, row + 2, seen + 1, heads=2, heads_kv=1)
            if keys_beyond == 0:
                yield _case(config, row + 40, seen + 39 + (B_c if warpgroup == 0 else 0))


def _patterns(config: ForwardKernelConfig) -> Iterator[SoakCase]:
    """Every pattern of values, where q and k have a few blocks each."""
    whole = math.lcm(config.B_r, config.B_c)
    lengths = [(config.B_r + 5, 3 * config.B_c + 7), (2 * whole, 2 * whole)]
    for values in all_values(config):
        for seq_len_q, seq_len_k in lengths:
            case = _case(config, seq_len_q, seq_len_k, heads=2, heads_kv=2, values=values)
            if takes(config, case):
                yield case
                break
    yield _case(config, *lengths[0], heads=2, heads_kv=2, softmax_scale=0.01)
    yield _case(config, *lengths[1], heads=2, heads_kv=2, softmax_scale=1.0)


def all_values(config: ForwardKernelConfig) -> list[Values]:
    """Every pattern, those with blocks at the configuration's, and steps about its lazy bound.

    A polynomial in place of an exponential makes a number of NaN: such kernels get no scores of it.
    """
    bound = getattr(config, "lazy_rescale_log2", 0) or 8
    moving = [
        Values(name, config.B_c, round(bound * step, 4))
        for name in ("rise", "fall")
        for step in _STEPS
    ]
    still = [Values(name, config.B_c) for name in PATTERNS if name not in ("rise", "fall")]
    drawn = [*moving, *still]
    return [v for v in drawn if not (v.make_scores_nan and config.has_polynomials)]


def random_case(rng: Random, config: ForwardKernelConfig, extent: Extent) -> SoakCase:
    """Any case that the configuration takes, with lengths that favour the edges of its blocks."""
    causal = rng.random() < 0.5
    values = rng.choice(
        [Values()] * 4 + [v for v in all_values(config) if not (causal and v.reach_hidden_rows)]
    )
    while True:
        heads, heads_kv = rng.choice(((1, 1), (2, 2), (2, 1), (4, 2), (6, 3), (5, 1), (8, 2)))
        case = SoakCase(
            dtype=config.dtype,
            d_head=config.d_head,
            batch=rng.choice((1, 1, 2, 3)),
            heads=heads,
            heads_kv=heads_kv,
            seq_len_q=_random_length(rng, config.B_r, extent.max_length),
            seq_len_k=_random_length(rng, config.B_c, extent.max_length),
            causal=causal,
            softmax_scale=rng.choice((None, None, None, 0.01, 1.0, 0.3)),
            layout=rng.choice(LAYOUTS),
            values=values,
            seed=rng.randrange(1 << 31),
        )
        case = _fitted(rng, config, case, extent)
        if takes(config, case) and 0 < case.n_scores <= extent.max_scores:
            return case


def _random_length(rng: Random, block: int, longest: int) -> int:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((1, 2, 3, 16, 17))
    if kind < 0.6:
        near = rng.randint(1, max(1, longest // block)) * block
        return max(1, near + rng.choice((-2, -1, 0, 1, 2)))
    return rng.randint(1, longest)


def _fitted(rng: Random, config: ForwardKernelConfig, case: SoakCase, extent: Extent) -> SoakCase:
    """The case with equal lengths in whole blocks, if the configuration takes no others."""
    if not takes(config, case):
        whole = math.lcm(config.B_r, config.B_c)
        length = whole * rng.randint(1, max(1, extent.max_length // whole))
        case = replace(case, seq_len_q=length, seq_len_k=length, heads_kv=case.heads)
    while case.n_scores > extent.max_scores and (case.batch, case.heads) != (1, 1):
        heads = case.heads_kv if case.batch == 1 else case.heads
        heads = 1 if case.batch == 1 and case.heads == case.heads_kv else heads
        case = replace(case, batch=1, heads=heads, heads_kv=min(case.heads_kv, heads))
    return case
