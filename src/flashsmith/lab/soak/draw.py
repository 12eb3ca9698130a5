"""Draws the cases that a kernel is soaked on: at tile boundaries, and random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from flashsmith.configs import KernelConfig, Variant
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.draw_meaning import with_meaning
from flashsmith.lab.soak.layout import LAYOUTS
from flashsmith.lab.soak.meaning import weighs_keys
from flashsmith.lab.soak.values import PATTERNS, Values
from flashsmith.problem import Problem

_ROWS_OF_A_WARPGROUP = 64
_STEPS = (0.99, 1.01)  # just below and just above the bound of the lazy rescale


@dataclass(frozen=True)
class Extent:
    """The sizes of cases that fit a device.

    Attributes:
        num_sms: The device's number of SMs, which decides how many tiles are many.
        samples, heads, heads_kv: The sizes of a case with many tiles.
        max_scores: The largest batch * heads * seq_len_q * seq_len_k of a random case.
        max_length: The largest sequence length of a random case.
    """

    num_sms: int
    samples: int
    heads: int
    heads_kv: int
    max_scores: int
    max_length: int


EMULATOR = Extent(4, 2, 4, 2, max_scores=60_000, max_length=300)


def gpu_extent(num_sms: int) -> Extent:
    """Returns a GPU's extent, with 18 heads over 3: no power of two splits them evenly."""
    return Extent(num_sms, 4, 18, 3, max_scores=30_000_000, max_length=4096)


def tile_boundary_cases(config: KernelConfig, variant: Variant, extent: Extent) -> list[SoakCase]:
    """Returns the cases that stress a configuration's tile boundaries, the most telling first.

    A backward gets no cases without keys, because their gradients need no kernel.
    """
    drawn = [*_many_tiles(config, extent), *_edges(config), *_patterns(config)]
    if config.operation == "backward":
        drawn = [case for case in drawn if case.problem.seq_len_k > 0]
    if variant.causal:
        drawn += _first_rows(config)
    rng = Random(f"{config.short_form()} {variant.name}")
    placed = (
        replace(case, layout=LAYOUTS[i % len(LAYOUTS)], seed=i) for i, case in enumerate(drawn)
    )
    return [
        with_meaning(rng, case, variant, config)
        for case in placed
        if not (weighs_keys(variant) and case.values.reach_hidden_rows)
    ]


def _case(
    config: KernelConfig,
    seq_len_q: int,
    seq_len_k: int,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (1, 1),
    **more: Any,
) -> SoakCase:
    """Returns a case of a configuration's dtype and d_head; ``heads`` are those of q and of k."""
    lengths = (seq_len_q, seq_len_k)
    return SoakCase(Problem(config.dtype, config.d_head, batch, *heads, *lengths), **more)


def _many_tiles(config: KernelConfig, extent: Extent) -> Iterator[SoakCase]:
    """Yields cases with far more tiles than SMs, of one block of keys each, and of a few."""
    several: dict[str, Any] = {
        "batch": extent.samples,
        "heads": (extent.heads, extent.heads_kv),
    }
    tiles = 9 * extent.num_sms if extent.num_sms > 8 else 16
    blocks = math.ceil(tiles / (extent.samples * extent.heads))
    B_r, B_c = config.B_r, config.B_c
    varlen = blocks * B_r - B_r * 3 // 8
    for seq_len_k in (B_c, max(1, B_c // 2), 1, 2 * B_c + B_c // 3):
        yield _case(config, varlen, seq_len_k, **several)
    square = max(4 * B_c, 4 * B_r) - 12 if extent.num_sms > 8 else B_r + 4
    yield _case(config, square, square, **several)
    yield _case(config, varlen, B_c, **several, values=Values("huge"))
    # Whole blocks, with k in the shape of q.
    whole = math.lcm(B_r, B_c)
    alike = several | {"heads": (extent.heads, extent.heads)}
    yield _case(config, whole, whole, **alike)
    yield _case(config, 2 * whole, 2 * whole, **alike, values=Values("huge"))


def _edges(config: KernelConfig) -> Iterator[SoakCase]:
    """Yields lengths 0 and 1, block sizes, and one more and less; k longer and shorter than q."""
    B_r, B_c = config.B_r, config.B_c
    pairs = (
        (1, 1), (1, B_c), (1, B_c + 1), (1, 4 * B_c + 1), (B_r, 1), (B_r - 1, B_c - 1),
        (B_r, B_c), (B_r + 1, B_c + 1), (B_r + 1, 2 * B_c - 1), (B_r - 1, 2 * B_c + 1),
        (2 * B_r, 3 * B_c), (3 * B_r, B_r // 2 + 1), (2 * B_r + 1, B_c), (0, B_c), (0, 0), (B_r, 0),
    )  # fmt: skip
    for i, (seq_len_q, seq_len_k) in enumerate(pairs):
        values = Values(("normal", "spike", "match")[i % 3], B_c)
        heads = ((1, 1), (4, 2), (3, 1))[i % 3]
        yield _case(config, seq_len_q, seq_len_k, batch=1 + i % 2, heads=heads, values=values)
    for n_blocks in (1, 3):
        length = n_blocks * math.lcm(B_r, B_c)
        yield _case(config, length, length, heads=(3, 3))


def _first_rows(config: KernelConfig) -> Iterator[SoakCase]:
    """Yields cases in which a warpgroup's first row sees whole blocks of keys, or nearly so.

    The rows from 64 w on see seq_len_k - seq_len_q + 64 w + 1 keys; here that is n * B_c - 1 to
    n * B_c + 2. For later warpgroups k is longer than q first, then shorter.
    """
    B_c = config.B_c
    for warpgroup in range(config.B_r // _ROWS_OF_A_WARPGROUP + 1):
        row = _ROWS_OF_A_WARPGROUP * warpgroup
        for keys_beyond in (-1, 0, 1, 2):
            n_blocks = 1 + (warpgroup + keys_beyond) % 2
            seen = n_blocks * B_c + keys_beyond
            yield _case(config, row + 2, seen + 1, heads=(2, 1))
            if keys_beyond == 0:
                yield _case(config, row + 40, seen + 39 + (B_c if warpgroup == 0 else 0))


def _patterns(config: KernelConfig) -> Iterator[SoakCase]:
    """Yields every pattern of values, where q and k have a few blocks each."""
    lengths = (config.B_r + 5, 3 * config.B_c + 7)
    for values in all_values(config):
        yield _case(config, *lengths, heads=(2, 2), values=values)
    yield _case(config, *lengths, heads=(2, 2), softmax_scale=0.01)
    whole = 2 * math.lcm(config.B_r, config.B_c)
    yield _case(config, whole, whole, heads=(2, 2), softmax_scale=1.0)


def all_values(config: KernelConfig) -> list[Values]:
    """Returns every pattern, with the configuration's block size, and steps near its lazy bound.

    A polynomial in place of an exponential turns NaN into a number, so kernels that use one get no
    NaN scores. A backward gets only finite values: others reach all gradients through matrix
    products, and differently in references than in kernels.
    """
    bound = getattr(config, "lazy_rescale_log2", 0) or 8
    moving = [
        Values(name, config.B_c, round(bound * step, 4))
        for name in ("rise", "fall")
        for step in _STEPS
    ]
    still = [Values(name, config.B_c) for name in PATTERNS if name not in ("rise", "fall")]
    drawn = [*moving, *still]
    if config.operation == "backward":
        return [v for v in drawn if v.are_finite]
    return [v for v in drawn if not (v.make_scores_nan and config.has_polynomials)]


def random_case(rng: Random, config: KernelConfig, variant: Variant, extent: Extent) -> SoakCase:
    """Returns a random case that the kernel takes; its lengths favour the edges of blocks."""
    values = rng.choice(
        [Values()] * 4
        + [v for v in all_values(config) if not (weighs_keys(variant) and v.reach_hidden_rows)]
    )
    while True:
        heads, heads_kv = rng.choice(((1, 1), (2, 2), (2, 1), (4, 2), (6, 3), (5, 1), (8, 2)))
        problem = Problem(
            dtype=config.dtype,
            d_head=config.d_head,
            batch=rng.choice((1, 1, 2, 3)),
            heads=heads,
            heads_kv=heads_kv,
            seq_len_q=_random_length(rng, config.B_r, extent.max_length),
            seq_len_k=_random_length(rng, config.B_c, extent.max_length),
        )
        case = SoakCase(
            _fitted(problem, extent),
            softmax_scale=rng.choice((None, None, None, 0.01, 1.0, 0.3)),
            layout=rng.choice(LAYOUTS),
            values=values,
            seed=rng.randrange(1 << 31),
        )
        case = with_meaning(rng, case, variant, config)
        if case.problem.n_scores <= extent.max_scores:
            return case


def _random_length(rng: Random, block: int, longest: int) -> int:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((1, 2, 3, 16, 17))
    if kind < 0.6:
        near = rng.randint(1, max(1, longest // block)) * block
        return max(1, near + rng.choice((-2, -1, 0, 1, 2)))
    return rng.randint(1, longest)


def _fitted(problem: Problem, extent: Extent) -> Problem:
    """Returns the problem with fewer samples and heads if it has too many scores."""
    while problem.n_scores > extent.max_scores and (problem.batch, problem.heads) != (1, 1):
        heads = problem.heads_kv if problem.batch == 1 else problem.heads
        heads = 1 if problem.batch == 1 and problem.heads == problem.heads_kv else heads
        heads_kv = min(problem.heads_kv, heads)
        problem = replace(problem, batch=1, heads=heads, heads_kv=heads_kv)
    return problem
