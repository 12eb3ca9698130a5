"""Every kernel that ``attention`` may take somewhere, for building them ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from flashsmith.configs import (
    FORWARD_VARIANTS,
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    ForwardVariant,
    get_gpu_architecture,
    is_hopper_arch,
)
from flashsmith.configs.hopper_legality import SUPPORTED_D_HEADS
from flashsmith.configs.legality import SUPPORTED_VALUES
from flashsmith.errors import TuningError
from flashsmith.functional.rules import fits, rule_config
from flashsmith.functional.select import entries_for, find_tables
from flashsmith.functional.tables import (
    LENGTH_BUCKETS,
    Table,
    shipped_table_path,
    user_table_path,
)

# Without the sm90 family every length is a multiple of the first; the rule minds the second.
_LENGTHS = (64, 128)


def served_instances(
    gpu: str | None,
    *,
    hopper: bool | None = None,
    dtypes: Iterable[DType] = tuple(DType),
    d_heads: Iterable[int] = SUPPORTED_D_HEADS,
    variants: Iterable[ForwardVariant] = FORWARD_VARIANTS,
) -> list[ForwardKernelInstance]:
    """What ``attention`` takes for all shapes that it serves on a GPU, sorted.

    The tables' choices for each bucket of lengths, and the rule's.

    Args:
        gpu: The GPU's name, or an architecture; None: CPU tensors, on the emulator.
        hopper: Whether the GPU has compute capability 9.0; None: going by its name.

    Raises:
        ValueError: No GPU of this name is known.
    """
    if gpu is not None and hopper is None:
        hopper = is_hopper_arch(gpu)
    families = (False, True) if gpu is None else (bool(hopper),)
    found = set()
    for dtype, d_head, variant in product(tuple(dtypes), tuple(d_heads), tuple(variants)):
        configs = {cfg for family in families for cfg in _of_rule(dtype, d_head, family)}
        if gpu is not None:
            configs |= set(_of_tables(gpu, dtype, d_head, variant, bool(hopper)))
        found |= {ForwardKernelInstance(config, variant) for config in configs}
    return sorted(found)


def gpus_with_tables(arch: str) -> list[str]:
    """The GPUs of an architecture that a shipped table, or one of the user's, is for."""
    capability = get_gpu_architecture(arch).compute_capability
    folders = {path(arch).parent: None for path in (shipped_table_path, user_table_path)}
    names: dict[str, None] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.json"))):
        try:
            name = Table.read(file).stamp["gpu"]
            if get_gpu_architecture(name).compute_capability == capability:
                names[name] = None
        except (TuningError, KeyError, ValueError):
            continue  # ``attention`` warns of it when it serves such a GPU
    return list(names)


def _of_rule(dtype: DType, d_head: int, hopper: bool) -> set[ForwardKernelConfig]:
    if not hopper and d_head not in SUPPORTED_VALUES["d_head"]:
        return set()
    return {rule_config(dtype, d_head, seq_len, hopper=hopper) for seq_len in _LENGTHS}


def _of_tables(
    gpu: str, dtype: DType, d_head: int, variant: ForwardVariant, hopper: bool
) -> Iterator[ForwardKernelConfig]:
    sources, _ = find_tables(gpu)
    for bucket in LENGTH_BUCKETS:
        ranked = (
            row.config
            for _, entry in entries_for(sources, (dtype, d_head, variant.name, bucket), [])
            for row in entry.ranked
        )
        for config in ranked:
            if not fits(config, config.B_r * config.B_c, hopper=hopper):
                continue  # no length would do
            yield config.for_dtype(dtype)
            # Whatever comes after the first that takes every shape is never taken.
            if fits(config, _LENGTHS[0], hopper=hopper, plain=not hopper):
                break
