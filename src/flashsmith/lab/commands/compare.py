"""Compares kernels and peers with plain torch on random input, for use under a profiler too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from flashsmith.configs import KernelId, Workload
from flashsmith.lab.bench.launch import watched
from flashsmith.lab.bench.operations.forward_kernels import Candidate, Checker
from flashsmith.lab.bench.peers import PEERS, Peer, first_available
from flashsmith.lab.commands.device import choose_device, where_it_is
from flashsmith.lab.commands.kernel_words import refuse_other_variants
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Request
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of


@dataclass(frozen=True)
class Comparisons:
    """The comparison to run; its request has one d_head, sequence length and variant."""

    request: Request
    n_runs: int  # of each candidate
    with_fa2: bool = False
    with_fa3: bool = False  # FlashAttention-4 if FlashAttention-3 is not available


@dataclass
class Row:
    """A candidate's largest differences from plain torch; None if it could not run."""

    kernel: str
    dtype: str
    runs: int
    result: str
    error: float | None = None  # against torch in float32
    allowed: float | None = None
    apart: float | None = None  # against torch in the candidate's own dtype

    def as_dict(self) -> dict[str, str | float | None]:
        return {
            "kernel": self.kernel,
            "dtype": self.dtype,
            "runs": self.runs,
            "error vs FP32": self.error,
            "allowed": self.allowed,
            "error vs dtype": self.apart,
            "result": self.result,
        }


def compare_kernels(asked: Comparisons, reporter: Reporter) -> list[Row]:
    """Runs all candidates; one that cannot run becomes a row with its error, and the rest run."""
    request = asked.request
    instances = chosen_kernels(request)
    device, why = choose_device(request.device)
    references = [PEERS["fa2"]] if asked.with_fa2 else []
    if asked.with_fa3:
        references.append(first_available("fa3", "fa4"))
    reporter.note(f"on {where_it_is(device)} ({why}), {asked.n_runs} runs")
    with reporter.progress() as progress:
        load_kernels(instances, target_of(torch.device(device)), progress)
    rows = []
    for workload, of_dtype in _workloads(request, instances, on_gpu=device == "cuda"):
        reporter.note(str(workload))
        checker = Checker(workload, device)
        candidates: dict[str, Candidate] = {_name_on(device, peer): peer for peer in references}
        candidates |= {instance.name: instance.config for instance in of_dtype}
        rows += [_compare(checker, name, candidates[name], asked.n_runs) for name in candidates]
    return rows


def _name_on(device: str, peer: Peer) -> str:
    """Returns the peer's name. On a CPU, torch's SDPA is not FlashAttention-2, and its name says
    so."""
    return "torch SDPA on the CPU" if (device, peer.name) == ("cpu", "fa2") else peer.name


def chosen_kernels(request: Request) -> list[KernelId]:
    """Returns the kernels to compare, all of one variant. Raises ValueError for other variants."""
    instances = request.instances()
    (variant,) = request.variants
    refuse_other_variants(instances, variant)
    return instances


def _workloads(
    request: Request, instances: Sequence[KernelId], *, on_gpu: bool
) -> Iterator[tuple[Workload, list[KernelId]]]:
    """Yields a workload for each dtype, with the kernels of that dtype."""
    batch, heads = request.batch or (4 if on_gpu else 1), request.heads or (16 if on_gpu else 1)
    ((d_head,), (seq_len,), (variant,)) = request.d_heads, request.seq_lens, request.variants
    for dtype in dict.fromkeys(instance.config.dtype for instance in instances):
        problem = Problem.square(dtype, d_head, batch, heads, seq_len)
        of_dtype = [each for each in instances if each.config.dtype == dtype]
        yield Workload(problem, variant), of_dtype


def _compare(checker: Checker, name: str, candidate: Candidate, n_runs: int) -> Row:
    row = Row(name, str(checker.workload.problem.dtype), n_runs, "ok")
    try:
        run = checker.prepare(candidate)
        with watched(checker.o.device.type):
            for _ in range(n_runs):
                o = run()
        found = checker.compare(o)
    except Exception as error:
        row.result = f"{type(error).__name__}: {error}"
        return row
    row.error, row.allowed = found.error, found.tolerance
    row.apart = (o.float() - checker.low_precision.float()).abs().max().item()
    if not found.ok:
        row.result = f"WRONG {found.worst}"
    return row
