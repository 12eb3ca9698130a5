"""examples/context_parallel.py in processes that speak by gloo."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "context_parallel.py"
Results = dict[str, list[torch.Tensor]]


def run_example(folder: Path, processes: int, *arguments: str) -> tuple[Results, list[str]]:
    """What each way to compute it gives, and the lines that are printed.

    folder: Of files by which the processes meet.
    """
    torch.multiprocessing.spawn(_run, (processes, folder, arguments), nprocs=processes)
    results, lines = torch.load(folder / "results.pt")
    return results, lines


def _run(rank: int, processes: int, folder: Path, arguments: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/processes", rank=rank, world_size=processes
    )
    example = _example()
    steps = example.run(example.parse(arguments), init_device_mesh("cpu", (processes,)))
    if rank == 0:
        results = {way: step.results for way, step in steps.items()}
        torch.save((results, list(example.lines(steps))), folder / "results.pt")
    dist.destroy_process_group()


def _example() -> Any:
    specification = importlib.util.spec_from_file_location("context_parallel", EXAMPLE)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look
    specification.loader.exec_module(module)
    return module
