"""The workloads of a benchmark."""

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
    """Returns every combination, with tokens / seq_len samples (at least 1) of hidden / d_head
    heads.

    So all shapes have as many tokens, and all head dimensions as large a model; ``batch`` stands in
    place of ``tokens``, ``heads`` in place of ``hidden``. k is shaped as q.

    Raises:
        ValueError: A mask is not known, ``hidden`` is no multiple of a head dimension.
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
