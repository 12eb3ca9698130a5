"""Runs kernels on inputs, checks them against the reference, and on a GPU times them with FA2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flashsmith.configs import (
    VARIANTS,
    DType,
    ForwardKernelConfig,
    KernelId,
    Variant,
    Workload,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import padded_d_head
from flashsmith.errors import EmulatorFault
from flashsmith.lab.bench.operations.forward_kernels import Checker
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.timer import Run, time_interleaved
from flashsmith.lab.commands.device import choose_device, where_it_is
from flashsmith.lab.commands.inputs import Inputs, load_inputs, random_inputs, save_output
from flashsmith.lab.commands.kernel_words import refuse_other_variants, select_instances
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Request
from flashsmith.lab.commands.run_backward import check_backward, chosen_backward, fa2_backward
from flashsmith.lab.commands.run_call import Asked, CallChecker, kernel_of
from flashsmith.lab.commands.run_result import Result
from flashsmith.ops.checks import FP8
from flashsmith.ops.first_use import refuse_of_fp8
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.call_args import NO_SCALES, Scales
from flashsmith.runtime.device import target_of
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import gpu_of, select_fp8

_FA2, _FA2_BACKWARD = "fa2", "fa2 backward"
_FORWARDS = {"forward": 1.0, "backward": 2.5}  # FLOPs relative to the forward's
_DEFAULT_D_HEAD = 128


@dataclass(frozen=True)
class Files:
    """Tensors come from the file ``input``, or from ``seed``; o is written to ``output``."""

    input: Path | None = None
    output: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class RunReport:
    """The results of all kernels on one workload."""

    device: str
    workload: Workload
    results: list[Result]
    fa2_ms: float | None  # None: not timed
    not_finite: dict[str, dict[str, int]]  # numbers of "nan" and "inf" elements of q, k, v and o

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)


def run(request: Request, files: Files, asked: Asked, reporter: Reporter) -> RunReport:
    """Runs the kernels; writes the output file if every result is right.

    If the request names neither kernels nor files, the backward that the heuristic chooses runs
    as well.
    """
    device, why = choose_device(request.device)
    inputs, scales, instances = _prepare(request, files, asked, on_gpu=device == "cuda")
    reporter.note(f"on {where_it_is(device)}: {why}")
    workload = Workload(inputs.problem, asked.variant)
    names_nothing = not request.words and files.input is None and files.output is None
    names_nothing = names_nothing and asked.is_plain
    backward = [chosen_backward(workload, device)] if names_nothing else []
    with reporter.progress() as progress:
        load_kernels([*instances, *backward], target_of(torch.device(device)), progress)
    scales = Scales(*(None if scale is None else scale.to(device) for scale in scales))
    checker = CallChecker(inputs.to(device), scales, asked)
    results, runs = check_kernels(instances, checker)
    not_finite = checker.not_finite()
    for instance in backward:
        result, its_run = check_backward(instance, workload, device, files.seed)
        results.append(result)
        runs |= its_run
    if files.output is not None and all(result.ok for result in results):
        save_output(files.output, checker.o, checker.lse)  # _prepare allows one kernel only
    fa2_ms = time_kernels(runs, results, checker) if device == "cuda" else None
    return RunReport(device, workload, results, fa2_ms, not_finite)


def _prepare(
    request: Request, files: Files, asked: Asked, on_gpu: bool
) -> tuple[Inputs, Scales, list[KernelId]]:
    """Returns the tensors, their scales and the kernels, all of one dtype and d_head."""
    words = request.words
    if not words and files.input is None and files.output is None:
        capability = torch.cuda.get_device_capability() if on_gpu else None
        words = (FORWARD.families_on(capability)[0].sets.keys.progression,)
    ((dtype, d_head),) = request.kinds
    inputs, scales = None, NO_SCALES
    if files.input is not None:
        inputs, scales = load_inputs(files.input)
        if inputs.q.dtype == FP8:
            refuse_of_fp8(asked.variant)
        dtype, d_head = inputs.problem.dtype, padded_d_head(inputs.problem)
    instances = select_instances(words, [asked.variant], dtype, d_head)
    if files.output is not None and len(instances) > 1:
        raise ValueError(
            f"--out takes the result of one kernel, and {len(instances)} are chosen; name one "
            "with --kernels"
        )
    refuse_other_variants(instances, asked.variant)
    if inputs is None:
        dtype, d_head = _agreed(instances, dtype, d_head)
        inputs = random_inputs(_problem(request, dtype, d_head, on_gpu), files.seed)
    configs: list[ForwardKernelConfig] = [instance.config for instance in instances]
    configs = configs or [_chosen(inputs.to("cuda" if on_gpu else "cpu"), asked.variant)]
    return inputs, scales, [kernel_of(config, asked.variant, inputs) for config in configs]


def _chosen(inputs: Inputs, variant: Variant) -> ForwardKernelConfig:
    """Returns the forward kernel that ``attention`` chooses for tensors."""
    if inputs.q.dtype == FP8:
        return select_fp8(inputs.q, inputs.v, None, variant)
    workload = Workload(inputs.problem, variant)
    return choose_for(FORWARD, workload, *gpu_of(inputs.q.device)).config


def _problem(request: Request, dtype: DType, d_head: int, on_gpu: bool) -> Problem:
    """Returns the size of random tensors, small on the emulator, which takes minutes where a GPU
    takes milliseconds."""
    batch, heads, seq_len = (4, 16, 4096) if on_gpu else (1, 2, 256)
    (seq_len,) = request.seq_lens or (seq_len,)
    return Problem.square(dtype, d_head, request.batch or batch, request.heads or heads, seq_len)


def _agreed(
    instances: list[KernelId], dtype: DType | None, d_head: int | None
) -> tuple[DType, int]:
    """Returns the kernels' dtype and d_head; if there are no kernels, the requested or default
    ones."""
    found = sorted({(instance.config.dtype, instance.config.d_head) for instance in instances})
    if len(found) > 1:
        kinds = "; ".join(f"{dtype}, d_head {d_head}" for dtype, d_head in found)
        raise ValueError(f"the kernels are for {kinds}: choose by --dtype or --d-head")
    return found[0] if found else (dtype or DType.FP16, d_head or _DEFAULT_D_HEAD)


def check_kernels(
    instances: Sequence[KernelId], checker: Checker
) -> tuple[list[Result], dict[str, Run]]:
    """Runs every kernel once, and compares it with the reference.

    Returns:
        The results in the order of ``instances``, and functions that run the correct kernels.
    """
    results: list[Result] = []
    runs: dict[str, Run] = {}
    for instance in instances:
        result = Result(instance.name)
        results.append(result)
        try:
            run = checker.prepare(instance.config)
            comparison = checker.compare(run())
        except EmulatorFault as fault:
            result.worst = str(fault)
            continue
        result.counts = checker.counters()
        result.error, result.tolerance = comparison.error, comparison.tolerance
        result.ok, result.worst = comparison.ok, comparison.worst
        if result.ok:
            runs[result.kernel] = run
    return results, runs


def time_kernels(runs: dict[str, Run], results: Sequence[Result], checker: Checker) -> float | None:
    """Times the kernels that have a run in turn with FA2, and adds the times to their results.

    Returns:
        FA2's milliseconds; None if FA2 computes something else: the shapes of k or v differ from
        q's (torch aligns the causal mask otherwise), tensors are FP8, or the call has more than a
        causal mask.
    """
    workload = checker.workload
    problem, variant = workload.problem, workload.variant
    peers: dict[str, Run] = {}
    is_plain = variant in VARIANTS and checker.qkv[0].dtype == checker.o.dtype
    if problem.is_square and problem.d_v == problem.d_head and is_plain:
        peers[_FA2] = PEERS[_FA2].make(*checker.qkv, workload.variant.causal)
        if any(result.operation == "backward" for result in results):
            peers[_FA2_BACKWARD] = fa2_backward(checker)
    times = time_interleaved({**peers, **runs})
    for result in results:
        if result.kernel in runs:
            result.ms = times[result.kernel].ms
            if not variant.window:  # the scores inside a window are not counted
                result.tflops = _FORWARDS[result.operation] * workload.tflops(result.ms)
            peer = _FA2 if result.operation == "forward" else _FA2_BACKWARD
            result.fa2_percent = 100 * times[peer].ms / result.ms if peers else None
    return times[_FA2].ms if peers else None
