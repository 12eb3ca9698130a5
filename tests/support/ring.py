"""Runs examples/context_parallel.py in processes that communicate by gloo."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from support.scripts import load_script

EXAMPLE = "examples/context_parallel.py"
Results = dict[str, list[torch.Tensor]]


def run_example(folder: Path, processes: int, *arguments: str) -> tuple[Results, list[str]]:
    """Returns the results of each way to compute the step, and the printed lines.

    folder: A folder for the files by which the processes meet.
    """
    torch.multiprocessing.spawn(_run, (processes, folder, arguments), nprocs=processes)
    results, lines = torch.load(folder / "results.pt")
    return results, lines


def _run(rank: int, processes: int, folder: Path, arguments: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/processes", rank=rank, world_size=processes
    )
    example = load_script(EXAMPLE)
    steps = example.run(example.parse(arguments), init_device_mesh("cpu", (processes,)))
    if rank == 0:
        results = {way: step.results for way, step in steps.items()}
        torch.save((results, list(example.lines(steps))), folder / "results.pt")
    dist.barrier()  # a process that leaves early may end the other's connections under its threads
    dist.destroy_process_group()
