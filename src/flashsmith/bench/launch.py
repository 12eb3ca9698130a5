"""Launches kernels for a profiler to watch.

    ncu --profile-from-start off ... python -m flashsmith.bench.launch 4096 128 --kernels NAME ...

Every candidate runs once before and is checked; one that fails or is wrong is left out, which is
said on stderr. The launches between cudaProfilerStart and cudaProfilerStop are the right ones, each
``--n_runs`` times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch

from flashsmith import runtime
from flashsmith.bench.candidates import Candidate, Checker, name_of
from flashsmith.bench.grid import Problem
from flashsmith.bench.peers import find_peers
from flashsmith.configs import DType, ForwardKernelInstance, parse_kernel_name_into_config
from flashsmith.jit import Progress
from flashsmith.runtime import find_kernel
from flashsmith.runtime.device import target_of

LEFT_OUT = "left out: "  # begins a line on stderr


def target_command(
    problem: Problem, kernels: Sequence[str], peers: Sequence[str], n_runs: int
) -> list[str]:
    """The command line of this module for these candidates."""
    return [
        *(sys.executable, "-m", "flashsmith.bench.launch", str(problem.seq_len)),
        *(str(problem.d_head), f"--dtype={problem.dtype}", f"--mask={problem.mask}"),
        *(f"--batch={problem.batch}", f"--heads={problem.heads}", f"--n_runs={n_runs}"),
        *("--peers", *peers, "--kernels", *kernels),
    ]


def load_kernels(
    instances: Sequence[ForwardKernelInstance], device: str, progress: Progress | None = None
) -> None:
    """Has the kernels loaded: from one library, which is built unless the cache has it.

    Raises:
        KernelNotFoundError: FLASHSMITH_BUILD forbids to build, and the cache lacks one.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    target = target_of(torch.device(device))
    runtime.load_kernels(instances, target, progress)
    for instance in instances:
        find_kernel(instance, target)


def launch(
    problem: Problem, candidates: Sequence[Candidate], n_runs: int, device: str = "cuda"
) -> list[str]:
    """Runs what is right, ``n_runs`` times each, for the profiler. Returns why others were not."""
    checker = Checker(problem, device)
    checked = [checker.check(candidate) for candidate in candidates]
    _mark(torch.cuda.profiler.start, device)
    for each in checked:
        for _ in range(n_runs if each.run else 0):
            each.run()  # type: ignore[misc]
    _mark(torch.cuda.profiler.stop, device)
    return [f"{name_of(each.candidate)}: {each.reason}" for each in checked if not each.run]


def _mark(signal: Callable[[], None], device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        signal()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Launch kernels for a profiler to watch.")
    parser.add_argument("seq_len", type=int)
    parser.add_argument("d_head", type=int)
    parser.add_argument("--dtype", type=DType.from_string, default=DType.FP16)
    parser.add_argument("--mask", choices=("full", "causal"), default="full")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--n_runs", type=int, default=1)
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=[], metavar="SHORT_FORM")
    args = parser.parse_args(arguments)
    problem = Problem(args.dtype, args.d_head, args.mask, args.batch, args.heads, args.seq_len)
    configs = [parse_kernel_name_into_config(name, args.d_head) for name in args.kernels]
    if configs:
        load_kernels([ForwardKernelInstance(cfg, problem.variant) for cfg in configs], "cuda")
    with torch.no_grad():
        for reason in launch(problem, [*find_peers(args.peers), *configs], args.n_runs):
            print(LEFT_OUT + reason, file=sys.stderr)


if __name__ == "__main__":
    main()
