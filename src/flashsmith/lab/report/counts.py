"""Counts on the emulator what a kernel executes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import flashsmith
from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.lab.report.description import Counts, samples, work_of
from flashsmith.lab.soak import Meaning, SoakCase, make_launch, prepare_gradients
from flashsmith.problem import Problem
from flashsmith.runtime import Emulation, find_decode, find_kernel
from flashsmith.runtime.workspace import workspace_for


def count(instance: KernelId) -> Counts:
    """Runs the kernels of a call on two sizes, and splits the counts into tiles and visits.

    Raises:
        EmulatorFault: The kernel broke a rule.
        FlashsmithError: The kernel is in no library and cannot be built.
    """
    short, long = samples(instance.config)
    work = partial(work_of, instance.config, instance.variant)
    a, b = ((work(*sizes), count_launch(instance, *sizes)) for sizes in (short, long))
    return Counts.split("one head, {} rows of Q, {} of K and V".format(*short), a, b)


def count_launch(instance: KernelId, seq_len_q: int, seq_len_k: int) -> dict[str, int]:
    """Returns the emulator's counters for one call on random tensors of one head."""
    config: Any = instance.config
    causal = instance.variant.causal
    if config.operation == "backward":
        problem = Problem(config.dtype, config.d_head, 1, 1, 1, seq_len_q, seq_len_k)
        case = SoakCase(problem, Meaning(causal=causal))
        launch = make_launch(instance, prepare_gradients(case, "cpu"))
        launch.call(launch.workspace())
        return Emulation(launch.kernel).counters()
    generator = torch.Generator().manual_seed(0)

    def random(name: str, seq_len: int) -> torch.Tensor:
        drawn = torch.randn((1, seq_len, 1, config.d_head), generator=generator)
        has_8_bits = name in config.fp8_tensors
        return drawn.to(torch.float8_e4m3fn if has_8_bits else config.dtype.to_torch_dtype())

    q, k, v = random("q", seq_len_q), random("k", seq_len_k), random("v", seq_len_k)
    if config.operation == "decode":
        scale = torch.ones(k.shape[:3]) if config.per_token_scale else None
        flashsmith.decode(config, q, k, v, causal=causal, k_scale=scale, v_scale=scale, splits=1)
        return Emulation(find_decode(instance, Target.emulator())).counters()
    kernel = find_kernel(instance, Target.emulator())
    o = torch.empty(q.shape, dtype=config.dtype.to_torch_dtype())
    workspace = workspace_for(kernel.plan(q, k, v, o), q.device)
    kernel(q, k, v, o, config.d_head**-0.5, workspace=workspace)
    return Emulation(kernel).counters()
