"""How long a grid of few tiles takes: the model by which the heuristic gives large tiles up.

Tiles are dealt out evenly, so the SM that has the most decides. It works on as many at
a time as fit on it, a wave, and on one wave after the other. A wave takes the longer the more rows
it has, and the shorter the better its warpgroups cover each other's softmax with their matrix
products. docs/tuning.md tells the numbers.
"""

from __future__ import annotations

from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.gpus import get_gpu_architecture
from flashsmith.problem import Problem

# What share of its tensor cores' rate an SM reaches, by the warpgroups that compute.
_RATES = (0.0, 0.55, 0.9, 1.0)


def grid_cost(config: ForwardKernelConfig, problem: Problem, num_sms: int) -> float:
    """The model's time, in that of a row whose tensor cores are busy throughout."""
    tiles = problem.batch * problem.heads * -(-problem.seq_len_q // config.B_r)
    maximum = -(-tiles // num_sms)  # tiles of one SM
    resident = resident_blocks(config)
    full_waves, rest = divmod(maximum, resident)
    return full_waves * _wave(config, resident) + (_wave(config, rest) if rest else 0.0)


def resident_blocks(config: ForwardKernelConfig) -> int:
    """About how many blocks an SM holds, of the plainest GPU of the family."""
    gpu = get_gpu_architecture(config.minimum_gpu)
    by_shared_memory = gpu.blocks_by_shared_memory(config.shared_memory_bytes)
    return max(1, min(config.resident_blocks_by_registers, by_shared_memory))


def _wave(config: ForwardKernelConfig, tiles: int) -> float:
    """Of an SM that works on so many tiles at a time."""
    rate = _RATES[min(tiles * config.compute_warpgroups, len(_RATES) - 1)]
    return tiles * config.B_r * config.cost_of_a_row / rate
