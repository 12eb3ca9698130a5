"""Adds kernels to a portfolio for the grids between those that were measured.

A table's grids have 16 and 32 heads and lengths that are powers of two. At other sizes a kernel
that none of them needs may be clearly the fastest: 900 queries of 24 heads are 120 tiles of 192
rows, one for each SM, where 256 rows leave a quarter of the SMs idle and take longer. The times are
predicted (``carried_over_ms``), so only a difference beyond the error of the prediction counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from flashsmith.configs import DType, KernelConfig
from flashsmith.configs.workload import TuningKey, Workload
from flashsmith.problem import LENGTH_BUCKETS
from flashsmith.selection.carried_over import CLEARLY, carried_over_ms
from flashsmith.selection.entries import Entry

MAX_ADDED = 2
_WORTH_A_KERNEL = 0.001  # of the mean time over all grids

_HEADS = (5, 8, 12, 20, 24, 40, 56, 80, 120, 200, 320)  # of all batch entries
_SHARES_OF_A_BUCKET = (0.55, 0.7, 0.85, 1.0)  # the lengths between two buckets
_QUERIES_OF_KEYS = (1.0, 0.25)
_BEYOND_BUCKETS = 2.0  # lengths above the last bucket, as a multiple of it


class Grids:
    """The predicted losses of kernels, as tiles of FP16, at the grids that entries serve."""

    def __init__(self, entries: Mapping[TuningKey, Entry[Any, Any]], num_sms: int) -> None:
        self._losses: list[Mapping[KernelConfig, float]] = []
        self._weights: list[float] = []  # each entry counts once, however many grids it serves
        for key, entry in entries.items():
            found = list(_predicted_losses(entry, key, num_sms))
            self._losses += found
            self._weights += [1 / len(found) for _ in found]

    def mean_loss(self, tiles: Iterable[KernelConfig]) -> float:
        """Returns the mean of the best kernel's losses; infinite if a grid has none of them."""
        return self._mean(self._best(tiles))

    def extended(self, chosen: Sequence[KernelConfig]) -> list[KernelConfig]:
        """Returns the kernels with those that are worth being built for other grids."""
        found = list(chosen)
        for _ in range(MAX_ADDED):
            others = dict.fromkeys(k for at in self._losses for k in at if k not in found)
            if not others:
                break
            best = self._best(found)
            with_each = {k: self._mean(map(min, best, self._best([k]))) for k in others}
            added = min(others, key=with_each.__getitem__)
            if self._mean(best) - with_each[added] < _WORTH_A_KERNEL:
                break
            found.append(added)
        return found

    def _best(self, tiles: Iterable[KernelConfig]) -> list[float]:
        """Returns the least loss of these kernels at each grid; infinite if it has none of them."""
        kernels = list(tiles)
        of_grids = ([at.get(each, math.inf) for each in kernels] for at in self._losses)
        return [min(losses, default=math.inf) for losses in of_grids]

    def _mean(self, losses: Iterable[float]) -> float:
        weighted = sum(w * loss for w, loss in zip(self._weights, losses, strict=True))
        return weighted / max(sum(self._weights), 1.0)


def workloads_between(workload: Workload, key: TuningKey, num_sms: int) -> Iterator[Workload]:
    """Yields other workloads that an entry with this key serves."""
    top = key.bucket.seq_len_k  # type: ignore[union-attr]  # the bucket of a forward
    factor = _BEYOND_BUCKETS if top == LENGTH_BUCKETS[-1] else 1.0
    for share, ratio, heads in product(_SHARES_OF_A_BUCKET, _QUERIES_OF_KEYS, _HEADS):
        n_keys = round(top * share * factor)
        problem = replace(
            workload.problem,
            batch=1,
            heads=heads,
            heads_kv=heads,
            seq_len_q=round(n_keys * ratio),
            seq_len_k=n_keys,
        )
        found = replace(workload, problem=problem)
        if found.tuning_key(num_sms) == key:
            yield found


def _predicted_losses(
    entry: Entry[Any, Any], key: TuningKey, num_sms: int
) -> Iterator[Mapping[KernelConfig, float]]:
    """Yields, for each workload between the measured ones, by how much a row's kernel is slower
    than the fastest beyond the error of the prediction."""
    if type(entry.workload) is not Workload:
        return
    rows = [(row, row.config.for_dtype(DType.FP16)) for row in entry.ranked]
    for workload in workloads_between(entry.workload, key, num_sms):
        times: dict[KernelConfig, float] = {}
        for row, tiles in rows:
            ms = carried_over_ms(row, entry.workload, workload, num_sms)
            if ms is not None:
                times[tiles] = min(ms, times.get(tiles, math.inf))
        if times:
            best = min(times.values()) / CLEARLY
            yield {tiles: max(ms / best - 1, 0.0) for tiles, ms in times.items()}
