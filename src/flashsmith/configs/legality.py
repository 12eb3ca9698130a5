"""Rules of legality that families share: values of fields, GPUs, shared memory, d_head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

from flashsmith.configs.base import Capability, KernelConfig
from flashsmith.gpus import GpuArchitecture, get_gpu_architecture

Tiles = TypeVar("Tiles")
Config = TypeVar("Config", bound=KernelConfig)

LARGEST_GPU = "sm_90a"  # the largest shared memory of a block


def unsupported_values(
    config: KernelConfig, supported_values: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Yields a problem for each field whose value is not supported."""
    for name, supported in supported_values.items():
        value = getattr(config, name)
        if value not in supported:
            yield f"{name} is {value}; supported are {', '.join(map(str, supported))}."


def too_old_a_gpu(gpu: GpuArchitecture, minimum: Capability) -> Iterator[str]:
    if gpu.compute_capability < minimum:
        yield f"{_has_capability(gpu)}{'.'.join(map(str, minimum))} or newer is needed."


def another_gpu(gpu: GpuArchitecture, only: Capability, family: str) -> Iterator[str]:
    """Yields the problem of a GPU whose architecture lacks the family's instructions."""
    if gpu.compute_capability != only:
        number = ".".join(map(str, only))
        arch = f"sm_{number.replace('.', '')}a"
        yield (
            f"{_has_capability(gpu)}the instructions of the {family} family exist on {number} "
            f"alone ({arch})."
        )


def too_little_shared_memory(
    gpu: GpuArchitecture, n_bytes: int, what: str = "The tiles"
) -> Iterator[str]:
    """Yields the problem of a block that needs more shared memory than the GPU has."""
    maximum = gpu.max_shared_memory_per_block_bytes
    if n_bytes > maximum:
        yield (
            f"{what} take {n_bytes} bytes of shared memory; a block on {gpu.name} has at most "
            f"{maximum}."
        )


def plainest_with_room(minimum_gpu: str, n_bytes: int) -> str:
    """Returns the plainest architecture that can run a block with ``n_bytes`` of shared memory:
    ``minimum_gpu``, or ``LARGEST_GPU`` if ``minimum_gpu`` has less."""
    is_too_small = any(too_little_shared_memory(get_gpu_architecture(minimum_gpu), n_bytes))
    return LARGEST_GPU if is_too_small else minimum_gpu


def tiles_of(table: Mapping[int, Tiles], d_head: int) -> Tiles:
    """Returns a heuristic's tiles for a d_head. Raises ValueError for a d_head without tiles."""
    if d_head not in table:
        supported = ", ".join(map(str, table))
        raise ValueError(f"q has d_head {d_head}; supported are {supported}")
    return table[d_head]


def with_max_stages(config: Config, names: tuple[str, str], maximum: int) -> list[Config]:
    """Returns the same tiles with every legal pair of stage numbers of which neither can grow.

    names: The two fields; each has at most ``maximum`` stages.
    """
    pairs = product(range(1, maximum + 1), repeat=2)
    by_pair = {
        pair: changed
        for pair in pairs
        if (changed := replace(config, **dict(zip(names, pair, strict=True)))).is_buildable()
    }
    return [
        changed
        for (first, second), changed in by_pair.items()
        if (first + 1, second) not in by_pair and (first, second + 1) not in by_pair
    ]


def _has_capability(gpu: GpuArchitecture) -> str:
    number = ".".join(map(str, gpu.compute_capability))
    return f"{gpu.name} has compute capability {number}; "
