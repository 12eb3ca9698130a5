"""Launches kernels for a profiler to watch.

    ncu --profile-from-start off ... python -m flashsmith.lab.bench.launch 4096 128 --kernels NAME

Every candidate is first run once and checked; stderr names the ones that fail or are wrong. Between
cudaProfilerStart and cudaProfilerStop, each right candidate is launched ``--n_runs`` times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flashsmith.configs import (
    FULL,
    DType,
    Variant,
    Workload,
    parse_kernel_name_into_config,
)
from flashsmith.configs.workload import K_COLUMNS
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS
from flashsmith.lab.bench.resources import kernels_of
from flashsmith.lab.bench.runner import Runner
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of

LEFT_OUT = "left out: "  # begins a line on stderr


def target_command(
    workload: Workload, kernels: Sequence[str], peers: Sequence[str], n_runs: int
) -> list[str]:
    """Returns the command line that runs this module with these candidates."""
    row = workload.as_row()
    names = ("dtype", "mask", "batch", "heads", *K_COLUMNS)
    options = [f"--{name}={row[name]}" for name in names]
    return [
        *(sys.executable, "-m", "flashsmith.lab.bench.launch"),
        *(str(row["seq_len"]), str(row["d_head"]), *options, f"--n_runs={n_runs}"),
        *("--peers", *peers, "--kernels", *kernels),
    ]


def launch(case: Case, n_runs: int, device: str = "cuda") -> list[str]:
    """Runs each right candidate ``n_runs`` times for the profiler; returns why others did not."""
    results = Runner(device).measure(case, [])
    with watched(device):
        for each in results:
            for _ in range(n_runs if each.is_right else 0):
                each.run()
    return [f"{each.name}: {each.checked.reason}" for each in results if not each.is_right]


@contextmanager
def watched(device: str) -> Iterator[None]:
    """Lets `ncu --profile-from-start off` see the launches inside the context, and no others."""
    if device != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Launch kernels for a profiler to watch.")
    parser.add_argument("seq_len", type=int)
    parser.add_argument("d_head", type=int)
    parser.add_argument("--dtype", type=DType.from_string, default=DType.FP16)
    parser.add_argument("--mask", type=Variant.from_name, default=FULL)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--heads_kv", type=int, help="default: as q")
    parser.add_argument("--seq_len_k", type=int, help="default: as q")
    parser.add_argument("--n_runs", type=int, default=1)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=[], metavar="SHORT_FORM")
    args = parser.parse_args(arguments)
    problem = Problem(
        *(args.dtype, args.d_head, args.batch, args.heads),
        heads_kv=args.heads if args.heads_kv is None else args.heads_kv,
        seq_len_q=args.seq_len,
        seq_len_k=args.seq_len if args.seq_len_k is None else args.seq_len_k,
    )
    workload = Workload(problem, args.mask)
    configs = [parse_kernel_name_into_config(name, args.d_head) for name in args.kernels]
    case = Case(FORWARD_KERNELS, workload, (*args.peers, *map(str, configs)))
    if kernels := kernels_of([case]):
        load_kernels(kernels, target_of(torch.device("cuda")))
    with torch.no_grad():
        for reason in launch(case, args.n_runs):
            print(LEFT_OUT + reason, file=sys.stderr)


if __name__ == "__main__":
    main()
