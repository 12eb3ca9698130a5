"""The grid of workloads of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from flashsmith.configs import DType, Variant, Workload
from flashsmith.problem import Problem


def make_grid(
    dtypes: Iterable[DType],
    d_heads: Iterable[int],
    masks: Iterable[str],
    seq_lens: Sequence[int],
    *,
    tokens: int,
    hidden: int,
    batch: int | None = None,
    heads: int | None = None,
) -> list[Workload]:
    """Returns a workload for each combination, in which k has q's shape.

    The batch is tokens / seq_len (at least 1) and the number of heads hidden / d_head, so that all
    shapes have the same number of tokens, and all head dimensions the same model size. ``batch``
    replaces ``tokens``, and ``heads`` replaces ``hidden``.

    Raises:
        ValueError: A mask is not known, or ``hidden`` is no multiple of a head dimension.
    """
    workloads = []
    variants = [Variant.from_name(mask) for mask in masks]
    for dtype, d_head, variant, seq_len in product(dtypes, d_heads, variants, seq_lens):
        if heads is None and hidden % d_head != 0:
            raise ValueError(
                f"hidden is {hidden}, no multiple of d_head {d_head}; it is the number of heads "
                "times d_head: choose --hidden, or --heads in its place"
            )
        samples = batch or max(1, tokens // seq_len)
        problem = Problem.square(dtype, d_head, samples, heads or hidden // d_head, seq_len)
        workloads.append(Workload(problem, variant))
    return list(dict.fromkeys(workloads))
