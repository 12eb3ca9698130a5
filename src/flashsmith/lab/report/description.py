"""Describes a configuration of any operation and architecture: its fields in words, the parts of
shared memory, the warps, and the work of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashsmith.configs import ForwardKernelConfig, KernelConfig, KernelId, Variant
from flashsmith.configs.descriptions import descriptions
from flashsmith.dtype import ELEMENT_BYTES
from flashsmith.lab.report.banks import BankMap, bank_map
from flashsmith.problem import Problem

SHARED_BYTES_PER_CYCLE = 128
_FMA_PER_MMA = 16 * 8 * 16
UNIT_OF_WORK = "10^6 multiply-adds"  # of the tables that compare tiles of different sizes
# These counters grow with the loaded blocks of K and V; the others with the visited blocks.
_PER_LOAD = frozenset(("tma_loads", "tma_load_bytes", "mbarrier_waits", "mbarrier_arrivals"))
_PARTS = {
    "K": "blocks of K, as many as stages",
    "V": "blocks of V, as many as stages",
    "Q": "rows of Q; of the sm80 family's forward O leaves through it",
    "dO": "rows of the gradient by O",
    "dS": "gradients of scores, on their way to another product",
    "P": "weights, which warps hand to others",
    "dQ": "sums on their way to global memory",
    "sums": "sums of dQ on their way back, to be converted",
    "kept rows": "rows that the block keeps, of Q and dO or of K and V",
    "visited rows": "rows of the other side, as many tiles as stages",
    "statistics": "the log-sum-exp of each query, and its delta",
    "rings": "of each team: stages of K and V",
    "arriving V": "V before it is transposed",
    "ends of V": "whether no more of it arrives, a word a stage",
    "O staging": "columns of O on their way to a bulk copy",
    "queue": "which tiles the block works on next",
    "barriers": "mbarriers: full and empty, for each buffer that bulk copies fill",
}
# These map names in the tables of steps to the counters of a visit, and of a tile without visits.
_OF_A_VISIT = {
    "shared-memory wavefronts": "shared_wavefronts",
    "bytes that wgmma reads of shared memory": "wgmma_shared_bytes",
    "bytes that TMA loads": "tma_load_bytes",
    "threads that wait at mbarriers": "mbarrier_waits",
    "threads that arrive at mbarriers": "mbarrier_arrivals",
    "turns passed at named barriers": "named_barriers",
    "ldmatrix": "ldmatrix",
    "shuffles": "shuffles",
    "barriers": "barriers",
    "cp.async": "cp_async",
}
_OF_A_TILE = {
    "ldmatrix for Q a tile": "ldmatrix",
    "shared-memory wavefronts of warps a tile": "shared_wavefronts",
    "bytes that TMA stores a tile": "tma_store_bytes",
    "bytes that warps store to global memory a tile": "global_store_bytes",
}


@dataclass(frozen=True)
class Fact:
    """A field of a configuration in words."""

    field: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Region:
    """A part of a block's dynamic shared memory."""

    name: str
    bytes: int
    meaning: str


@dataclass(frozen=True)
class Role:
    """The warps of a block that do the same work, and the registers of their threads."""

    name: str
    warps: int
    registers: int
    holds: Mapping[str, int]  # contents of the registers that the configuration knows


def explain(config: KernelConfig) -> list[Fact]:
    """Returns one fact for each field, in their order."""
    return [
        Fact(name, value_text(getattr(config, name)), f"{meaning[0].upper()}{meaning[1:]}")
        for names, meaning in descriptions(type(config)).items()
        for name in names
    ]


def value_text(value: object) -> str:
    """Returns a field's value in the page's form."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def changed_fields(a: KernelConfig, b: KernelConfig) -> list[str]:
    """Returns text like `swizzled off to on` for each field that differs; both have one class."""
    return [
        f"{before.field} {before.value} to {after.value}"
        for before, after in zip(explain(a), explain(b), strict=True)
        if before.value != after.value
    ]


def regions(config: KernelConfig) -> list[Region]:
    """Returns the parts of shared memory that are not empty; their sum is
    ``config.shared_memory_bytes``."""
    parts = config.shared_memory_parts.items()
    return [Region(name, size, _PARTS[name]) for name, size in parts if size]


def roles(config: KernelConfig, registers: int) -> list[Role]:
    """Returns the roles of a block's warps.

    registers: The registers of a thread at the launch, as ptxas reports them.
    """
    holds = {name: n for name, n in config.held_registers.items() if n}
    loading, computing = config.moved_registers or (registers, registers)
    if not config.loading_warps:
        return [Role("every warp", config.compute_warps, registers, holds)]
    return [
        Role("loads", config.loading_warps, loading, {}),
        Role("compute", config.compute_warps, computing, holds),
    ]


def group_name(config: KernelConfig) -> str:
    """Returns the name of a group of kernels on the page: the family and the operation."""
    name = f"{config.family} family"
    operation = config.kernels_name().replace("_", " ")
    return name if config.operation == "forward" else f"{operation} of the {name}"


def reader(config: KernelConfig) -> str:
    """Returns what reads the rows of the bank maps."""
    core = "ldmatrix, or wgmma of an operand's core matrix,"
    return core if config.reads_by_maps else "ldmatrix"


def bank_maps(config: KernelConfig) -> list[BankMap]:
    """Returns the banks that one phase reads of rows of Q and K, without and with the swizzle.

    The rows are as wide as the widest swizzle that fits. There is no map of decode's FP8 K.
    """
    if getattr(config, "fp8_cache", False):
        return []
    row = config.d_head * getattr(config, "score_bytes", ELEMENT_BYTES)
    width = next(width for width in (128, 64, 32) if row % width == 0)
    return [bank_map(width, swizzled=swizzled) for swizzled in (False, True)]


@dataclass(frozen=True)
class Work:
    """The work of a call.

    tiles: The number of blocks of B_r rows of Q; for decode, of packed GQA rows.
    visits: The number of visits of a tile to a block of K and V, in all passes of a backward. If
        only some warpgroups of the tile work on the block, the visit counts by their share.
    loads: The number of blocks of K and V that tiles load.
    """

    tiles: float
    visits: float
    loads: float

    def __mul__(self, n: int) -> Work:
        return Work(n * self.tiles, n * self.visits, n * self.loads)


def work_of(
    config: Any, variant: Variant, seq_len_q: int, seq_len_k: int, queries: int | None = None
) -> Work:
    """Returns the work of one head, with the block ranges of block_range.cuh; the few rows of
    decode see all keys.

    queries: The queries of a tile, fewer than its rows if heads are packed; None: as many.
    """
    queries = queries or config.B_r
    cluster_size = _of_forward(config, "cluster_size")
    cluster_rows = queries * cluster_size
    tiles = -(-seq_len_q // cluster_rows) * cluster_size
    if not variant.causal or config.operation == "decode":
        visits = tiles * -(-seq_len_k // config.B_c)
        return Work(tiles, visits, visits)

    def n_blocks(row_end: int) -> int:
        visible = min(row_end + seq_len_k - seq_len_q, seq_len_k)
        blocks: int = -(-visible // config.B_c)
        return max(int(config.reads_by_maps), blocks)

    parts = _of_forward(config, "n_warpgroups")  # warpgroups of a tile, which may skip blocks
    loads, visited = 0, 0
    for first in range(0, tiles * queries, queries // parts):
        blocks = n_blocks((first // cluster_rows + 1) * cluster_rows)
        unseen = blocks - n_blocks(first + queries // parts)
        visited += blocks - min(unseen, _of_forward(config, "n_stages") - 1)
        loads += blocks
    return Work(tiles, visited / parts, loads / parts)


def work_on(instance: KernelId, problem: Problem) -> Work:
    """Returns the work of all heads; decode, and forwards with packed heads, have the rows of heads
    that share a KV head in one tile."""
    config, rows, heads, queries = instance.config, problem.seq_len_q, problem.heads, None
    if config.operation == "decode":
        rows, heads = rows * heads // problem.heads_kv, problem.heads_kv
    elif isinstance(config, ForwardKernelConfig):
        heads, queries = config.heads_of_tiles(problem), config.queries_of_tile(problem)
    of_head = work_of(config, instance.variant, rows, problem.seq_len_k, queries)
    return of_head * (problem.batch * heads)


def _of_forward(config: Any, field: str) -> int:
    """Returns a field of a forward; 1 if its class lacks the field, and for other operations."""
    return getattr(config, field, 1) if config.operation == "forward" else 1


def samples(config: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the rows of Q and K of two launches, from which ``Counts.split`` computes the counts
    of a visit and of a tile.

    A forward has the tiles of one cluster, and two more blocks of K and V in the second launch. No
    mask touches these blocks, since the last rows see the last keys. A backward has equal numbers
    of rows and keys, since it has tiles of keys, too. Each team of decode has the same number of
    blocks.
    """
    if config.operation == "backward":
        n = math.lcm(config.B_r * getattr(config, "n_warpgroups", 1), config.B_c)
        return (2 * n, 2 * n), (3 * n, 3 * n)
    if config.operation == "decode":
        n = config.B_c * config.compute_warps
        return (config.B_r, n), (config.B_r, 2 * n)
    rows = config.B_r * _of_forward(config, "cluster_size")
    keys = (-(-rows // config.B_c) + 1) * config.B_c
    return (rows, keys), (rows, keys + 2 * config.B_c)


@dataclass(frozen=True)
class Counts:
    """The emulator's counters (runtime/counters.py).

    of: The launch, in words.
    whole: The counters of the launch.
    per_visit: The counters of one more visit of a tile to a block of K and V.
    per_tile: The counters of a tile without its visits, such as loading Q and storing O.
    """

    of: str
    whole: dict[str, int]
    per_visit: dict[str, float]
    per_tile: dict[str, float]

    @classmethod
    def split(
        cls, of: str, a: tuple[Work, dict[str, int]], b: tuple[Work, dict[str, int]]
    ) -> Counts:
        """Solves two launches for the counts of a visit and of a tile; ``of`` names the first."""
        (work_a, short), (work_b, long) = a, b
        per_visit, per_tile = {}, {}
        for name in short.keys() - {"longest_ldmatrix_run", "longest_mma_run"}:  # no sums
            n_a, n_b = (w.loads if name in _PER_LOAD else w.visits for w in (work_a, work_b))
            determinant = work_a.tiles * n_b - work_b.tiles * n_a
            per_visit[name] = (work_a.tiles * long[name] - work_b.tiles * short[name]) / determinant
            per_tile[name] = (n_b * short[name] - n_a * long[name]) / determinant
        return cls(of, short, per_visit, per_tile)

    @property
    def conflicts(self) -> float:
        """The wavefronts that bank conflicts add to a visit."""
        return self.per_visit["shared_wavefronts"] - self.per_visit["shared_wavefronts_ideal"]

    @property
    def fma_per_visit(self) -> float:
        """The multiply-adds of a visit on the tensor cores."""
        return _FMA_PER_MMA * self.per_visit["mma"] + self.per_visit["wgmma_flops"] / 2

    def quantities(self, unit: str, scale: float) -> dict[str, float]:
        """Returns the quantities that depend on the configuration, by their names in the tables.

        unit: "a visit", or the unit that replaces it if tiles differ in size.
        scale: The factor on the counts of a visit.
        """
        visit, tile = self.per_visit, self.per_tile
        found = {f"{name} {unit}": scale * visit[each] for name, each in _OF_A_VISIT.items()}
        found["of these bank conflicts"] = scale * self.conflicts
        if visit["mma"]:
            share = visit["cp_async_in_flight_mma"] / visit["mma"]
            found["mma with copies in flight, %"] = 100 * share
        return found | {name: tile[each] for name, each in _OF_A_TILE.items()}


@dataclass(frozen=True)
class CountedLaunch:
    """The counts of a launch, computed from the counts of its tiles and visits."""

    counts: Counts
    work: Work

    def visits(self, name: str) -> float:
        n = self.work.loads if name in _PER_LOAD else self.work.visits
        return n * self.counts.per_visit[name]

    def beside(self, name: str) -> float:
        return self.work.tiles * self.counts.per_tile[name]

    def __getitem__(self, name: str) -> float:
        return self.visits(name) + self.beside(name)

    def shared_bytes(self, config: KernelConfig) -> float:
        """Returns the bytes that pass through shared memory: wgmma's operands, TMA's loads and
        stores, and the warps' accesses. A multicast writes to each block of the cluster."""
        return (
            self["wgmma_shared_bytes"]
            + _of_forward(config, "cluster_size") * self.visits("tma_load_bytes")
            + self.beside("tma_load_bytes")
            + self["tma_store_bytes"]
            + SHARED_BYTES_PER_CYCLE * self["shared_wavefronts"]
        )

    @property
    def loaded_bytes(self) -> float:
        """The bytes that the SMs load from L2."""
        return self["global_load_bytes"] + self["tma_load_bytes"]


def fma_per_visit(config: KernelConfig) -> int:
    """Returns the minimum multiply-adds of a visit, which has two matrix products, or five in a
    backward."""
    products = 5 if config.operation == "backward" else 2
    return products * config.B_r * config.B_c * config.d_head


def exponentials_per_visit(config: KernelConfig) -> float:
    """Returns the minimum number of exponentials of a visit on the special-function units; the
    others are polynomials."""
    return config.B_r * config.B_c * (16 - getattr(config, "fma_exponentials", 0)) / 16
