"""Draws the semantics and lengths of a case: at the edges of tiles, and random ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from flashsmith.configs import VARIANTS, KernelConfig, Variant
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.meaning import DENSE, Lengths, Meaning, Varlen
from flashsmith.problem import Problem

# Together with full and causal, these have any two features both, either alone, and neither; only a
# bias with varlen is missing, because no kernel has it.
MIXED_VARIANTS = tuple(
    map(
        Variant.from_name,
        (
            "causal+window+softcap+alibi+sinks+varlen+padded+dropout",
            "window+softcap+bias+sinks",
            "causal+alibi+bias+padded+dropout",
            "sinks+varlen+padded",
            "softcap+alibi+varlen",
            "window+dropout",
        ),
    )
)

_FAR = 1_000_000  # wider than any sequence
_CAPS = (0.5, 5.0, 30.0, 50.0)
_DROPOUTS = (0.1, 0.5, 0.9)
_BIASES = ("j", "ij", "hj", "bj", "hij", "bij", "bhij")


def with_meaning(rng: Random, case: SoakCase, variant: Variant, config: KernelConfig) -> SoakCase:
    """Returns a plain case with semantics, row lengths and varlen sequences of a variant."""
    case = replace(case, meaning=_meaning(rng, variant, config))
    if variant.padded:
        case = replace(case, problem=_made_narrow(rng, case.problem, config.row_multiple))
    return _made_varlen(rng, case) if variant.varlen else case


def _meaning(rng: Random, variant: Variant, config: KernelConfig) -> Meaning:
    """Draws the semantics of a variant; bounds of windows favour the edges of blocks."""
    if variant in VARIANTS:
        return Meaning(causal=variant.causal)
    causal = variant.causal and rng.random() < 0.7
    right = _bound(rng, config) if variant.causal and not causal else -1
    if causal and rng.random() < 0.1:
        right = rng.choice((0, 7))  # overruled by causal
    return Meaning(
        causal=causal,
        window_size=(_bound(rng, config) if variant.window else -1, right),
        softcap=rng.choice(_CAPS) if variant.softcap else 0.0,
        alibi=rng.choice(("h", "bh")) if variant.alibi else "",
        sinks=variant.sinks,
        bias=rng.choice(_BIASES) if variant.bias else "",
        top_left=rng.random() < 0.25 and config.operation != "decode",
        dropout=rng.choice(_DROPOUTS) if variant.dropout else 0.0,
        functions=variant.score != 0,
    )


def _made_narrow(rng: Random, problem: Problem, step: int) -> Problem:
    """Returns the problem with rows shorter than the kernel's: in q and k, v and o, or all."""
    whole = problem.d_head
    short = rng.randrange(step, whole, step)
    d_head, d_v = rng.choice(
        ((short, whole), (whole, short), (short, short), (short, whole - step))
    )
    return replace(problem, d_head=d_head, d_v=d_v)


def _made_varlen(rng: Random, case: SoakCase) -> SoakCase:
    """Makes q, k or both varlen: at least three sequences, none longer than the problem's."""
    problem = replace(case.problem, batch=max(3, case.problem.batch))
    varlen = DENSE
    while not varlen:
        q, k = (
            _lengths_and_used(rng, problem.batch, longest)
            for longest in (problem.seq_len_q, problem.seq_len_k)
        )
        varlen = Varlen(q[0], k[0], q[1], k[1])
    return replace(case, problem=problem, varlen=varlen)


def _bound(rng: Random, config: KernelConfig) -> int:
    B_r, B_c = config.B_r, config.B_c
    return rng.choice((0, 1, B_c - 1, B_c, B_c + 1, 2 * B_c, B_r, rng.randint(0, 2 * B_r), _FAR))


def _lengths_and_used(
    rng: Random, batch: int, longest: int
) -> tuple[Lengths | None, Lengths | None]:
    maximum = (longest,) * batch
    lengths = _lengths(rng, maximum) if rng.random() < 0.7 else None
    used = _lengths(rng, lengths or maximum) if rng.random() < 0.4 else None
    return lengths, used


def _lengths(rng: Random, maximum: Lengths) -> Lengths:
    """Draws lengths up to ``maximum``; one of them has its maximum."""
    whole = rng.randrange(len(maximum))
    return tuple(
        n if i == whole else rng.choice((0, min(1, n), n, rng.randint(0, n), rng.randint(0, n)))
        for i, n in enumerate(maximum)
    )
