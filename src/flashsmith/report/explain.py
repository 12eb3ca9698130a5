"""A configuration in words, field by field, with the numbers that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flashsmith.configs import FlashForwardKernelConfig, ForwardKernelConfig
from flashsmith.configs.gpu import WARP_SIZE
from flashsmith.configs.legality import MMA_K, MMA_M


@dataclass(frozen=True)
class Fact:
    field: str
    value: str
    meaning: str


def require_explained(cfg: ForwardKernelConfig) -> FlashForwardKernelConfig:
    """The configuration, if its family can be explained.

    Raises:
        ValueError: It is not of the sm80 family.
    """
    if not isinstance(cfg, FlashForwardKernelConfig):
        raise ValueError(
            f"kernel {cfg} is of the sm90 family; the report explains kernels of the sm80 family"
        )
    return cfg


def explain(cfg: FlashForwardKernelConfig) -> list[Fact]:
    """One fact for each field of the configuration, in their order."""
    meanings = _tiles(cfg) | _copies(cfg) | _fragments(cfg)
    return [
        Fact(each.name, _value(getattr(cfg, each.name)), meanings[each.name])
        for each in fields(cfg)
    ]


def changed_fields(a: ForwardKernelConfig, b: ForwardKernelConfig) -> list[str]:
    """`swizzled off to on`, for every field in which two of a family differ."""
    return [
        f"{each.name} {_value(getattr(a, each.name))} to {_value(getattr(b, each.name))}"
        for each in fields(a)
        if getattr(a, each.name) != getattr(b, each.name)
    ]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


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
