"""The option ``--shard I/N``, by which several runs share the items of a list."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Shard(NamedTuple):
    """Every ``step``-th item of a list, from number ``first`` on, which counts from 1."""

    first: int = 1
    step: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Returns the shard of an option's text.

        Raises:
            argparse.ArgumentTypeError: The text is not I/N with 1 <= I <= N.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise argparse.ArgumentTypeError(f"{text} is not I/N with 1 <= I <= N, as in 2/3")
        return cls(int(match[1]), int(match[2]))

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """Returns the items of this shard."""
        return items[self.first - 1 :: self.step]
