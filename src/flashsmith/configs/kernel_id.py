"""A kernel: a configuration of some family (how it works) with a variant (what it computes)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from flashsmith.configs.base import CONFIG_CLASSES, ForwardKernelConfig, KernelConfig
from flashsmith.configs.variant import FULL, Variant


@total_ordering
@dataclass(frozen=True)
class KernelId:
    """A configuration (how a kernel works) and a variant (what it computes). Sorted by family
    first."""

    config: ForwardKernelConfig | Any  # of any operation; most callers have a forward one
    variant: Variant = FULL

    def __post_init__(self) -> None:
        if not isinstance(self.config, KernelConfig):
            names = " or ".join(kind.__name__ for kind in CONFIG_CLASSES)
            raise TypeError(f"config: expected {names}, got {self.config!r}")
        if not isinstance(self.variant, Variant):
            raise TypeError(f"variant: expected Variant, got {self.variant!r}")

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, KernelId):
            return NotImplemented
        return (*sort_key(self.config), self.variant) < (*sort_key(other.config), other.variant)

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The short form, then the variant's name unless it is full attention."""
        return self.config.short_form() + self._variant_suffix(" ")

    @property
    def slug(self) -> str:
        """A unique name for files and C++ identifiers, `fp16_d128_r64_c64_w4_async_..._causal`."""
        values = (getattr(self.config, name) for name in self.config.tuple_fields)
        tup = "{}_d{}_r{}_c{}_w{}".format(*values).lower()
        features = self.config.short_form(include_tup=False).replace("_tiles", "")
        return f"{tup}_{features}{self._variant_suffix('_')}".replace("+", "_")

    def kernel_name(self, with_types: bool = False) -> str:
        """Returns the kernel's name as c++filt demangles it.

        With types, values are as profilers print them, `(int)128, (bool)1`.
        """
        return self.config.kernel_name(with_types, self.variant)

    def _variant_suffix(self, separator: str) -> str:
        return "" if self.variant == FULL else separator + self.variant.name


def sort_key(config: KernelConfig) -> tuple[int, KernelConfig]:
    """Returns a key that sorts configurations of several families."""
    return CONFIG_CLASSES.index(type(config)), config


def require_buildable(config: KernelConfig, gpu: str | None = None) -> None:
    """Raises ValueError that lists the problems of `config` on `gpu`, if it has any.

    gpu: The GPU; None: the plainest one that it runs on.
    """
    gpu = gpu or config.plainest_gpu
    if problems := config.problems(gpu):
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ValueError(f"config {config} cannot be built for {gpu}:\n{listed}")
