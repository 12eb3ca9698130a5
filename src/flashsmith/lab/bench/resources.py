"""The resources that ptxas reports for the kernels that cases name."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flashsmith.configs import KernelId, is_kernel_name, parse_kernel_name_into_config
from flashsmith.jit import build_library
from flashsmith.lab.bench.cases import Case
from flashsmith.runtime import load_library
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


def build_kernels(cases: Iterable[Case]) -> list[dict[str, object]]:
    """Builds and loads the kernels of cases as one library; returns ptxas's figures of each."""
    library = build_library(kernels_of(cases), target_of(torch.device("cuda")))
    load_library(library)
    return [
        {"kernel": kernel["name"]} | {k: v for k, v in figures.items() if k != "function"}
        for kernel in library.kernels.values()
        for figures in kernel["resources"]
    ]
