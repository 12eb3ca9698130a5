"""The fields of a configuration of the sm90 family in words."""

from __future__ import annotations

from dataclasses import fields

from flashsmith.configs import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward import WGMMA_M
from flashsmith.report.family import Fact, value_text


def explain(config: Sm90ForwardKernelConfig) -> list[Fact]:
    """One fact for each field, in their order."""
    meanings = _tile(config) | _products(config) | _schedule(config) | _softmax(config)
    meanings |= _fp8(config)
    return [
        Fact(each.name, value_text(getattr(config, each.name)), meanings[each.name])
        for each in fields(config)
    ]


def _tile(config: Sm90ForwardKernelConfig) -> dict[str, str]:
    return {
        "dtype": f"{_in_16_bits(config)} are {config.dtype}; sums and softmax statistics are FP32.",
        "d_head": f"A row is {config.d_head} elements; Q K^T takes {config.QK_steps} "
        f"wgmma of a warpgroup, and O {config.d_head // 2} registers of a thread.",
        "B_r": f"A tile is {config.B_r} rows of Q, {WGMMA_M} for each warpgroup that computes.",
        "B_c": f"A block of K and V is {config.B_c} rows: N of the wgmma of Q K^T, and "
        f"{config.PV_steps} steps of P V. S takes {config.B_c // 2} registers of a thread.",
        "n_warpgroups": f"{config.n_warpgroups} warpgroups compute, and one loads: "
        f"{config.threads_per_block} threads a block.",
        "n_stages": f"{config.n_stages} blocks of K and as many of V are in shared memory at a "
        "time: so far the loading thread may be ahead.",
    }


def _products(config: Sm90ForwardKernelConfig) -> dict[str, str]:
    steps, held = config.QK_steps, config.Q_steps_in_registers
    if held == 0:
        Q = f"All {steps} steps of Q K^T read Q from shared memory, at every visit."
    else:
        which = "All" if held == steps else f"{held} of the"
        Q = (
            f"{which} {steps} steps of Q K^T take Q from registers, {4 * held} of a thread, loaded "
            "once a tile: wgmma reads less of shared memory."
        )
    return {
        "Q_steps_in_registers": Q,
        "overlap_softmax": "Q K^T of the next block runs while the softmax of this one does; S and "
        "P have registers of their own."
        if config.overlap_softmax
        else "One product after the other: a warpgroup's tensor cores idle during its softmax.",
        "ping_pong": "Warpgroups take turns to issue products, so that one's softmax runs under "
        "the other's products."
        if config.ping_pong
        else "Warpgroups issue products whenever they are ready.",
    }


def _schedule(config: Sm90ForwardKernelConfig) -> dict[str, str]:
    group = config.heads_per_group
    return {
        "persistent": "One block a multiprocessor works on tile after tile."
        if config.persistent
        else "A block works on one tile; the next block starts when it is done.",
        "dynamic_queue": "Blocks take their next tile from a queue in global memory: none waits "
        "for another's long tile."
        if config.dynamic_queue
        else "Which tiles a block works on is fixed.",
        "overlap_tiles": "A tile's last P V runs with the next tile's first Q K^T."
        if config.overlap_tiles
        else "A tile ends before the next begins.",
        "heads_per_group": f"Tiles go, longest first, through {group} heads at a time: the last "
        "wave is balanced, and K and V of these heads stay in L2."
        if group
        else "Tiles go head by head: K and V of few heads are in L2 at a time.",
        "cluster_size": f"{config.cluster_size} blocks on neighbouring rows of Q load each block "
        "of K and V together, by multicast: L2 is read less."
        if config.cluster_size > 1
        else "Every block loads K and V on its own.",
        "tma_store": "O leaves through shared memory by bulk copies, while the warps go on."
        if config.tma_store
        else "O leaves from registers, 16 bytes a thread at a time.",
    }


def _softmax(config: Sm90ForwardKernelConfig) -> dict[str, str]:
    lazy, polynomials = config.lazy_rescale_log2, config.fma_exponentials
    return {
        "lazy_rescale_log2": f"O is rescaled only where a row's maximum has grown by more than a "
        f"factor of 2^{lazy}."
        if lazy
        else "O is rescaled at every block.",
        "stale_maximum": "A new maximum is looked for only where a score exceeds the bound of the "
        "lazy rescale: half an instruction a score, and no exchange between lanes."
        if config.stale_maximum
        else "Every block's maximum is looked for, and exchanged between lanes.",
        "fma_exponentials": f"{polynomials} of 16 exponentials are polynomials on the FMA units."
        if polynomials
        else "All exponentials are computed by the special-function units.",
    }


def _in_16_bits(config: Sm90ForwardKernelConfig) -> str:
    if config.fp8_values:
        return "Elements of O"
    return "V and O" if config.fp8_scores else "Q, K, V and O"


def _fp8(config: Sm90ForwardKernelConfig) -> dict[str, str]:
    return {
        "fp8_scores": "Q and K have 8 bits: a wgmma sums over 32 numbers."
        if config.fp8_scores
        else "Q and K have 16 bits.",
        "fp8_values": "V has 8 bits, which three warps beside the loading one transpose; P becomes "
        "e4m3, its largest weight 2^8."
        if config.fp8_values
        else "V has 16 bits, and P, too.",
        "two_level": "Each block's P V is a sum of its own, which O gets in FP32: "
        f"{config.d_head // 2} more registers of a thread."
        if config.two_level
        else "O is summed up in the tensor cores' accumulators.",
        "long_turns": "A turn lasts until the exponentials begin."
        if config.long_turns
        else "A turn, if there are turns, ends when products are issued.",
    }
