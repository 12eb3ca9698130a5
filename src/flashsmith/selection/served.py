"""Lists every kernel that ``attention`` may take on a GPU, to build them ahead of time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from typing import Any

from flashsmith.configs import VARIANTS, DType, KernelId, Variant, Workload
from flashsmith.configs.base import Capability
from flashsmith.configs.few_queries import configs_of_few_queries
from flashsmith.configs.operation import capability_of
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import D_HEADS, TuningKey
from flashsmith.errors import TuningError
from flashsmith.gpus import count_sms
from flashsmith.problem import FILL_BUCKETS, LENGTH_BUCKETS, Problem
from flashsmith.selection.choice import Choice
from flashsmith.selection.choose import choose_for, tuned_decode_of
from flashsmith.selection.tables import Table, shipped_table_path, user_table_path


def served_instances(
    gpu: str | None,
    *,
    capability: Capability | None = None,
    dtypes: Iterable[DType] = tuple(DType),
    d_heads: Iterable[int] = D_HEADS,
    variants: Iterable[Variant] = VARIANTS,
) -> list[KernelId]:
    """Returns the kernels that ``attention`` takes for all shapes on a GPU, sorted.

    They are the choices of tables or the heuristic for each bucket, and decode's for few queries.

    Args:
        gpu: The GPU's name, or an architecture; None: CPU tensors, on the emulator.
        capability: The GPU's compute capability; None: derived from its name.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No GPU of this name is known.
    """
    FORWARD.families_for(gpu, capability)
    if gpu is not None:
        capability = capability_of(gpu, capability)
    heads = count_sms(gpu or "")
    found: set[KernelId] = set()
    decode_of = tuned_decode_of(gpu)
    for dtype, d_head, variant in product(tuple(dtypes), tuple(d_heads), tuple(variants)):
        of_few = configs_of_few_queries(dtype, d_head, variant, capability, decode_of)
        found |= {KernelId(config, variant) for config in of_few}
        for seq_len_k, fill in product(LENGTH_BUCKETS, FILL_BUCKETS):
            problem = Problem(dtype, d_head, 1, heads, heads, fill, seq_len_k)
            with suppress(ValueError):  # attention refuses it, too
                workload = Workload(problem, variant)
                choice = choose_for(FORWARD, workload, gpu, capability)
                configs = [choice.config]
                if not _is_of_its_bucket(choice, workload.tuning_key(heads)):
                    # The heuristic, which distinguishes more than buckets, may come first for part
                    # of this bucket.
                    configs += FORWARD.serving(workload, gpu, capability).heuristic_configs
                found |= {KernelId(config, variant) for config in configs}
    return sorted(found)


def _is_of_its_bucket(choice: Choice[Any, Any], key: TuningKey) -> bool:
    """Returns whether the choice was measured for exactly this bucket."""
    if choice.source is None or choice.entry is None:
        return False
    return choice.source.table.key_of(choice.entry.workload).bucket == key.bucket


def gpus_with_tables(arch: str) -> list[str]:
    """Returns the GPUs of an architecture for which there is a shipped table or one of the
    user's."""
    capability = capability_of(arch)
    folders = {path(arch).parent: None for path in (shipped_table_path, user_table_path)}
    names: dict[str, None] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.csv"))):
        try:
            name = Table.read(file).stamp["gpu"]
            if capability_of(name) == capability:
                names[name] = None
        except (TuningError, KeyError, ValueError):
            continue  # ``attention`` warns of such a table when it serves its GPU
    return list(names)
