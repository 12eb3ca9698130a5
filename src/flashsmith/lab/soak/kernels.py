"""Selects the kernels that are worth soaking: those of tables and of the heuristic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from flashsmith.configs import (
    VARIANTS,
    ForwardKernelConfig,
    KernelConfig,
    KernelId,
    Variant,
)
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.lab.soak.functions import number_of_functions
from flashsmith.runtime.device import target_of
from flashsmith.selection.tables import (
    Table,
    shipped_table_path,
    shipped_table_paths,
    user_table_path,
)

C = TypeVar("C", bound=KernelConfig)


def table_configs(gpu: str | None = None) -> list[ForwardKernelConfig]:
    """Returns the configurations of a GPU's tables, each once, the best of an entry first.

    Whether a table was measured on the present kernels does not matter here.

    Args:
        gpu: The GPU's name; None: all shipped tables.

    Raises:
        TuningError: A table is damaged.
        ValueError: There is no table for this GPU.
    """
    paths = shipped_table_paths()
    if gpu is not None:
        paths = [path for path in (user_table_path(gpu), shipped_table_path(gpu)) if path.exists()]
    if not paths:
        raise ValueError(f"there is no table for {gpu}; `flashsmith tune` makes one")
    entries = [entry for path in paths for entry in Table.read(path).entries.values()]
    return list(dict.fromkeys(row.config for entry in entries for row in entry.ranked))


def soaked_kernels(configs: Sequence[KernelConfig]) -> list[KernelId]:
    """Returns kernels of each configuration: full, causal, and one more variant, which changes from
    one configuration to the next."""
    drawn = (
        KernelId(cfg.adapted_to(variant), variant)
        for i, cfg in enumerate(configs)
        for variant in (*VARIANTS, _mixed_variant(cfg, i))
    )
    return list(dict.fromkeys(drawn))


def _mixed_variant(config: KernelConfig, first: int) -> Variant:
    """Returns the first variant from ``first`` on, cyclically, that the configuration serves.

    For decode, once each variant has come, every second cycle adds a score_mod and a mask_mod.
    """
    in_turn = (*MIXED_VARIANTS, *MIXED_VARIANTS)[first % len(MIXED_VARIANTS) :]
    served = (config.served_of(variant) for variant in in_turn)
    found = next(v for v in served if config.adapted_to(v).serves_variant(v))
    is_with_functions = config.operation == "decode" and first // len(MIXED_VARIANTS) % 2 == 1
    return replace(found, score=number_of_functions()) if is_with_functions else found


def that_run_on(configs: Iterable[C], device: str) -> list[C]:
    """Returns the configurations that can be built for ``device``, each once; the emulator runs
    all."""
    (arch, *_) = target_of(torch.device(device)).archs or (None,)
    unique = dict.fromkeys(configs)
    return [cfg for cfg in unique if cfg.is_buildable(arch)]
