"""The cost model for grids of few tiles, by which the heuristic prefers smaller tiles.

Tiles are distributed evenly, so the SM with the most tiles decides. It processes waves of as many
tiles as fit at a time. A wave takes longer the more rows it has, and less time the better its
warpgroups hide each other's softmax behind matrix products. docs/tuning.md has the numbers.
"""

from __future__ import annotations

from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.gpus import get_gpu_architecture
from flashsmith.problem import Problem

# The share of its tensor cores' rate that an SM reaches, by the number of computing warpgroups.
_RATES = (0.0, 0.55, 0.9, 1.0)


def grid_cost(config: ForwardKernelConfig, problem: Problem, num_sms: int) -> float:
    """Returns the model's time, in units of a row whose tensor cores are always busy."""
    tiles_of_head = -(-problem.seq_len_q // config.queries_of_tile(problem))
    tiles = problem.batch * config.heads_of_tiles(problem) * tiles_of_head
    maximum = -(-tiles // num_sms)  # tiles of the busiest SM
    resident = resident_blocks(config)
    full_waves, rest = divmod(maximum, resident)
    return full_waves * _wave(config, resident) + (_wave(config, rest) if rest else 0.0)


def resident_blocks(config: ForwardKernelConfig) -> int:
    """Returns about how many blocks fit on an SM of the family's plainest GPU."""
    gpu = get_gpu_architecture(config.minimum_gpu)
    by_shared_memory = gpu.blocks_by_shared_memory(config.shared_memory_bytes)
    return max(1, min(config.resident_blocks_by_registers, by_shared_memory))


def slowdown(config: ForwardKernelConfig, tiles: int) -> float:
    """Returns the time of a tile that shares its SM, so that it processes this number of tiles at a
    time, as a multiple of that with tensor cores always busy."""
    return tiles / _RATES[min(tiles * config.compute_warpgroups, len(_RATES) - 1)]


def _wave(config: ForwardKernelConfig, tiles: int) -> float:
    """Returns the time of an SM that processes this number of tiles at a time."""
    return slowdown(config, tiles) * config.B_r * config.cost_of_a_row
