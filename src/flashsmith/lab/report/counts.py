"""What a kernel executes, counted on the emulator."""

from __future__ import annotations

from functools import partial

import torch

from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.lab.report.description import Counts, samples, work_of
from flashsmith.lab.soak import Meaning, SoakCase, make_launch
from flashsmith.lab.soak.launches import prepare_for
from flashsmith.problem import Problem
from flashsmith.runtime import Emulation, emulation, find_kernel
from flashsmith.runtime.workspace import workspace_for

_ROWS_OF_DECODE, _KEYS = 1, 256


def count(instance: KernelId) -> Counts:
    """Of a forward, runs the kernel twice and splits what it counts into tiles and visits; of
    another operation, runs all of its kernels once.

    Raises:
        EmulatorFault: The kernel broke a rule.
        FlashsmithError: It is in no library and cannot be built.
    """
    config = instance.config
    if config.operation != "forward":
        rows = _ROWS_OF_DECODE if config.operation == "decode" else _KEYS
        problem = Problem(config.dtype, config.d_head, 1, 1, 1, rows, _KEYS)
        return Counts(_words(rows, _KEYS), _count_call(instance, problem), {}, {})
    short, long = samples(config)
    work = partial(work_of, config, instance.variant)
    of_launch = partial(count_launch, instance)
    return Counts.split(
        _words(*short), (work(*short), of_launch(*short)), (work(*long), of_launch(*long))
    )


def _words(rows: int, keys: int) -> str:
    return f"one head, {rows} rows of Q, {keys} of K and V"


def _count_call(instance: KernelId, problem: Problem) -> dict[str, int]:
    case = SoakCase(problem, Meaning(causal=instance.variant.causal))
    launch = make_launch(instance, prepare_for(instance.config, case, "cpu"))
    launch.call(launch.workspace())
    return Emulation(launch.kernel).counters()


def count_launch(instance: KernelId, seq_len_q: int, seq_len_k: int) -> dict[str, int]:
    """Returns the emulator's counters for one launch of a forward on random tensors of one head."""
    cfg = instance.config
    generator = torch.Generator().manual_seed(0)

    def random(name: str, seq_len: int) -> torch.Tensor:
        drawn = torch.randn((1, seq_len, 1, cfg.d_head), generator=generator)
        eight_bits = name in cfg.fp8_tensors
        return drawn.to(torch.float8_e4m3fn if eight_bits else cfg.dtype.to_torch_dtype())

    q, k, v = random("q", seq_len_q), random("k", seq_len_k), random("v", seq_len_k)
    kernel = find_kernel(instance, Target.emulator())
    o = torch.empty(q.shape, dtype=cfg.dtype.to_torch_dtype())
    workspace = workspace_for(kernel.plan(q, k, v, o), q.device)
    with emulation(kernel) as emulator:
        kernel(q, k, v, o, cfg.d_head**-0.5, workspace=workspace)
        return emulator.counters()
