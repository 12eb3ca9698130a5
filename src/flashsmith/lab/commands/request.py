"""A user's request: which kernels, which workloads, which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from flashsmith import settings
from flashsmith.configs import FULL, DType, KernelId, Variant, Workload
from flashsmith.lab.commands.kernel_words import select_instances

Kind = tuple[DType | None, int | None]  # a dtype and a d_head; None: any


class Grid(NamedTuple):
    """The sizes that a command uses if the user names none."""

    seq_lens: Sequence[int]
    tokens: int
    hidden: int


ON_A_GPU = Grid((512, 1024, 2048, 4096, 8192, 16384), tokens=16384, hidden=2048)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options that several commands share; empty or None if the user leaves them out.

    Attributes:
        words: Sets and short forms of kernels, and words that a command defines itself.
        tokens: Number of tokens in all sequences of a batch; ``batch`` overrides it.
        hidden: n_heads times d_head; ``heads`` overrides it.
        device: cuda, or cpu for the emulator.
        grids: Names of lists of sizes, for commands that take these (lab/commands/grids.py).
    """

    words: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = (FULL,)
    dtypes: tuple[DType, ...] = ()
    d_heads: tuple[int, ...] = ()
    seq_lens: tuple[int, ...] = ()
    tokens: int | None = None
    hidden: int | None = None
    batch: int | None = None
    heads: int | None = None
    device: str | None = None
    grids: tuple[str, ...] = ()

    @property
    def names_sizes(self) -> bool:
        return any((self.seq_lens, self.tokens, self.hidden, self.batch, self.heads))

    @property
    def kinds(self) -> list[Kind]:
        """Every dtype with every d_head."""
        return list(product(self.dtypes or (None,), self.d_heads or (None,)))

    def takes(self, dtype: DType, d_head: int) -> bool:
        """Returns whether the request includes kernels of this dtype and d_head."""
        return dtype in (self.dtypes or (dtype,)) and d_head in (self.d_heads or (d_head,))

    def instances(
        self, default: str = settings.DEFAULT_SET, *, forward_only: bool = True
    ) -> list[KernelId]:
        """Returns the kernels, each once. Raises ValueError for a word that chooses none.

        default: The set to use if the request has no words.
        forward_only: Refuse kernels of other operations.
        """
        words = self.words or (default,)
        found = [
            instance
            for dtype, d_head in self.kinds
            for instance in select_instances(
                words, self.variants, dtype, d_head, forward_only=forward_only
            )
        ]
        return list(dict.fromkeys(found))

    def workloads(self, defaults: Grid) -> list[Workload]:
        """Returns all workloads. Raises ValueError that names the option that is wrong."""
        from flashsmith.lab.bench.grid import make_grid

        return make_grid(
            self.dtypes,
            self.d_heads,
            [variant.name for variant in self.variants],
            self.seq_lens or defaults.seq_lens,
            tokens=self.tokens or defaults.tokens,
            hidden=self.hidden or defaults.hidden,
            batch=self.batch,
            heads=self.heads,
        )
