"""Chooses decode's kernels for calls of ``attention`` with few queries over many keys.

A forward tile covers all keys of its rows, and at least 64 rows, however few there are. If the
tiles do not fill the GPU, most SMs are idle. Decode packs the heads that share keys into the rows
of a tile (packed GQA rows) and splits the keys among all SMs; but its instructions reach less of
the tensor cores' rate, and partial results must be combined. The cost model below compares both in
the unit of ``cost_model``: the time of a row, for each key, with tensor cores always busy.
docs/decode.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from flashsmith.configs.base import Capability, DecodeKernelConfig, ForwardKernelConfig
from flashsmith.configs.cost_model import grid_cost
from flashsmith.configs.decode import rows_of_kernels, work_tiles
from flashsmith.configs.registry import DECODE
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import DecodeWorkload, Workload, WorkTiles, padded_d_head
from flashsmith.dtype import DType
from flashsmith.problem import Problem

ChooseDecode = Callable[[DecodeWorkload, Capability | None], DecodeKernelConfig]

# Other calls take the forward: queries that are not few beside the keys, or so many rows that
# forward tiles could fill a GPU.
_MIN_KEYS_OF_A_QUERY = 4
_MAX_ROWS = 2048  # queries times the heads that share keys
# Time does not count on the emulator; calls with at least this many keys choose as on a GPU.
_MAX_ROWS_ON_CPU, _MIN_KEYS_ON_CPU = 64, 512

_CLEARLY = 0.9  # the model's difference counts from 10% on
# Rows of Q whose products with a key take as long as reading the key and its value.
_ROWS_OF_A_READ = 176
_READS_OF_A_SUM = 0.5  # time of a row's partial result, in reads of a key and its value
_START = 40_000.0  # for blocks to find their split, and to wait for other blocks' partial results
# The time of a kernel that combines, 2.5 us, and of splits that wait for each other, at d_head 1.
_SECOND_LAUNCH, _WAITING = 3e6, 1.2e6
# Kernels of smaller work tiles, too, serve many rows: they leave smaller partial results, but reach
# less of the tensor cores' rate. They are compared from this number of rows on, for the d_heads and
# up to the keys for which an H200 measured both, and need a lead.
_MIN_ROWS_OF_A_TILE, _MAX_KEYS_OF_SMALLER_TILES = 64, {64: 8192, 128: 16384}
_CLEARLY_FASTER_TILES = 0.95
# Smaller tiles need no lead where memory bounds the usual kernel, and another one combines: they
# take half as many splits, and so leave half the partial results. This was measured for one d_head
# alone.
_D_HEAD_OF_READING, _HARDLY_SLOWER = 128, 1.15


def rows_of_decode(problem: Problem) -> int:
    """Returns the rows of q for a head of k: queries times the heads that share it."""
    return problem.seq_len_q * (problem.heads // max(problem.heads_kv, 1))


def is_for_decode(problem: Problem, variant: Variant) -> bool:
    """Returns whether decode's kernels can compute the problem and the cost model should decide."""
    few = 0 < rows_of_decode(problem) <= _MAX_ROWS
    many = problem.seq_len_k >= _MIN_KEYS_OF_A_QUERY * problem.seq_len_q
    return few and many and _is_plain(variant) and problem.batch > 0


def prefer_split_kv(
    workload: Workload,
    config: ForwardKernelConfig,
    num_sms: int | None,
    capability: Capability | None,
    choose: ChooseDecode = DECODE.choose_by_heuristic,
) -> tuple[DecodeKernelConfig, float] | None:
    """Returns decode's configuration for a workload, and its time as a share of that of ``config``,
    the forward's choice, by the cost model; None: the forward is as good.

    num_sms, capability: The GPU's; None for a CPU.
    choose: The function that chooses decode's configuration there.
    """
    problem = workload.problem
    if not is_for_decode(problem, workload.variant):
        return None
    rows, d_head = rows_of_decode(problem), padded_d_head(problem)
    tiles = work_tiles(problem.batch, problem.heads_kv, num_sms)
    asked = DecodeWorkload(problem.dtype, d_head, rows, tiles=tiles, in_boxes=True)
    decode = choose(asked, capability)
    if num_sms is None:
        worth_it = rows <= _MAX_ROWS_ON_CPU and problem.seq_len_k >= _MIN_KEYS_ON_CPU
        return (decode, 0.0) if worth_it else None
    rate = config.tensor_core_rate
    share = decode_cost(decode, problem, num_sms, rate) / forward_cost(config, problem, num_sms)
    if share >= _CLEARLY:
        return None
    if problem.seq_len_k <= _MAX_KEYS_OF_SMALLER_TILES.get(d_head, 0):
        fewer = (n for n in rows_of_kernels(DECODE.families) if _MIN_ROWS_OF_A_TILE <= n < rows)
        others = [choose(replace(asked, rows=n), capability) for n in fewer]
        decode = _fastest(decode, others, problem, num_sms, rate)
    return decode, share


def configs_of_few_queries(
    dtype: DType,
    d_head: int,
    variant: Variant,
    capability: Capability | None,
    choose: ChooseDecode = DECODE.choose_by_heuristic,
) -> set[DecodeKernelConfig]:
    """Returns all configurations that ``prefer_split_kv`` may return for a dtype, d_head and
    variant. Raises as ``choose`` does."""
    if not _is_plain(variant):
        return set()
    return {
        choose(DecodeWorkload(dtype, d_head, rows, tiles=tiles, in_boxes=True), capability)
        for rows in rows_of_kernels(DECODE.families)
        for tiles in (WorkTiles if capability else (WorkTiles.ANY,))
    }


def _is_plain(variant: Variant) -> bool:
    """Returns whether the cost model covers a variant: it does not know how many keys a window
    shows, and paged keys are for ``decode`` itself."""
    return not (variant.window or variant.bias or variant.score or variant.dropout or variant.paged)


def forward_cost(config: ForwardKernelConfig, problem: Problem, num_sms: int) -> float:
    """Returns the forward's time by the cost model: that of the busiest SM, or of reading
    memory."""
    return problem.seq_len_k * max(grid_cost(config, problem, num_sms), _reading(problem) / num_sms)


def decode_cost(
    config: DecodeKernelConfig, problem: Problem, num_sms: int, rate_of_forward: float
) -> float:
    """Returns decode's time by the cost model: all SMs are equally busy, then one of them combines
    the partial results of a tile's splits."""
    tiles = _tiles(config, problem)
    busy = max(_multiplying(config, problem, rate_of_forward), _reading(problem)) / num_sms
    splits = min(max(num_sms / tiles, 1.0), config.max_combined_splits)
    merging = (1 + splits) * config.B_r * _READS_OF_A_SUM * _ROWS_OF_A_READ
    return problem.seq_len_k * busy + merging + _START


def _fastest(
    usual: DecodeKernelConfig,
    others: Iterable[DecodeKernelConfig],
    problem: Problem,
    num_sms: int,
    rate_of_forward: float,
) -> DecodeKernelConfig:
    """Returns the usual configuration, or another that is clearly faster by the cost model, or
    hardly slower where memory bounds the usual one."""
    multiplying = partial(_multiplying, problem=problem, rate_of_forward=rate_of_forward)
    reading = _reading(problem)
    waits = _splits(usual, problem, num_sms) <= usual.max_waiting_splits
    if usual.d_head == _D_HEAD_OF_READING and multiplying(usual) <= reading and not waits:
        near = [each for each in others if multiplying(each) <= _HARDLY_SLOWER * reading]
        return min(near, key=multiplying, default=usual)

    def cost(config: DecodeKernelConfig) -> float:
        combining = _combining(config, _splits(config, problem, num_sms))
        return decode_cost(config, problem, num_sms, rate_of_forward) + combining

    ahead = (config for config in others if cost(config) < _CLEARLY_FASTER_TILES * cost(usual))
    return min(ahead, key=cost, default=usual)


def _combining(config: DecodeKernelConfig, splits: int) -> float:
    """Returns the time, beside that of adding, in which a work tile's splits are combined."""
    if splits <= config.max_combined_splits:
        return 0.0
    waits = splits <= config.max_waiting_splits
    return (_WAITING if waits else _SECOND_LAUNCH) / config.d_head


def _splits(config: DecodeKernelConfig, problem: Problem, num_sms: int) -> int:
    """Returns the number of splits of a work tile by which each SM has one."""
    return num_sms // _tiles(config, problem)


def _tiles(config: DecodeKernelConfig, problem: Problem) -> int:
    """Returns the number of work tiles."""
    return problem.batch * problem.heads_kv * -(-rows_of_decode(problem) // config.B_r)


def _multiplying(config: DecodeKernelConfig, problem: Problem, rate_of_forward: float) -> float:
    """Returns the time of the products of all rows with a key, on one SM."""
    return _tiles(config, problem) * config.B_r * rate_of_forward / config.tensor_core_rate


def _reading(problem: Problem) -> float:
    """Returns the time to read each key and value of all heads once from memory."""
    return float(problem.batch * problem.heads_kv * _ROWS_OF_A_READ)
