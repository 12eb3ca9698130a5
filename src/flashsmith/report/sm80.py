"""The sm80 family: mma.sync, ldmatrix and cp.async, a thread block for each tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from flashsmith.configs import FlashForwardKernelConfig, Variant
from flashsmith.configs.sm80.forward import MMA_K, MMA_M
from flashsmith.dtype import ELEMENT_BYTES
from flashsmith.gpus import WARP_SIZE
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
    value_text,
)

_MMA_N = 8
_SAMPLED_LENGTHS = (256, 512)  # multiples of every B_r and B_c


class Sm80(Family[FlashForwardKernelConfig]):
    name = "sm80"
    copies = "cp.async"
    unit_of_work = "1000 mma"
    reader = "ldmatrix"

    def explain(self, config: FlashForwardKernelConfig) -> list[Fact]:
        meanings = _tiles(config) | _copies(config) | _fragments(config)
        return [
            Fact(each.name, value_text(getattr(config, each.name)), meanings[each.name])
            for each in fields(config)
        ]

    def shared_memory(self, config: FlashForwardKernelConfig) -> list[Region]:
        row = config.d_head * ELEMENT_BYTES
        return [
            Region("Q", config.B_r * row, "the tile's rows of Q; O leaves through it"),
            Region("K", config.B_c * row, "one block of K"),
            Region("V", config.B_c * row, "one block of V"),
        ]

    def roles(self, config: FlashForwardKernelConfig, registers: int) -> list[Role]:
        rows = config.B_r // config.n_warps
        holds = {
            "O": rows * config.d_head // WARP_SIZE,
            "S": rows * config.B_c // WARP_SIZE,
            "Q": 0 if config.Q_mma_load_K_tiles else rows * config.d_head // (2 * WARP_SIZE),
        }
        return [Role("every warp", config.n_warps, registers, _nonzero(holds))]

    def samples(self, config: FlashForwardKernelConfig, variant: Variant) -> tuple[Sample, Sample]:
        short, long = (
            Sample(length, length, self.work(config, variant, length, length))
            for length in _SAMPLED_LENGTHS
        )
        return short, long

    def work(
        self, config: FlashForwardKernelConfig, variant: Variant, seq_len_q: int, seq_len_k: int
    ) -> Work:
        tiles = -(-seq_len_q // config.B_r)
        visits = 0
        for tile in range(tiles):
            seen = seq_len_k
            if variant.causal:  # by the last row of the tile
                seen = min(max((tile + 1) * config.B_r + seq_len_k - seq_len_q, 0), seq_len_k)
            visits += -(-seen // config.B_c)
        return Work(tiles, visits, visits)

    def shared_bytes(self, config: FlashForwardKernelConfig, launch: Launch) -> float:
        return launch["shared_wavefronts"] * SHARED_BYTES_PER_CYCLE

    def exponentials_per_visit(self, config: FlashForwardKernelConfig) -> float:
        return config.B_r * config.B_c

    def compute_warps(self, config: FlashForwardKernelConfig) -> int:
        return config.n_warps

    def n_units_of_work(self, config: FlashForwardKernelConfig) -> float:
        return mma_per_visit(config) / 1000

    def bank_maps(self, config: FlashForwardKernelConfig) -> Sequence[BankMap]:
        row_bytes = config.d_head * ELEMENT_BYTES
        return [bank_map(row_bytes, swizzled=swizzled) for swizzled in (False, True)]

    def quantities(
        self, visit: Mapping[str, float], tile: Mapping[str, float], unit: str, scale: float
    ) -> dict[str, float]:
        conflicts = visit["shared_wavefronts"] - visit["shared_wavefronts_ideal"]
        return {
            f"shared-memory wavefronts {unit}": scale * visit["shared_wavefronts"],
            "of these bank conflicts": scale * conflicts,
            f"ldmatrix {unit}": scale * visit["ldmatrix"],
            f"shuffles {unit}": scale * visit["shuffles"],
            f"barriers {unit}": scale * visit["barriers"],
            f"cp.async {unit}": scale * visit["cp_async"],
            "mma with copies in flight, %": 100 * visit["cp_async_in_flight_mma"] / visit["mma"],
        }


def mma_per_visit(config: FlashForwardKernelConfig) -> int:
    return fma_per_visit(config) // (MMA_M * _MMA_N * MMA_K)


def _nonzero(registers: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in registers.items() if n}


def _tiles(cfg: FlashForwardKernelConfig) -> dict[str, str]:
    rows = cfg.B_r // cfg.n_warps
    m_tiles = rows // MMA_M
    uses = "once" if m_tiles == 1 else f"for {m_tiles} mma tiles"
    return {
        "dtype": f"Q, K, V and O are {cfg.dtype}; sums and softmax statistics are FP32.",
        "d_head": f"A row is {cfg.d_head} elements; Q K^T takes {cfg.d_head // MMA_K} steps of "
        f"{MMA_K} along it, and O {rows * cfg.d_head // WARP_SIZE} registers a thread.",
        "B_r": f"A thread block owns {cfg.B_r} rows of Q, a warp {rows}: it uses every fragment of "
        f"K and V that it loads {uses}.",
        "B_c": f"{cfg.B_c} rows of K and of V are in shared memory at a time; S takes "
        f"{rows * cfg.B_c // WARP_SIZE} registers a thread.",
        "n_warps": f"{cfg.n_warps} warps, {cfg.threads_per_block} threads a block; each has rows "
        "of its own and loads all of K and V from shared memory.",
    }


def _copies(cfg: FlashForwardKernelConfig) -> dict[str, str]:
    return {
        "async_copy": "Global to shared memory with cp.async: no registers, and the warp goes on."
        if cfg.async_copy
        else "Global to shared memory through registers: the warp waits for the data.",
        "eager_load_blocks": "The next block's load starts at the barrier that frees its buffer, "
        "and lands during the mma before its use."
        if cfg.eager_load_blocks
        else "A block is loaded right before its use, and waited for.",
        "swizzled": "16-byte chunk c of row r lies at c xor (r mod 8), so that the eight rows of "
        "an ldmatrix phase lie in different banks."
        if cfg.swizzled
        else "Rows lie one below the other: the eight rows of an ldmatrix phase begin in the same "
        "bank, and queue up for it.",
    }


def _fragments(cfg: FlashForwardKernelConfig) -> dict[str, str]:
    steps = {"Q": cfg.d_head // MMA_K, "K": cfg.d_head // MMA_K, "V": cfg.B_c // MMA_K}
    meanings = {
        f"{operand}_mma_load_K_tiles": _load_meaning(
            operand, getattr(cfg, f"{operand}_mma_load_K_tiles"), steps[operand]
        )
        for operand in steps
    }
    return meanings | {
        "mma_double_buffer_loads": "The next fragments are loaded before the mma of these."
        if cfg.mma_double_buffer_loads
        else "Fragments are loaded, then used; the next ones after that.",
        "optimized_softmax": "The scale is folded into the exponential, row sums are reduced "
        "across lanes once at the end, O is rescaled only when a row maximum has grown by 2^8."
        if cfg.optimized_softmax
        else "Scores are scaled, row sums reduced across lanes, and O rescaled at every visit.",
    }


def _load_meaning(operand: str, count: int, steps: int) -> str:
    if count:
        return f"{count} of the {steps} fragments of {operand} are loaded at a time."
    if operand == "Q":
        return f"All {steps} fragments of Q are loaded once, and stay in registers."
    return f"All {steps} fragments of {operand} are loaded at once, at every visit."
