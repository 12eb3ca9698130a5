"""When decode's kernels are for a call of ``attention``: few queries over many keys.

A forward kernel's tile has all keys of its rows, and at least 64 rows, however few there are. Where
the tiles are too few to fill the GPU, most SMs wait. Decode packs the heads that share
keys into the rows of a tile, and splits its keys among all SMs; but its instructions
reach less of the tensor cores' rate, and sums have to be combined. The model below weighs that, in
the unit of ``cost_model``: the time of a row whose tensor cores are busy throughout, for each key.
docs/decode.md tells the numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from flashsmith.configs.base import Capability, DecodeKernelConfig, ForwardKernelConfig
from flashsmith.configs.cost_model import grid_cost
from flashsmith.configs.decode import has_many_tiles, rows_of_kernels
from flashsmith.configs.registry import DECODE
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import DecodeWorkload, Workload, padded_d_head
from flashsmith.dtype import DType
from flashsmith.problem import Problem

ChooseDecode = Callable[[DecodeWorkload, Capability | None], DecodeKernelConfig]

# For any other the forward's tiles are at hand: queries that are not few beside the keys, or more
# rows than tiles of them could fill a GPU with.
_MIN_KEYS_OF_A_QUERY = 4
_MAX_ROWS = 2048  # queries times the heads that share keys
# On the emulator no time counts; what is at least so long takes the way that it would on a GPU.
_MAX_ROWS_ON_CPU, _MIN_KEYS_ON_CPU = 64, 512

_CLEARLY = 0.9  # what the model says counts from 10% on
_ROWS_OF_A_READ = 176  # whose products take as long as to read a key and its value from memory
_READS_OF_A_SUM = 0.5  # of a key and its value, as long as which a row's sums take
_START = 40_000.0  # of blocks that find their part, and wait for one another's sums


def rows_of_decode(problem: Problem) -> int:
    """Returns rows of q to a head of k: queries times the heads that share it."""
    return problem.seq_len_q * (problem.heads // max(problem.heads_kv, 1))


def is_for_decode(problem: Problem, variant: Variant) -> bool:
    """Returns whether the kernels of decode can compute it, and it is worth while to ask the
    model."""
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
    """Decode's configuration for a workload, and about what share of the time of ``config``, the
    forward's choice, it takes; None: the forward is as good.

    num_sms, capability: The GPU's; None: of a CPU.
    choose: Which of decode's configurations serves there.
    """
    problem = workload.problem
    if not is_for_decode(problem, workload.variant):
        return None
    rows, d_head = rows_of_decode(problem), padded_d_head(problem)
    many = has_many_tiles(problem.batch, problem.heads_kv, num_sms)
    asked = DecodeWorkload(problem.dtype, d_head, rows, many_tiles=many, in_boxes=True)
    decode = choose(asked, capability)
    if num_sms is None:
        worth_it = rows <= _MAX_ROWS_ON_CPU and problem.seq_len_k >= _MIN_KEYS_ON_CPU
        return (decode, 0.0) if worth_it else None
    rate = decode.tensor_core_rate / config.tensor_core_rate
    share = decode_cost(decode, problem, num_sms, rate)
    share /= forward_cost(config, problem, num_sms)
    return (decode, share) if share < _CLEARLY else None


def configs_of_few_queries(
    dtype: DType,
    d_head: int,
    variant: Variant,
    capability: Capability | None,
    choose: ChooseDecode = DECODE.choose_by_heuristic,
) -> set[DecodeKernelConfig]:
    """All that ``prefer_split_kv`` may give for some sizes. Raises as ``choose``."""
    if not _is_plain(variant):
        return set()
    return {
        choose(DecodeWorkload(dtype, d_head, rows, many_tiles=many, in_boxes=True), capability)
        for rows in rows_of_kernels(DECODE.families)
        for many in ((False, True) if capability else (False,))
    }


def _is_plain(variant: Variant) -> bool:
    """Returns how many keys a window shows is not known here; pages are for ``decode`` itself."""
    return not (variant.window or variant.bias or variant.score or variant.dropout or variant.paged)


def forward_cost(config: ForwardKernelConfig, problem: Problem, num_sms: int) -> float:
    """Returns the model's time of the forward: of the fullest SM, or of the memory."""
    return problem.seq_len_k * max(grid_cost(config, problem, num_sms), _reading(problem) / num_sms)


def decode_cost(config: DecodeKernelConfig, problem: Problem, num_sms: int, rate: float) -> float:
    """Returns the model's time of decode: all SMs are equally busy, then one of them
    combines the sums of a tile's splits."""
    tiles = problem.batch * problem.heads_kv * -(-rows_of_decode(problem) // config.B_r)
    busy = max(tiles * config.B_r / rate, _reading(problem)) / num_sms
    splits = min(max(num_sms / tiles, 1.0), config.max_combined_splits)
    merging = (1 + splits) * config.B_r * _READS_OF_A_SUM * _ROWS_OF_A_READ
    return problem.seq_len_k * busy + merging + _START


def _reading(problem: Problem) -> float:
    """Of each key of all heads, and its value, once from memory."""
    return float(problem.batch * problem.heads_kv * _ROWS_OF_A_READ)
