"""The families of decode, and which configuration serves a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from flashsmith.configs.base import Capability, DecodeKernelConfig
from flashsmith.configs.family import too_old
from flashsmith.configs.kernel_id import require_buildable, sort_key
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.decode_space import ROWS as SM80_ROWS
from flashsmith.configs.sm80.decode_space import rule as sm80_rule
from flashsmith.configs.sm90.decode import Sm90DecodeKernelConfig
from flashsmith.configs.sm90.decode_space import FEWEST_ROWS as SM90_FEWEST_ROWS
from flashsmith.configs.sm90.decode_space import ROWS as SM90_ROWS
from flashsmith.configs.sm90.decode_space import rule as sm90_rule
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import DType
from flashsmith.gpus import find_architecture


@dataclass(frozen=True)
class DecodeFamily:
    """One family.

    Args:
        config: The class of its configurations.
        rule: (dtype, d_head, fp8_cache, rows, token_scales) -> what serves so many rows of Q of a
            head of the cache, packed from queries and heads. Raises ValueError that names what the
            family does not take.
        rows: Numbers of rows that stand for all others: one for each answer of the rule.
        fewest_rows: For fewer a plainer family's kernels are as fast.
        by_boxes: Whether it is for caches alone that lie in boxes: see ``choose_decode``.
    """

    config: type[DecodeKernelConfig]
    rule: Callable[[DType, int, bool, int, bool], DecodeKernelConfig]
    rows: tuple[int, ...]
    fewest_rows: int = 1
    by_boxes: bool = False

    def is_for(self, rows: int, in_boxes: bool) -> bool:
        return rows >= self.fewest_rows and (in_boxes or not self.by_boxes)

    def fitting(
        self,
        architecture: str | None,
        dtype: DType,
        d_head: int,
        fp8_cache: bool,
        rows: int,
        token_scales: bool,
    ) -> DecodeKernelConfig:
        """As ``rule``, but of fewer rows where more do not fit an architecture; None: the plainest.
        Raises ValueError: none does."""
        config = self.rule(dtype, d_head, fp8_cache, rows, token_scales)
        for fewer in reversed([n for n in self.rows if n < config.B_r]):
            if config.is_buildable(architecture):
                return config
            config = self.rule(dtype, d_head, fp8_cache, fewer, token_scales)
        require_buildable(config, architecture)
        return config


# From the plainest.
DECODE_FAMILIES = (
    DecodeFamily(FlashDecodeKernelConfig, sm80_rule, SM80_ROWS),
    DecodeFamily(Sm90DecodeKernelConfig, sm90_rule, SM90_ROWS, SM90_FEWEST_ROWS, by_boxes=True),
)
# Of caches: whether keys and values have 8 bits, and whether each row of them has a scale.
_KINDS_OF_CACHE = ((False, False), (True, False), (True, True))


def get_decode_kernel_configs() -> list[DecodeKernelConfig]:
    """What the rules of all families choose, for every dtype, d_head, kind of cache and number of
    rows, sorted."""
    chosen = {
        family.rule(dtype, d_head, fp8_cache, rows, token_scales)
        for family in DECODE_FAMILIES
        for dtype, d_head, (fp8_cache, token_scales), rows in product(
            DType, D_HEADS, _KINDS_OF_CACHE, family.rows
        )
        if not (fp8_cache and family.by_boxes)
    }
    return sorted(chosen, key=sort_key)


def choose_decode(
    dtype: DType,
    d_head: int,
    capability: Capability | None,
    fp8_cache: bool = False,
    rows: int = 1,
    token_scales: bool = False,
    in_boxes: bool = False,
) -> DecodeKernelConfig:
    """The newest family's on a GPU; None: the plainest's, on the emulator.

    d_head: One of kernels.
    fp8_cache: Of keys and values of 8 bits.
    rows: Queries times the heads that share one of the cache.
    token_scales: Of 8 bits, of which each row may have a scale of its own.
    in_boxes: Whether bulk copies bring blocks of keys: of 16 bits, of pages of a multiple of 16
        rows or of entries, by strides that copies step by; and all rows of blocks may be read,
        which a window forbids.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: The configuration does not fit the GPU.
    """
    if capability is None:
        return DECODE_FAMILIES[0].rule(dtype, d_head, fp8_cache, rows, token_scales)
    for family in reversed(DECODE_FAMILIES):
        if family.config.runs_on(capability) and family.is_for(rows, in_boxes and not fp8_cache):
            found = find_architecture(capability)
            architecture = found.name if found else None
            return family.fitting(architecture, dtype, d_head, fp8_cache, rows, token_scales)
    raise too_old("the GPU", capability)
