"""Runs examples/context_parallel.py in processes that communicate by gloo."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from support.processes import run_in_processes
from support.scripts import load_script

EXAMPLE = "examples/context_parallel.py"
Results = dict[str, list[torch.Tensor]]


def run_example(folder: Path, processes: int, *arguments: str) -> tuple[Results, list[str]]:
    """Returns the results of each way to compute the step, and the printed lines.

    folder: A folder for the file by which the processes meet, and for the results.
    """
    run_in_processes(_run, processes, folder, arguments)
    results, lines = torch.load(folder / "results.pt")
    return results, lines


def _run(rank: int, folder: Path, arguments: tuple[str, ...]) -> None:
    example = load_script(EXAMPLE)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    steps = example.run(example.parse(arguments), mesh)
    if rank == 0:
        results = {way: step.results for way, step in steps.items()}
        torch.save((results, list(example.lines(steps))), folder / "results.pt")
