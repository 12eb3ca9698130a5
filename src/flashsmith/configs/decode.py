"""The families of decode, and which configuration serves a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from flashsmith.configs.base import Capability, DecodeKernelConfig
from flashsmith.configs.family import too_old
from flashsmith.configs.kernel_id import require_buildable, sort_key
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.decode_space import ROWS as SM80_ROWS
from flashsmith.configs.sm80.decode_space import rule as sm80_rule
from flashsmith.configs.sm80.decode_space import tuning_space as sm80_tuning_space
from flashsmith.configs.sm90.decode import Sm90DecodeKernelConfig
from flashsmith.configs.sm90.decode_space import FEWEST_ROWS as SM90_FEWEST_ROWS
from flashsmith.configs.sm90.decode_space import ROWS as SM90_ROWS
from flashsmith.configs.sm90.decode_space import rule as sm90_rule
from flashsmith.configs.sm90.decode_space import tuning_space as sm90_tuning_space
from flashsmith.configs.workload import D_HEADS, DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture, find_architecture, get_gpu_architecture


@dataclass(frozen=True)
class DecodeFamily:
    """One family.

    Args:
        config: The class of its configurations.
        rule: What serves a workload. Raises ValueError that names what the family does not take.
        tuning_space: What the tuner tries for a workload on an architecture.
        rows: Numbers of rows that stand for all others: one for each answer of the rule.
        fewest_rows: For fewer a plainer family's kernels are as fast.
        by_boxes: Whether it is for caches alone that lie in boxes.
    """

    config: type[DecodeKernelConfig]
    rule: Callable[[DecodeWorkload], DecodeKernelConfig]
    tuning_space: Callable[[DecodeWorkload, GpuArchitecture], Sequence[DecodeKernelConfig]]
    rows: tuple[int, ...]
    fewest_rows: int = 0
    by_boxes: bool = False

    def is_for(self, workload: DecodeWorkload) -> bool:
        in_boxes = workload.in_boxes and not workload.fp8_cache
        return workload.rows >= self.fewest_rows and (in_boxes or not self.by_boxes)

    def fitting(self, architecture: str | None, workload: DecodeWorkload) -> DecodeKernelConfig:
        """As ``rule``, but of smaller blocks, or fewer rows, where others do not fit an
        architecture; None: the plainest. Raises ValueError: none does."""
        fewer = reversed([n for n in self.rows if n < self.rule(workload).B_r])
        for rows, many in product((workload.rows, *fewer), (workload.many_tiles, True)):
            config = self.rule(replace(workload, rows=rows, many_tiles=many))
            if config.is_buildable(architecture):
                return config
        require_buildable(config, architecture)
        return config


# From the plainest.
DECODE_FAMILIES = (
    DecodeFamily(FlashDecodeKernelConfig, sm80_rule, sm80_tuning_space, SM80_ROWS),
    DecodeFamily(
        Sm90DecodeKernelConfig, sm90_rule, sm90_tuning_space, SM90_ROWS, SM90_FEWEST_ROWS,
        by_boxes=True,
    ),
)  # fmt: skip
# Of rows that have kernels of their own; more take those of the most.
ROWS = tuple(sorted({rows for family in DECODE_FAMILIES for rows in family.rows}))
# Of caches: whether keys and values have 8 bits, and whether each row of them has a scale.
KINDS_OF_CACHE = ((False, False), (True, False), (True, True))
# Of a multiprocessor: two for each of four blocks. Measured on an H200.
_MANY_TILES = 8


def get_decode_kernel_configs() -> list[DecodeKernelConfig]:
    """What the rules of all families choose, for every dtype, d_head, kind of cache and number of
    rows, of few work tiles and of many, sorted."""
    chosen = {
        family.rule(DecodeWorkload(dtype, d_head, rows, *kind, many_tiles))
        for family in DECODE_FAMILIES
        for dtype, d_head, kind, rows, many_tiles in product(
            DType, D_HEADS, KINDS_OF_CACHE, family.rows, (False, True)
        )
        if not (family.by_boxes and any(kind))
    }
    return sorted(chosen, key=sort_key)


def has_many_tiles(batch: int, heads_kv: int, multiprocessors: int | None) -> bool:
    """Whether there are so many work tiles that a GPU's multiprocessors have several each. None: on
    a CPU, where no time counts, never."""
    return multiprocessors is not None and batch * heads_kv >= _MANY_TILES * multiprocessors


def choose_decode(workload: DecodeWorkload, capability: Capability | None) -> DecodeKernelConfig:
    """The newest family's on a GPU; None: the plainest's, on the emulator.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: The configuration does not fit the GPU.
    """
    if capability is None:
        return DECODE_FAMILIES[0].rule(workload)
    newest = next(each for each in reversed(families_on(capability)) if each.is_for(workload))
    found = find_architecture(capability)
    return newest.fitting(found.name if found else None, workload)


def families_on(capability: Capability) -> list[DecodeFamily]:
    """Those that run there, from the plainest, which is for all workloads.

    Raises DeviceError: The GPU is too old for every family.
    """
    found = [family for family in DECODE_FAMILIES if family.config.runs_on(capability)]
    if not found:
        raise too_old("the GPU", capability)
    return found


def as_tuned(workload: DecodeWorkload, capability: Capability) -> DecodeWorkload:
    """That whose measurements serve it: of as many rows as kernels have there, of scales of tokens
    16; tiles are many of the fewest rows alone, and in boxes where a family asks."""
    families = families_on(capability)
    of_kernels = sorted({rows for family in families for rows in family.rows})
    rows = next((most for most in of_kernels if workload.rows <= most), of_kernels[-1])
    if workload.token_scales:
        rows = of_kernels[0]
    many_tiles = workload.many_tiles and rows == of_kernels[0]
    rounded = replace(workload, rows=rows, many_tiles=many_tiles, in_boxes=True)
    asked = any(family.by_boxes and family.is_for(rounded) for family in families)
    return replace(rounded, in_boxes=asked and workload.in_boxes)


def decode_candidates(workload: DecodeWorkload, arch: str) -> list[DecodeKernelConfig]:
    """What the tuner tries for a workload on an architecture; the rule's choice last.

    Raises: as ``choose_decode``.
    """
    architecture = get_gpu_architecture(arch)
    capability = architecture.compute_capability
    rule = choose_decode(workload, capability)
    found = [
        config
        for family in families_on(capability)
        if family.is_for(workload)
        for config in family.tuning_space(workload, architecture)
    ]
    return [*(config for config in found if config != rule), rule]


def why_not_served(config: DecodeKernelConfig, workload: DecodeWorkload) -> str | None:
    """Why a configuration cannot compute a workload of its dtype; None if it can."""
    for name in ("d_head", "fp8_cache", "token_scales"):
        if getattr(config, name) != getattr(workload, name):
            return f"its {name} is {getattr(config, name)}"
    family = next(family for family in DECODE_FAMILIES if type(config) is family.config)
    if not family.is_for(workload):
        return f"the {config.family} family is not for such caches or rows"
    return None
