"""Checks and measures gradients on the GPU, beside the peers: the whole operator, every launch.

    python benchmarks/backward.py --out benchmarks/results/h200/2026-01-01

One row a shape and candidate: milliseconds in turn with a flushed L2 and back to back, TFLOP/s
(five products of the scores that the mask leaves), the ratio of the best peer's time to ours,
and the most memory that a call has beside its arguments.
Ours are what is chosen by rule, what is chosen where results have to be the same at every run, and
the two schemes of the sm80 family, whose peer is FlashAttention-2. Gradients are checked against
the first peer's before they are timed. FlashAttention-3 is upstream's C++ build where it is
installed or named by FLASHSMITH_FA3_LIBRARY; cuDNN and FlashAttention-2 are torch's, through
autograd.
Writes backward.csv and backward_environment.json.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rows_file import write_stamp

import flashsmith
from flashsmith.configs import (
    CAUSAL,
    FULL,
    BackwardKernelConfig,
    DType,
    ForwardKernelConfig,
    KernelId,
    Workload,
)
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm80.sums_backward_space import rule as sums_rule
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.timer import time_back_to_back, time_interleaved
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of

COLUMNS = (
    *("d_head", "mask", "batch", "heads", "heads_kv", "seq_len", "candidate"),
    *("in_turn_ms", "in_turn_tflops", "in_turn_of_best_peer"),
    *("back_to_back_ms", "back_to_back_tflops", "back_to_back_of_best_peer"),
    *("peak_mib", "error"),
)
OURS, SAME = "flashsmith", "flashsmith deterministic"
PLAINEST, SUMS = "flashsmith sm80", "flashsmith sm80 sums"
PEER_OF = {PLAINEST: "fa2", SUMS: "fa2", SAME: "fa3_deterministic"}  # of the others the best one
_TOKENS, _HIDDEN = 16384, 2048  # of the grid's shapes: batch x length, heads x d_head
_PAUSE = 0.01  # seconds: candidates draw unlike power, and none is to pay for the one before
_HEAD_START = 1e-3  # seconds: autograd costs the host more than the flush takes
_TOLERANCE = 0.02  # of the largest element: all candidates round alike

Gradients = tuple[torch.Tensor, ...]
Run = Callable[[], Gradients]


def tensors_of(problem: Problem) -> tuple[torch.Tensor, ...]:
    """q, k, v and the gradient of o."""
    shapes = (problem.q_shape, problem.k_shape, problem.k_shape, problem.q_shape)
    return tuple(torch.randn(shape, device="cuda").bfloat16() for shape in shapes)


def forward_config(problem: Problem) -> ForwardKernelConfig:
    """One that every GPU runs: how o came about is not measured."""
    return SM80_FORWARD.rule(Workload.square(problem.dtype, problem.d_head, problem.seq_len_k))


def backward_configs(workload: Workload, wanted: set[str]) -> dict[str, BackwardKernelConfig]:
    """What is chosen, and what else there is. What is the same at every run has a peer of its own,
    whether it is what is chosen or not. wanted: Candidates; none: all of them."""
    problem, capability = workload.problem, torch.cuda.get_device_capability()
    asked = BackwardWorkload(problem, workload.variant)
    configs = {
        OURS: BACKWARD.choose_by_rule(asked, capability),
        SAME: BACKWARD.choose_by_rule(replace(asked, deterministic=True), capability),
        PLAINEST: BACKWARD.families[0].rule(asked),
        SUMS: sums_rule(problem.dtype, problem.d_head),
    }
    unique = {config: name for name, config in reversed(configs.items())}
    return {
        name: config
        for name, config in configs.items()
        if name in (SAME, unique[config]) and (not wanted or name in wanted)
    }


def build(workloads: Sequence[Workload], wanted: set[str]) -> None:
    """All kernels at once."""
    ids = [
        KernelId(config, workload.variant)
        for workload in workloads
        for config in (
            forward_config(workload.problem),
            *backward_configs(workload, wanted).values(),
        )
    ]
    load_kernels(list(dict.fromkeys(ids)), target_of(torch.device("cuda")))


def ours(config: BackwardKernelConfig, given: Gradients, workload: Workload) -> Run:
    (q, k, v, do), causal = given, workload.variant.causal
    forward = forward_config(workload.problem)
    o, lse = flashsmith.attention(q, k, v, causal=causal, return_lse=True, config=forward)

    def run() -> Gradients:
        found: Any = flashsmith.backward(config, do, q, k, v, o, lse, causal=causal)
        return found.q, found.k, found.v

    return run


def fa3_run(given: Gradients, causal: bool, deterministic: bool) -> Run:
    q, k, v, do = given
    operators, scale = fa3.load_operators(), q.shape[-1] ** -0.5
    o, lse = operators.fwd(q, k, v, softmax_scale=scale, is_causal=causal)[:2]
    keywords = {"softmax_scale": scale, "is_causal": causal, "deterministic": deterministic}
    return lambda: operators.bwd(do, q, k, v, o, lse, **keywords)[:3]


def autograd_run(name: str, given: Gradients, causal: bool) -> Run:
    q, k, v, do = given
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    o = PEERS[name].make(leaves[0], leaves[1], leaves[2], causal)()
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


def candidates_of(workload: Workload, given: Gradients, wanted: set[str]) -> dict[str, Run]:
    """Ours, then the peers that take the problem."""
    problem, causal = workload.problem, workload.variant.causal
    configs = backward_configs(workload, wanted)
    runs = {name: ours(config, given, workload) for name, config in configs.items()}
    if not fa3.why_missing():
        runs["fa3"] = fa3_run(given, causal, deterministic=False)
        if problem.d_head < 256:
            runs["fa3_deterministic"] = fa3_run(given, causal, deterministic=True)
    if problem.heads == problem.heads_kv:
        for name in ("cudnn", "fa2"):
            if PEERS[name].is_available:
                runs[name] = autograd_run(name, given, causal)
    return {name: run for name, run in runs.items() if not wanted or name in wanted}


def is_ours(name: str) -> bool:
    return name.startswith(OURS)


def errors_of(runs: Mapping[str, Run]) -> dict[str, float]:
    """How far each of ours is off the first peer, of its largest element; the worst gradient's."""
    expected = next(run for name, run in runs.items() if not is_ours(name))()
    errors = {}
    for name, run in runs.items():
        if not is_ours(name):
            continue
        pairs = zip(run(), expected, strict=True)
        errors[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    return errors


def peak_mib(run: Run) -> float:
    """What a call has allocated at most, results included."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def rows_of(
    workload: Workload, wanted: set[str], repeats: int, milliseconds: float
) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one shape. wanted: Candidates; none: all of them."""
    problem = workload.problem
    given = tensors_of(problem)
    runs = candidates_of(workload, given, wanted)
    errors = errors_of(runs)
    if wrong := {name: e for name, e in errors.items() if not e < _TOLERANCE}:
        print(f"WRONG {workload}: {wrong}", flush=True)
    times = {
        "in_turn": time_interleaved(runs, repeats=repeats, pause=_PAUSE, head_start=_HEAD_START),
        "back_to_back": time_back_to_back(runs, milliseconds=milliseconds),
    }
    tera = 2.5 * workload.flop / 1e9  # five products in place of the forward's two
    for name in runs:
        row: dict[str, Any] = {
            "d_head": problem.d_head,
            "mask": workload.variant.name,
            "batch": problem.batch,
            "heads": problem.heads,
            "heads_kv": problem.heads_kv,
            "seq_len": problem.seq_len_q,
            "candidate": name,
            "peak_mib": f"{peak_mib(runs[name]):.0f}",
            "error": f"{errors[name]:.2g}" if is_ours(name) else "",
        }
        for regime, found in times.items():
            best = min(found[peer].ms for peer in found if not is_ours(peer))
            row[f"{regime}_ms"] = f"{found[name].ms:.4f}"
            row[f"{regime}_tflops"] = f"{tera / found[name].ms:.1f}"
            if PEER_OF.get(name) in found:
                best = found[PEER_OF[name]].ms
            row[f"{regime}_of_best_peer"] = f"{best / found[name].ms:.3f}" if is_ours(name) else ""
        yield row


def grid(d_heads: list[int], lengths: list[int]) -> Iterator[Workload]:
    for d_head in d_heads:
        for variant in (FULL, CAUSAL):
            for length in lengths:
                problem = Problem.square(
                    DType.BF16, d_head, _TOKENS // length, _HIDDEN // d_head, length
                )
                yield Workload(problem, variant)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--d-heads", default="64,128,256", help="comma-separated")
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--candidates", default="", help="comma-separated, a peer among them; all")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--milliseconds", type=float, default=200.0, help="back to back, each")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_stamp(arguments.out / "backward.csv")
    torch.manual_seed(0)
    d_heads, lengths = (
        [int(word) for word in text.split(",")] for text in (arguments.d_heads, arguments.lengths)
    )
    wanted = set(filter(None, arguments.candidates.split(",")))
    workloads = list(grid(d_heads, lengths))
    build(workloads, wanted)
    with (arguments.out / "backward.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for workload in workloads:
            for row in rows_of(workload, wanted, arguments.repeats, arguments.milliseconds):
                writer.writerow(row)
                if is_ours(row["candidate"]):
                    shown = ("candidate", "in_turn_tflops", "in_turn_of_best_peer", "error")
                    print(workload, *(row[name] for name in shown), flush=True)
            file.flush()


if __name__ == "__main__":
    main()
