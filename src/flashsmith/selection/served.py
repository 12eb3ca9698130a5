"""Every kernel that ``attention`` may take somewhere, for building them ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product

from flashsmith.configs import (
    FORWARD_VARIANTS,
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    ForwardVariant,
)
from flashsmith.configs.families import (
    Capability,
    Family,
    families_for,
    rule_config,
    serves,
)
from flashsmith.configs.sm90.forward import SUPPORTED_D_HEADS
from flashsmith.errors import TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.selection.choose import entries_for, find_tables
from flashsmith.selection.tables import (
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
    capability: Capability | None = None,
    dtypes: Iterable[DType] = tuple(DType),
    d_heads: Iterable[int] = SUPPORTED_D_HEADS,
    variants: Iterable[ForwardVariant] = FORWARD_VARIANTS,
) -> list[ForwardKernelInstance]:
    """What ``attention`` takes for all shapes that it serves on a GPU, sorted.

    The tables' choices for each bucket of lengths, and the rule's.

    Args:
        gpu: The GPU's name, or an architecture; None: CPU tensors, on the emulator.
        capability: The GPU's; None: going by its name.

    Raises:
        ValueError: No GPU of this name is known.
    """
    families = families_for(gpu, capability)
    found = set()
    for dtype, d_head, variant in product(tuple(dtypes), tuple(d_heads), tuple(variants)):
        configs = set(_of_rule(families, dtype, d_head))
        if gpu is not None:
            configs |= set(_of_tables(gpu, families, dtype, d_head, variant))
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


def _of_rule(
    families: Sequence[Family], dtype: DType, d_head: int
) -> Iterator[ForwardKernelConfig]:
    for seq_len, plain in product(_LENGTHS, (True, False)):
        with suppress(ValueError):  # attention refuses it, too
            yield rule_config(families, dtype, d_head, seq_len, plain=plain)


def _of_tables(
    gpu: str, families: Sequence[Family], dtype: DType, d_head: int, variant: ForwardVariant
) -> Iterator[ForwardKernelConfig]:
    plain = all(family.plain_only for family in families)  # no other problem comes
    sources, _ = find_tables(gpu)
    for bucket in LENGTH_BUCKETS:
        ranked = (
            row.config
            for _, entry in entries_for(sources, (dtype, d_head, variant.name, bucket), [])
            for row in entry.ranked
        )
        for config in ranked:
            if not serves(config, families, config.B_r * config.B_c):
                continue  # no length would do
            yield config.for_dtype(dtype)
            # Whatever comes after the first that takes every shape is never taken.
            if serves(config, families, _LENGTHS[0], plain=plain):
                break
