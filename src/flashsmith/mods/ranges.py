"""Finds min and max of any range of a tensor without reading the whole range."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Ends = tuple[torch.Tensor, torch.Tensor]


class RangeTable:
    """The min and max of all runs of 2^n elements, for a tensor of one dimension.

    Two runs, which may overlap, cover any range. With more dimensions only the min and max of the
    whole tensor are known.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point():
            lowest = tensor.float().nan_to_num(nan=float("-inf"))
            highest = tensor.float().nan_to_num(nan=float("inf"))
        else:
            lowest = highest = tensor.long()
        self._lowest, self._highest = [lowest], [highest]

    def bounds(self, ranges: Sequence[Ends]) -> Ends:
        """Returns min and max between pairs of indices, both ends included; one pair for each
        dimension."""
        lowest, highest = self._lowest[0], self._highest[0]
        if not ranges:
            return lowest, highest
        if len(ranges) > 1:
            return lowest.amin(), highest.amax()
        ((first, last),) = ranges
        _, exponent = torch.frexp((last - first + 1).double())
        level = exponent.long() - 1  # the largest power of two up to the range's length
        first, last = first.expand_as(level), last.expand_as(level)
        self._build(int(level.max()) + 1)
        second = last - (1 << level) + 1
        low = self._pick(self._lowest, level, first).minimum(
            self._pick(self._lowest, level, second)
        )
        high = self._pick(self._highest, level, first).maximum(
            self._pick(self._highest, level, second)
        )
        return low, high

    def _build(self, levels: int) -> None:
        while len(self._lowest) < levels:
            half = 1 << (len(self._lowest) - 1)
            for table, of in ((self._lowest, torch.minimum), (self._highest, torch.maximum)):
                table.append(of(table[-1][:-half], table[-1][half:]))

    @staticmethod
    def _pick(tables: list[torch.Tensor], level: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        picked = tables[0][0].expand(level.shape).clone()
        for n, table in enumerate(tables):
            here = level == n
            picked[here] = table[place[here]]
        return picked
