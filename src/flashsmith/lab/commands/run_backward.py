"""Runs the backward in `flashsmith run`: the heuristic's choice, on random tensors."""

from __future__ import annotations

import math

import torch

from flashsmith.configs import KernelId, Workload
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.errors import EmulatorFault
from flashsmith.lab.bench.operations.forward_kernels import Checker
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.timer import Run
from flashsmith.lab.commands.run_result import Result
from flashsmith.lab.soak import Meaning, SoakCase, make_launch, prepare_gradients
from flashsmith.runtime import Emulation


def chosen_backward(workload: Workload, device: str) -> KernelId:
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    asked = BackwardWorkload(workload.problem, workload.variant)
    return KernelId(BACKWARD.choose_by_heuristic(asked, capability), workload.variant)


def check_backward(
    instance: KernelId, workload: Workload, device: str, seed: int
) -> tuple[Result, dict[str, Run]]:
    """Returns the result of the worst gradient, and a function that runs a correct kernel."""
    case = SoakCase(workload.problem, Meaning(causal=workload.variant.causal), seed=seed)
    launch = make_launch(instance, prepare_gradients(case, device))
    result = Result(instance.name, operation=instance.config.operation)
    launch.results.poison(math.nan)
    try:
        launch.call(launch.workspace())
    except EmulatorFault as fault:
        result.worst = str(fault)
        return result, {}
    result.counts = {} if device == "cuda" else Emulation(launch.kernel).counters()
    worst = launch.compare_worst()
    result.error, result.tolerance, result.ok = worst.error, worst.tolerance, worst.ok
    result.worst = worst.worst
    runs: dict[str, Run] = {result.kernel: lambda: launch.call(launch.workspace())}
    return result, runs if result.ok else {}


def fa2_backward(checker: Checker) -> Run:
    """Returns a function that runs the backward of torch's FlashAttention-2 on a checker's q, k, v.

    It retains the graph, so that it can be timed repeatedly.
    """
    leaves = [t.detach().requires_grad_() for t in checker.qkv]
    o = PEERS["fa2"].make(leaves[0], leaves[1], leaves[2], checker.workload.variant.causal)()
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)
