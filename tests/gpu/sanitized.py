"""Launches the progression kernels, full and causal: what compute-sanitizer watches.

compute-sanitizer --tool racecheck python tests/gpu/sanitized.py
"""

from __future__ import annotations

import torch

import flashsmith
from flashsmith.bench import compare, reference_attention
from flashsmith.configs import get_kernel_progression_configs

SHAPE = (1, 256, 2, 128)


def main() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(SHAPE).half() for _ in range(3))
    on_gpu = [t.cuda() for t in (q, k, v)]
    launched = 0
    for causal in (False, True):
        exact = reference_attention(q, k, v, causal=causal)
        low = reference_attention(q, k, v, causal=causal, compute=torch.float16)
        for cfg in get_kernel_progression_configs():
            o = flashsmith.forward(cfg, *on_gpu, torch.empty(SHAPE).half().cuda(), causal=causal)
            result = compare(o.cpu(), exact, low)
            assert result.ok, f"{cfg} causal={causal}: {result}"
            launched += 1
    print(f"launched {launched} kernels")


if __name__ == "__main__":
    main()
