"""Launches kernels, full and causal, under compute-sanitizer.

These are the progression of the sm80 family, and on compute capability 9.0 also the sm90 family's
best kernel and one whose warpgroups take turns (ping-pong).

PYTHONPATH=tests compute-sanitizer --tool racecheck python -m support.sanitized
"""

from __future__ import annotations

import torch

import flashsmith
from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.reference import compare, reference_attention

SEQ_LEN, HEADS = 256, 2


def configs() -> list[ForwardKernelConfig]:
    if torch.cuda.get_device_capability() != (9, 0):
        return list(get_kernel_progression_configs())
    taking_turns = SM90_FORWARD.heuristic(Workload.square(DType.FP16, 64, SEQ_LEN))
    last = get_sm90_kernel_progression_configs()[-1]
    return [*get_kernel_progression_configs(), last, taking_turns]


def main() -> None:
    torch.manual_seed(0)
    launched = 0
    for cfg in configs():
        shape, dtype = (1, SEQ_LEN, HEADS, cfg.d_head), cfg.dtype.to_torch_dtype()
        q, k, v = (torch.randn(shape).to(dtype) for _ in range(3))
        on_gpu = [t.cuda() for t in (q, k, v)]
        for causal in (False, True):
            exact = reference_attention(q, k, v, causal=causal)
            low = reference_attention(q, k, v, causal=causal, compute=dtype)
            o = flashsmith.forward(cfg, *on_gpu, torch.empty(shape).to(dtype).cuda(), causal=causal)
            result = compare(o.cpu(), exact, low)
            assert result.ok, f"{cfg} causal={causal}: {result}"
            launched += 1
    print(f"launched {launched} kernels")


if __name__ == "__main__":
    main()
