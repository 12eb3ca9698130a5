"""The sm90 family: wgmma and TMA in blocks whose warpgroups load or compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashsmith.configs import Sm90ForwardKernelConfig, Variant
from flashsmith.configs.sm90.forward import CONSUMER_REGISTERS, TO_TRANSPOSE, WGMMA_M
from flashsmith.gpus import WARP_SIZE, WARPGROUP_SIZE
from flashsmith.report.banks import BankMap, bank_map
from flashsmith.report.family import (
    SHARED_BYTES_PER_CYCLE,
    Fact,
    Family,
    Launch,
    Region,
    Role,
    Sample,
    Work,
    fma_per_visit,
)
from flashsmith.report.sm90_facts import explain

# Of the loading warpgroup's threads after setmaxnreg, by the number of consumer warpgroups; with
# one of these no register moves. csrc/include/flashsmith/sm90/traits.cuh.
PRODUCER_REGISTERS = {2: 24, 3: 32, 4: 32}
_WARPS = WARPGROUP_SIZE // WARP_SIZE
_QUEUE_BYTES, _END_BYTES, _BARRIER_BYTES = 16, 32, 8


class Sm90(Family[Sm90ForwardKernelConfig]):
    name = "sm90"
    copies = "TMA"
    unit_of_work = "10^6 multiply-adds"
    reader = "ldmatrix, or wgmma of an operand's core matrix,"
    per_load = frozenset(("tma_loads", "tma_load_bytes", "mbarrier_waits", "mbarrier_arrivals"))

    def explain(self, config: Sm90ForwardKernelConfig) -> list[Fact]:
        return explain(config)

    def shared_memory(self, config: Sm90ForwardKernelConfig) -> list[Region]:
        row, row_of_V = config.d_head * config.score_bytes, config.d_head * config.value_bytes
        rows = config.n_stages * config.B_c
        stages = f"{config.n_stages} stages of {config.B_c} rows"
        arriving = rows * row_of_V if config.fp8_values else 0
        pairs_of_stage = 3 if config.fp8_values else 2
        barriers = 2 * config.n_warpgroups + 2 * pairs_of_stage * config.n_stages + 2
        ends = _END_BYTES if config.fp8_values else 0
        before_O = config.B_r * row + rows * (row + row_of_V) + arriving
        behind_O = _QUEUE_BYTES + ends + barriers * _BARRIER_BYTES
        staged = config.shared_memory_bytes - before_O - behind_O
        regions = [
            Region("Q", config.B_r * row, "the tile's rows of Q, 64 of each warpgroup"),
            Region("K", rows * row, stages),
            Region("V", rows * row_of_V, f"{stages}, transposed" if arriving else stages),
            Region("arriving V", arriving, f"{stages}, before they are transposed"),
            Region("ends of V", ends, "whether no more of it arrives, a word a stage"),
            Region("O staging", staged, "columns of O on their way to a bulk copy"),
            Region("queue", _QUEUE_BYTES, "two entries: the tiles that the block works on next"),
            Region(
                "barriers",
                barriers * _BARRIER_BYTES,
                f"{barriers} mbarriers: full and empty, for Q of each warpgroup and for each stage "
                "of K and of V, and of V that arrives; two of the queue"
                if arriving
                else f"{barriers} mbarriers: full and empty, for Q of each warpgroup and for each "
                "stage of K and of V; two of the queue",
            ),
        ]
        return [region for region in regions if region.bytes]

    def roles(self, config: Sm90ForwardKernelConfig, registers: int) -> list[Role]:
        n = config.n_warpgroups
        holds = {
            "O": config.d_head // 2,
            "S": config.B_c // 2,
            "P": config.B_c * config.value_bytes // 8 if config.overlap_softmax else 0,
            "a block's O": config.d_head // 2 if config.two_level else 0,
            "Q": 4 * config.Q_steps_in_registers,
        }
        moved = n in PRODUCER_REGISTERS  # setmaxnreg
        given = TO_TRANSPOSE if config.fp8_values else 0  # by each thread that computes
        return [
            Role("loads", _WARPS, PRODUCER_REGISTERS[n] + n * given if moved else registers, {}),
            Role(
                "compute",
                n * _WARPS,
                CONSUMER_REGISTERS[n] - given if moved else registers,
                {name: count for name, count in holds.items() if count},
            ),
        ]

    def samples(self, config: Sm90ForwardKernelConfig, variant: Variant) -> tuple[Sample, Sample]:
        """One cluster's tiles, with two more blocks of K and V in the second: blocks that no mask
        touches, since the last rows see the last keys."""
        rows = config.B_r * config.cluster_size
        keys = _round_up(rows, config.B_c) + config.B_c
        short, long = (
            Sample(rows, n, self.work(config, variant, rows, n))
            for n in (keys, keys + 2 * config.B_c)
        )
        return short, long

    def work(
        self, config: Sm90ForwardKernelConfig, variant: Variant, seq_len_q: int, seq_len_k: int
    ) -> Work:
        """As block_range.cuh has it."""
        cluster_rows = config.B_r * config.cluster_size
        clusters = -(-seq_len_q // cluster_rows)
        tiles = clusters * config.cluster_size
        if not variant.causal:
            visits = tiles * -(-seq_len_k // config.B_c)
            return Work(tiles, visits, visits)

        def n_blocks(row_end: int) -> int:
            visible = min(row_end + seq_len_k - seq_len_q, seq_len_k)
            return max(1, -(-visible // config.B_c))

        loads, visited = 0, 0
        for first in range(0, tiles * config.B_r, WGMMA_M):  # the rows of each warpgroup
            blocks = n_blocks((first // cluster_rows + 1) * cluster_rows)
            unseen = blocks - n_blocks(first + WGMMA_M)
            visited += blocks - min(unseen, config.n_stages - 1)
            loads += blocks
        return Work(tiles, visited / config.n_warpgroups, loads / config.n_warpgroups)

    def shared_bytes(self, config: Sm90ForwardKernelConfig, launch: Launch) -> float:
        """Operands that wgmma reads, what TMA writes and reads, and the warps' own accesses. A
        multicast lands in each block of the cluster."""
        return (
            launch["wgmma_shared_bytes"]
            + config.cluster_size * launch.visits("tma_load_bytes")
            + launch.beside("tma_load_bytes")
            + launch["tma_store_bytes"]
            + SHARED_BYTES_PER_CYCLE * launch["shared_wavefronts"]
        )

    def exponentials_per_visit(self, config: Sm90ForwardKernelConfig) -> float:
        return config.B_r * config.B_c * (16 - config.fma_exponentials) / 16

    def compute_warps(self, config: Sm90ForwardKernelConfig) -> int:
        return config.n_warpgroups * _WARPS

    def n_units_of_work(self, config: Sm90ForwardKernelConfig) -> float:
        return fma_per_visit(config) / 1e6

    def bank_maps(self, config: Sm90ForwardKernelConfig) -> Sequence[BankMap]:
        """Of rows of Q and K, whose boxes are as wide as the widest swizzle that fits."""
        row = config.d_head * config.score_bytes
        row_bytes = next(width for width in (128, 64, 32) if row % width == 0)
        return [bank_map(row_bytes, swizzled=swizzled) for swizzled in (False, True)]

    def quantities(
        self, visit: Mapping[str, float], tile: Mapping[str, float], unit: str, scale: float
    ) -> dict[str, float]:
        return {
            f"bytes that wgmma reads of shared memory {unit}": scale * visit["wgmma_shared_bytes"],
            f"bytes that TMA loads {unit}": scale * visit["tma_load_bytes"],
            f"threads that wait at mbarriers {unit}": scale * visit["mbarrier_waits"],
            f"threads that arrive at mbarriers {unit}": scale * visit["mbarrier_arrivals"],
            f"turns passed at named barriers {unit}": scale * visit["named_barriers"],
            f"shuffles {unit}": scale * visit["shuffles"],
            "ldmatrix for Q a tile": tile["ldmatrix"],
            "shared-memory wavefronts of warps a tile": tile["shared_wavefronts"],
            "bytes that TMA stores a tile": tile["tma_store_bytes"],
            "bytes that warps store to global memory a tile": tile["global_store_bytes"],
        }


def wgmma_per_visit(config: Sm90ForwardKernelConfig) -> int:
    """Of a tile's warpgroups: the steps of Q K^T, and those of P V."""
    return config.n_warpgroups * (config.QK_steps + config.PV_steps)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
