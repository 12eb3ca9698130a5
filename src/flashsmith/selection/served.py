"""Lists every kernel that ``attention``, its gradients, ``decode`` and FP8 calls may take on a GPU,
to build them ahead of time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from typing import Any

from flashsmith.configs import VARIANTS, DType, ForwardKernelConfig, KernelId, Variant, Workload
from flashsmith.configs.backward import problems_of_all_sizes
from flashsmith.configs.base import Capability, DecodeKernelConfig
from flashsmith.configs.decode import KINDS_OF_CACHE, rows_of_kernels
from flashsmith.configs.few_queries import configs_of_few_queries
from flashsmith.configs.operation import Serving, capability_of
from flashsmith.configs.registry import BACKWARD, DECODE, FORWARD
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.fp8_space import get_fp8_kernel_configs
from flashsmith.configs.workload import (
    D_HEADS,
    BackwardWorkload,
    DecodeWorkload,
    TuningKey,
    WorkTiles,
)
from flashsmith.errors import TuningError
from flashsmith.gpus import count_sms
from flashsmith.problem import FILL_BUCKETS, LENGTH_BUCKETS, Problem
from flashsmith.selection.carried_over import can_be_carried_over, candidates
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
                served = FORWARD.serving(workload, gpu, capability)
                configs = [choice.config, *_others_of_entry(choice, served)]
                if not _is_of_its_bucket(choice, workload.tuning_key(heads)):
                    # The heuristic, which distinguishes more than buckets, may come first for part
                    # of this bucket.
                    configs += served.heuristic_configs
                versions = (each for config in configs for each in config.versions_for(variant))
                found |= {KernelId(config, variant) for config in versions}
    return sorted(found)


def served_gradients(
    gpu: str | None,
    *,
    capability: Capability | None = None,
    dtypes: Iterable[DType] = tuple(DType),
    d_heads: Iterable[int] = D_HEADS,
    variants: Iterable[Variant] = VARIANTS,
) -> list[KernelId]:
    """Returns the kernels that the gradients of ``attention`` take for all shapes on a GPU, sorted.

    Args, raises: See ``served_instances``.
    """
    heads = count_sms(gpu or "")
    found: set[KernelId] = set()
    for dtype, d_head, variant in product(tuple(dtypes), tuple(d_heads), tuple(variants)):
        problems = problems_of_all_sizes(dtype, d_head) + [
            Problem(dtype, d_head, 1, heads, heads, fill, seq_len_k)
            for seq_len_k, fill in product(LENGTH_BUCKETS, FILL_BUCKETS)
        ]
        may_be_unlike = (False, True) if variant.varlen else (False,)
        for problem, same, unlike in product(problems, (False, True), may_be_unlike):
            with suppress(ValueError):  # the gradients are refused, too
                workload = BackwardWorkload(problem, variant, same, unlike)
                choice = choose_for(BACKWARD, workload, gpu, capability)
                found.add(KernelId(choice.config, variant))
    return sorted(found)


def served_decodes(
    gpu: str | None,
    *,
    capability: Capability | None = None,
    dtypes: Iterable[DType] = tuple(DType),
    d_heads: Iterable[int] = D_HEADS,
    variants: Iterable[Variant] = VARIANTS,
    kinds_of_cache: Iterable[tuple[bool, bool]] = KINDS_OF_CACHE,
) -> list[KernelId]:
    """Returns the kernels that ``decode`` takes for all caches on a GPU, sorted.

    Args, raises: See ``served_instances``.
    """
    workloads = [
        DecodeWorkload(dtype, d_head, rows, *kind, tiles=tiles, in_boxes=boxes)
        for dtype, d_head, kind in product(tuple(dtypes), tuple(d_heads), tuple(kinds_of_cache))
        for rows in rows_of_kernels(DECODE.families)
        for tiles, boxes in product(WorkTiles, (False, True))
    ]
    configs: set[DecodeKernelConfig] = set()
    for workload in workloads:
        with suppress(ValueError):  # decode refuses it, too
            configs.add(choose_for(DECODE, workload, gpu, capability).config)
    return sorted(
        KernelId(config, variant) for config, variant in product(configs, tuple(variants))
    )


def served_fp8(
    capability: Capability | None, *, variants: Iterable[Variant] = VARIANTS
) -> list[KernelId]:
    """Returns the kernels that ``attention`` takes for FP8 tensors on a GPU with this compute
    capability, sorted; there are some for 9.0 alone, and for the emulator (None)."""
    if capability is not None and not Sm90ForwardKernelConfig.runs_on(capability):
        return []
    found = product(get_fp8_kernel_configs(), tuple(variants))
    return sorted(KernelId(config, variant) for config, variant in found)


def _others_of_entry(
    choice: Choice[Workload, ForwardKernelConfig], served: Serving[Workload, ForwardKernelConfig]
) -> list[ForwardKernelConfig]:
    """Returns what the choice's entry has for grids that divide into tiles in another way."""
    if not choice.source or not choice.entry or not can_be_carried_over(choice.entry):
        return []
    workload = served.workload
    found = candidates(choice.entry, choice.source.table.portfolio(choice.entry))
    configs = (config.for_dtype(workload.dtype).adapted_to(workload.variant) for config, _ in found)
    return [config for config in configs if not served.why_not(config)]


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
