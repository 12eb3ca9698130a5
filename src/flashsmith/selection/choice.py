"""A choice of a configuration: its source, and what was passed over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from flashsmith.configs import DecodeKernelConfig, Variant
from flashsmith.configs.family import C, W
from flashsmith.configs.registry import family_of
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table


@dataclass(frozen=True)
class Source(Generic[W, C]):
    """A tuned table that may be used on a GPU."""

    title: str  # "your table" or "shipped table"
    path: Path
    table: Table[W, C]


@dataclass(frozen=True)
class Choice(Generic[W, C]):
    """A configuration and its source: a table's entry, or the heuristic."""

    config: C
    passed_over: tuple[str, ...]  # what came first, and why it did not serve
    source: Source[W, C] | None = None  # None: the heuristic
    entry: Entry[W, C] | None = None
    measured: Measured[C] | None = None  # the entry's row; its dtype is the entry's
    is_predicted: bool = False  # another row of the entry was faster where it was measured

    def kernel_variant(self, variant: Variant) -> Variant:
        """Returns the variant of the kernel that serves a call's variant."""
        return variant

    @property
    def reason(self) -> str:
        """One line about the source of the configuration."""
        if self.source is None or self.entry is None:
            return f"the heuristic: {family_of(self.config).heuristic_in_words}"
        key = self.source.table.key_of(self.entry.workload)
        return f"{self.source.title} {self.source.path}, {key.words}"


@dataclass(frozen=True)
class FewQueriesChoice:
    """A decode configuration for a call of few queries over many keys.

    Attributes:
        share: Decode's time as a share of the forward's, by the cost model; 0: not compared.
    """

    config: DecodeKernelConfig
    forward: Choice[Any, Any]  # what would serve otherwise
    share: float

    def kernel_variant(self, variant: Variant) -> Variant:
        """Returns the variant of the kernel that serves a call's variant: decode's kernels have no
        varlen variant."""
        return replace(variant, varlen=False)

    @property
    def passed_over(self) -> tuple[str, ...]:
        share = f"; decode takes about {self.share:.0%} of its time" if self.share else ""
        return (*self.forward.passed_over, f"{self.forward.config}: the forward{share}")

    @property
    def reason(self) -> str:
        return "few queries: their keys are split among all SMs"
