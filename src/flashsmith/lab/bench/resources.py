"""The resources that ptxas reports for the kernels that cases name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import torch

from flashsmith.configs import KernelId, is_kernel_name, parse_kernel_name_into_config
from flashsmith.jit import build_kernels
from flashsmith.lab.bench.cases import Case
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of


def kernels_of(cases: Iterable[Case]) -> list[KernelId]:
    """Returns the kernels that cases have as candidates, each once."""
    found = {
        KernelId(parse_kernel_name_into_config(name), case.workload.variant): None
        for case in cases
        for name in case.candidates
        if is_kernel_name(name)
    }
    return list(found)


def load_and_describe(cases: Iterable[Case]) -> list[dict[str, object]]:
    """Builds and loads the kernels of cases; returns ptxas's figures of each function."""
    instances, target = kernels_of(cases), target_of(torch.device("cuda"))
    modules = build_kernels(instances, target)
    load_kernels(instances, target)
    return [
        {"kernel": module.name} | {k: v for k, v in asdict(used).items() if k != "function"}
        for module in modules
        for used in module.resources
    ]
