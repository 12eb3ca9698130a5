"""Runs a function in processes that communicate by gloo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def run_in_processes(
    function: Callable[..., None], processes: int, folder: Path, *arguments: Any
) -> None:
    """Calls `function(rank, folder, *arguments)` in each process of a group.

    folder: A folder for the file by which the processes meet, and for what they leave.
    """
    torch.multiprocessing.spawn(_run, (function, processes, folder, arguments), nprocs=processes)


def _run(
    rank: int,
    function: Callable[..., None],
    processes: int,
    folder: Path,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/processes", rank=rank, world_size=processes
    )
    function(rank, folder, *arguments)
    dist.barrier()  # a process that leaves early may end the other's connections under its threads
    dist.destroy_process_group()
    # A thread of gloo drops the last collective's tensors only after the call has returned. If
    # Python is ending by then, asking for its lock ends the thread, and in a destructor this aborts
    # the process. So the process ends without Python's own end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
