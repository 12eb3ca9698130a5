"""The backward of the sm90 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.configs.base import BackwardKernelConfig
from flashsmith.configs.features import Feature, flag, number
from flashsmith.configs.legality import another_gpu, too_little_shared_memory
from flashsmith.configs.sm80.backward import BACKWARD
from flashsmith.configs.sm90.forward import WGMMA
from flashsmith.configs.sm90.hardware import COMPUTE_CAPABILITY, WGMMA_K, WGMMA_M, register_split
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import BackwardWorkload, Workload
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import WARPGROUP_SIZE, GpuArchitecture, get_gpu_architecture
from flashsmith.problem import Problem

B_R = 64  # queries of a block, as in row statistics
MAX_STAGES = 4
SUPPORTED_D_HEADS = (64, 96, 128, 192)
# For rows of this length, three warpgroups share keys, with these stages.
WIDE_D_HEAD, SHARING_WARPGROUPS = 192, 3
MIN_SHARING_Q_STAGES, SHARING_DO_STAGES = 2, 1
TURNS = 2  # the largest value
_SUM_BYTES, _BARRIER_BYTES = 4, 8
STATISTICS_BYTES = 8  # of a query: its log-sum-exp and delta
_BUFFERS_OF_SCORES = 2  # of dS, which warpgroups that do not share keys guard by barriers
_TILE_ENTRIES, _ENTRY_BYTES = 2, 16
_CONVERTED_COLUMNS = 32  # of dQ, at a time
# See suited_to.
_LONG_ROWS, _SHORT_ROWS = 128, 64
# Blocks of keys of a head, or keys under a causal mask, which wait so little that order is free.
_FEW_BLOCKS, _FEW_KEYS = 4, 768
_SHORT, _SHORT_OF_SHORT_ROWS = 1024, 2048  # lengths of keys
_LONG, _LONG_OF_SHORT_ROWS = 4096, 8192
_LONG_OF_UNLIKE = 6144  # of rows that are not short
_ENOUGH_TILES, _MANY_TILES = 150, 400  # about one and three for each SM of an H200
_ROOMY = 2  # warpgroups with registers for more than a plain backward
# The room for keys in blocks of two warpgroups, as a share of that in blocks of three.
_CLEARLY_FEWER, _CLEARLY_FEWER_CAUSAL = 5 / 6, 2 / 3
_MAX_BESIDE_FUNCTIONS = 96  # elements of a row, with a caller's functions


@dataclass(frozen=True, order=True)
class Sm90BackwardKernelConfig(BackwardKernelConfig):
    """A backward's configuration: one point of the space, with the fields of the C++ struct of the
    same name.

    A thread block has a producer warpgroup, which loads, and consumer warpgroups, which keep 64
    keys each and visit the queries. They accumulate dK and dV in registers, and dQ in FP32 in
    global memory. With d_head 192 the warpgroups share the keys: each computes the scores of 32
    keys, and 64 columns of dK and dV of all keys.

    dtype: element type of all tensors; sums and statistics are FP32.
    d_head: head dimension, 64, 96, 128 or 192.
    B_r: queries that are visited at a time, 64.
    B_c: keys of a thread block, 64 for each consumer warpgroup; 32 if they share keys.
    n_warpgroups: consumer warpgroups.
    Q_stages: blocks of Q in shared memory at a time.
    dO_stages: blocks of dO in shared memory at a time.
    V_steps_in_registers: how many of the d_head / 16 steps of dP = V dO^T read V from registers.
    turns: the part of a block in which one warpgroup has the tensor cores alone; 0: none; 1: from
        dV to dK; 2: from dV to dP of the next block.
    persistent: one thread block on each SM processes one block of keys after the other, taken from
        a queue in global memory.
    dQ_in_order: blocks of keys add to dQ in a fixed order, so that results have the same bits in
        every run, and the last one converts dQ; else the order differs, and a separate kernel
        converts dQ, but of heads that persistent blocks have converted while they work on others.
    skip_unseen: a warpgroup computes no products of a block without a query that sees its keys: on
        a causal diagonal, at a window's edges, or where keys end.
    split_groups: the query heads that share a KV head are divided into parts, as many as a call's
        sizes need, and each block of keys of a part is a tile by itself, so that tiles are shorter.
        The parts add dK and dV to FP32 sums in memory, in any order; with dQ_in_order each has its
        own, which a separate kernel adds in the order of the parts.

    Raises:
        TypeError: a field has the wrong type; the message names it.
        ValueError: a field is negative, or zero where 0 has no meaning. Other points may still have
            no kernel: see `problems()`.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warpgroups: int
    Q_stages: int
    dO_stages: int
    V_steps_in_registers: int
    turns: int
    persistent: bool
    dQ_in_order: bool = False
    skip_unseen: bool = False
    split_groups: bool = False

    family: ClassVar[str] = "sm90"
    minimum_gpu: ClassVar[str] = "sm_90a"
    exact_arch: ClassVar[bool] = True
    reads_by_maps: ClassVar[bool] = True
    kernel_function: ClassVar[str] = "sm90::backward_kernels"
    static_configuration: ClassVar[str] = "sm90::BackwardTraits"
    kernel_arguments: ClassVar[str] = "Sm90BackwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm90/backward_arguments.cuh"
    kernel_pointer: ClassVar[str] = "Sm90BackwardKernels"
    markers: ClassVar[frozenset[str]] = frozenset({BACKWARD, WGMMA})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warpgroups")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(BACKWARD),
        Feature(WGMMA),
        number("q_stages", "Q_stages"),
        number("do_stages", "dO_stages"),
        number("v_regs", "V_steps_in_registers", absent=0),
        number("turns", "turns", absent=0),
        flag("persistent", "persistent"),
        flag("in_order", "dQ_in_order"),
        flag("skip_unseen", "skip_unseen"),
        flag("split_groups", "split_groups"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset(("V_steps_in_registers", "turns"))

    def problems(self, gpu: str = "sm_90a") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *_tile_problems(self),
            *_schedule_problems(self),
            *_gpu_problems(self, architecture),
        ]

    @property
    def is_deterministic(self) -> bool:
        return self.dQ_in_order

    def made_deterministic(self) -> Sm90BackwardKernelConfig:
        return replace(self, dQ_in_order=True)

    def suited_to(self, workload: Workload) -> Sm90BackwardKernelConfig:
        """Returns the configuration with what pays for a workload, as docs/log/backward.md has
        measured it.

        Ordered sums save clearing and converting dQ. Persistent blocks save the time between tiles,
        and unordered they convert dQ early. But where tiles of d_head 128 and 192 are few, they are
        1 to 4% slower if tiles are equal. The host splits groups where tiles are few.
        At d_head 64 windows are short: few blocks of keys add to a block of dQ, and a third of the
        products is of queries that see no key. Full masks have such products in the last block of
        keys, where most lengths leave a warpgroup of three, or two, without keys. Some lengths fit
        two warpgroups better.
        """
        if self._fits_two_warpgroups(workload):
            fitted = self._with_two_warpgroups().suited_to(workload)
            return replace(fitted, skip_unseen=False)
        variant = workload.variant
        short_windows = variant.window and self.d_head == _SHORT_ROWS
        in_order = self.dQ_in_order or short_windows or self._order_is_free(workload)
        ends_of_keys = not (variant.causal or variant.varlen) and self.d_head == _SHORT_ROWS
        return replace(
            self,
            persistent=in_order or variant.causal or self._has_even_tiles_to_spare(workload),
            dQ_in_order=in_order,
            skip_unseen=short_windows or ends_of_keys,
            split_groups=workload.problem.is_grouped and not self.shares_keys,
        )

    def _fits_two_warpgroups(self, workload: Workload) -> bool:
        """Returns whether blocks of 128 keys have clearly fewer places without a key than those of
        three warpgroups, which take less time for a key."""
        variant = workload.variant
        if self.n_warpgroups <= _ROOMY or self.shares_keys or variant.varlen or variant.window:
            return False
        n_keys, of_two = workload.problem.seq_len_k, WGMMA_M * _ROOMY
        room, room_of_two = (-(-n_keys // B_c) * B_c for B_c in (self.B_c, of_two))
        return room_of_two <= room * (_CLEARLY_FEWER_CAUSAL if variant.causal else _CLEARLY_FEWER)

    def _with_two_warpgroups(self) -> Sm90BackwardKernelConfig:
        """Returns tiles of two warpgroups with V in shared memory."""
        return replace(
            self,
            n_warpgroups=_ROOMY,
            B_c=WGMMA_M * _ROOMY,
            V_steps_in_registers=0,
            Q_stages=MAX_STAGES,
            dO_stages=MAX_STAGES,
        )

    def _has_even_tiles_to_spare(self, workload: Workload) -> bool:
        """Returns whether tiles that take equally long gain by persistent blocks."""
        return self.d_head < _LONG_ROWS or self._tiles_of(workload.problem) >= _MANY_TILES

    def _tiles_of(self, problem: Problem) -> int:
        """Returns the blocks of keys of all heads of K, of sequences that are all as long as the
        longest one."""
        return -(-problem.seq_len_k // self.B_c) * problem.heads_kv * problem.batch

    def _order_is_free(self, workload: Workload) -> bool:
        """Returns whether ordered sums cost less than clearing and converting dQ.

        Blocks of keys wait for those before them when they begin, which few tiles notice most. A
        group makes tiles longer by its heads, so the same wait is a smaller share; but not under a
        full mask, where tiles of any order visit the same queries together, too. Persistent blocks
        of rows of 128 elements convert dQ faster than they would wait there.
        """
        problem, causal = workload.problem, workload.variant.causal
        n_keys, short_rows = problem.seq_len_k, self.d_head == _SHORT_ROWS
        if n_keys <= _FEW_BLOCKS * self.B_c:
            return True
        if causal and not problem.is_grouped and not self.shares_keys and n_keys <= _FEW_KEYS:
            return True
        unlike = isinstance(workload, BackwardWorkload) and workload.unlike
        if unlike and causal and self._order_of_unlike_is_free(problem):
            return True
        short = n_keys <= (_SHORT_OF_SHORT_ROWS if short_rows and causal else _SHORT)
        tiles = self._tiles_of(problem)
        if not problem.is_grouped:
            converts_faster = not causal and self.d_head >= _LONG_ROWS
            return short and tiles >= _MANY_TILES and not converts_faster
        long = n_keys > (_LONG_OF_SHORT_ROWS if short_rows else _LONG)
        return causal and not long and (short or tiles >= _ENOUGH_TILES)

    def _order_of_unlike_is_free(self, problem: Problem) -> bool:
        """Returns whether ordered sums cost less under a causal mask if sequences have unlike
        lengths: tiles of a later sequence begin where those of one would still wait."""
        if self.shares_keys:
            return False
        long = _LONG_OF_SHORT_ROWS if self.d_head == _SHORT_ROWS else _LONG_OF_UNLIKE
        enough = _ENOUGH_TILES if problem.is_grouped else _MANY_TILES
        return problem.seq_len_k <= long and self._tiles_of(problem) >= enough

    def adapted_to(self, variant: Variant) -> Sm90BackwardKernelConfig:
        """Returns tiles of two warpgroups with V in shared memory, which leaves registers for
        derivatives of scores."""
        if self.shares_keys or not (variant.softcap or variant.score):
            return self
        if self.n_warpgroups == _ROOMY:
            return replace(self, V_steps_in_registers=0)
        return self._with_two_warpgroups()

    def serves_variant(self, variant: Variant) -> bool:
        """Returns whether there are kernels for a variant: none writes the gradient of a bias, or
        into pages. Derivatives of scores need two warpgroups, or three that share keys, and the
        caller's functions also rows below 128 elements."""
        if variant.bias or variant.paged or (variant.score and self.d_head > _MAX_BESIDE_FUNCTIONS):
            return False
        has_room = self.shares_keys or self.n_warpgroups == _ROOMY
        return has_room or not (variant.softcap or variant.score)

    @property
    def shares_keys(self) -> bool:
        """Whether the warpgroups share the keys of a block: the rows of dK and dV of 64 keys are
        too long for the registers of one."""
        return _shares_keys(self.d_head)

    @property
    def score_keys(self) -> int:
        """The keys of a warpgroup's scores."""
        return score_keys(self.d_head)

    @property
    def threads_per_block(self) -> int:
        return (self.n_warpgroups + 1) * WARPGROUP_SIZE

    @property
    def dQ_columns(self) -> int:
        """The columns of dQ that a warpgroup computes at a time: its share if that is whole boxes,
        else all, in turn with the other warpgroups."""
        box = 64 if self.d_head % 64 == 0 else 32
        share, rest = divmod(self.d_head, self.n_warpgroups)
        return share if rest == 0 and share % box == 0 else self.d_head

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """Bytes by content: dS has two blocks, or one beside P if warpgroups share keys; dQ has a
        share for each warpgroup, sums are those that are converted early, the queue has the next
        tiles."""
        row, scores = self.d_head * ELEMENT_BYTES, self.B_r * self.B_c * ELEMENT_BYTES
        buffers = self.Q_stages + self.dO_stages + self.n_warpgroups + 1
        buffers += 0 if self.shares_keys else _BUFFERS_OF_SCORES
        buffers += self.n_warpgroups if self.dQ_in_order else 0
        converted_buffers = (1 if self.shares_keys else 2) if self.converts_early else 0
        buffers += converted_buffers
        entries = _TILE_ENTRIES if self.persistent or self.dQ_in_order else 0
        return {
            "K": self.B_c * row,
            "V": self.B_c * row,
            "Q": self.Q_stages * self.B_r * row,
            "dO": self.dO_stages * self.B_r * row,
            **({"P": scores, "dS": scores} if self.shares_keys else {"dS": 2 * scores}),
            "dQ": self.n_warpgroups * self.B_r * self.dQ_columns * _SUM_BYTES,
            "sums": converted_buffers * self.B_r * _CONVERTED_COLUMNS * _SUM_BYTES,
            "statistics": self.Q_stages * self.B_r * STATISTICS_BYTES,
            "barriers": 2 * (buffers + entries) * _BARRIER_BYTES,
            "queue": entries * _ENTRY_BYTES,
        }

    @property
    def converts_early(self) -> bool:
        """Whether a warp of the producer converts dQ of heads that are done."""
        return self.persistent and not self.dQ_in_order

    @property
    def adds_parts(self) -> bool:
        """Whether the parts of a group add dK and dV to the same sums, in any order: these differ
        from run to run then, if the host splits the groups of a call."""
        return self.split_groups and not self.dQ_in_order

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers of a thread: dK and dV, scores and their gradients, and steps of V."""
        return {
            "dK, dV": self.B_c if self.shares_keys else self.d_head,
            "S, dP": self.score_keys,
            "V": 4 * self.V_steps_in_registers,
        }

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        return register_split(self.n_warpgroups)


def _shares_keys(d_head: int) -> bool:
    return d_head > _LONG_ROWS


def score_keys(d_head: int) -> int:
    """Returns the keys of a warpgroup's scores: the rows of a wgmma, or half as many of keys that
    warpgroups share."""
    return WGMMA_M // 2 if _shares_keys(d_head) else WGMMA_M


def _tile_problems(config: Sm90BackwardKernelConfig) -> Iterator[str]:
    if config.d_head not in SUPPORTED_D_HEADS:
        yield f"d_head is {config.d_head}; supported are {', '.join(map(str, SUPPORTED_D_HEADS))}."
    if config.B_r != B_R:
        yield f"B_r is {config.B_r}; blocks of queries are those of row statistics, {B_R}."
    if config.n_warpgroups not in (2, 3):
        yield f"n_warpgroups is {config.n_warpgroups}; supported are 2 and 3."
    if config.shares_keys and config.n_warpgroups != SHARING_WARPGROUPS:
        yield (
            f"n_warpgroups is {config.n_warpgroups}; with d_head {config.d_head}, "
            f"{SHARING_WARPGROUPS} warpgroups share the keys of a block."
        )
    if config.n_warpgroups > 2 and config.d_head > 64 and not config.shares_keys:
        yield (
            f"n_warpgroups is {config.n_warpgroups}; dK and dV of three warpgroups fit in "
            f"registers for d_head 64, but it is {config.d_head}."
        )
    if config.B_c != config.score_keys * config.n_warpgroups:
        keys = "computes the scores of" if config.shares_keys else "keeps"
        yield (
            f"B_c is {config.B_c}; each of the {config.n_warpgroups} warpgroups {keys} "
            f"{config.score_keys} keys, so it must be {config.score_keys * config.n_warpgroups}."
        )
    steps = _max_V_steps(config)
    if config.V_steps_in_registers > steps:
        yield (
            f"V_steps_in_registers is {config.V_steps_in_registers}; with d_head {config.d_head} "
            f"and n_warpgroups {config.n_warpgroups} registers have room for {steps}."
        )


def _max_V_steps(config: Sm90BackwardKernelConfig) -> int:
    """Returns the max steps of V beside dK, dV, S and dP: if registers run out, ptxas serialises
    wgmma."""
    if config.n_warpgroups > 2:
        return 0
    return 4 if config.d_head == 128 else config.d_head // WGMMA_K


def _schedule_problems(config: Sm90BackwardKernelConfig) -> Iterator[str]:
    for name in ("Q_stages", "dO_stages"):
        if getattr(config, name) > MAX_STAGES:
            yield f"{name} is {getattr(config, name)}; at most {MAX_STAGES} are supported."
    if config.turns > TURNS:
        yield f"turns is {config.turns}; supported are 0 to {TURNS}."
    if config.shares_keys:
        yield from _sharing_problems(config)


def _sharing_problems(config: Sm90BackwardKernelConfig) -> Iterator[str]:
    if config.Q_stages < MIN_SHARING_Q_STAGES:
        yield (
            f"Q_stages is {config.Q_stages}; warpgroups that share keys use {MIN_SHARING_Q_STAGES} "
            "blocks of Q at a time."
        )
    if config.dO_stages != SHARING_DO_STAGES:
        yield (
            f"dO_stages is {config.dO_stages}; where warpgroups share keys, P may be overwritten "
            f"when the next block of dO is there, so it must be {SHARING_DO_STAGES}."
        )
    for name in ("turns", "skip_unseen", "split_groups"):
        if value := getattr(config, name):
            yield f"{name} is {value}; warpgroups that share keys do without."


def _gpu_problems(config: Sm90BackwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    yield from another_gpu(gpu, COMPUTE_CAPABILITY, config.family)
    yield from too_little_shared_memory(gpu, config.shared_memory_bytes)
