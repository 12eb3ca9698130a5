"""The kernels of the sm90 family that the tests run."""

from __future__ import annotations

from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_config,
)
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload

PROGRESSION = get_sm90_kernel_progression_configs()
LAST = PROGRESSION[-1]
# `attention` chooses these: every d_head and dtype.
HEURISTIC = [
    SM90_FORWARD.heuristic(Workload.square(dtype, d_head, 4096))
    for d_head in SM90_FORWARD.d_heads
    for dtype in DType
]
# These are the ends of the space, and combinations that neither of the others has.
VARIED = [
    parse_kernel_name_into_config(name)
    for name in (
        "(FP16, 64, 64, 64, 1): wgmma+stages_1",
        "(BF16, 64, 256, 64, 4): wgmma+stages_2+overlap+ping_pong+persistent+tiles+tma_store"
        "+skip_unseen",
        "(BF16, 64, 192, 16, 3): wgmma+stages_8+overlap+persistent+queue+heads_1+tma_store",
        "(FP16, 96, 64, 48, 1): wgmma+stages_2+q_regs_6+overlap+persistent+queue+lazy_8+tma_store",
        "(FP16, 128, 128, 96, 2): "
        "wgmma+stages_3+q_regs_1+overlap+ping_pong+persistent+queue+tiles+heads_4+lazy_4"
        "+skip_unseen",
        "(BF16, 128, 128, 128, 2): wgmma+stages_2+overlap+lazy_8+fma_exp_4",
        "(FP16, 192, 128, 64, 2): wgmma+stages_2+persistent+heads_2+lazy_1+tma_store",
        "(BF16, 256, 128, 16, 2): wgmma+stages_8+persistent+fma_exp_16",
        "(FP16, 96, 64, 48, 1): wgmma+stages_1+q_regs_5+cluster_2",
        "(BF16, 128, 128, 64, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+tiles"
        "+heads_2+cluster_2+lazy_8+stale+tma_store",
    )
]
# These have FP8 Q and K, some FP8 V: rows of one swizzle and of several, and all kinds of steps.
FP8 = [
    parse_kernel_name_into_config(name)
    for name in (
        "(BF16, 64, 64, 64, 1): wgmma+stages_1+fp8_scores",
        "(FP16, 96, 64, 32, 1): wgmma+stages_2+q_regs_3+overlap+persistent+queue+tiles+lazy_4+stale"
        "+tma_store+fp8_scores",
        "(BF16, 256, 128, 32, 2): wgmma+stages_2+q_regs_3+overlap+ping_pong+persistent+tiles"
        "+heads_2+cluster_2+lazy_8+stale+tma_store+fp8_scores",
        "(BF16, 64, 64, 32, 1): wgmma+stages_1+fp8_scores+fp8_values",
        "(FP16, 96, 128, 64, 2): wgmma+stages_2+q_regs_3+overlap+persistent+tiles+lazy_4"
        "+fp8_scores+fp8_values+two_level+skip_unseen",
        "(BF16, 128, 128, 128, 2): wgmma+stages_2+overlap+ping_pong+persistent+queue+tiles"
        "+tma_store+fp8_scores+fp8_values+two_level+ping_pong_until_exp",
        "(FP16, 128, 64, 96, 1): wgmma+stages_3+persistent+queue+lazy_1+fma_exp_4+tma_store"
        "+fp8_scores+fp8_values+two_level",
        "(BF16, 192, 128, 96, 2): wgmma+stages_2+overlap+ping_pong+lazy_8+fp8_scores+fp8_values",
        "(FP16, 256, 64, 64, 1): wgmma+stages_2+q_regs_8+overlap+persistent+queue+tiles+lazy_2"
        "+tma_store+fp8_scores+fp8_values",
    )
]
# PACKED has kernels that pack heads: their O leaves in one round of boxes, in two, and from
# registers.
PACKED = [
    parse_kernel_name_into_config(f"{name}+packed_heads")
    for name in (
        "(BF16, 64, 128, 128, 2): wgmma+stages_2+q_regs_4+overlap+ping_pong+persistent+queue+tiles"
        "+heads_2+lazy_8+stale+tma_store",
        "(FP16, 192, 64, 48, 1): wgmma+stages_2+overlap+heads_2+lazy_4+stale+tma_store",
        "(FP16, 64, 192, 48, 3): wgmma+stages_3+overlap+ping_pong+persistent+tiles+lazy_8"
        "+tma_store+skip_unseen",
        "(BF16, 96, 128, 64, 2): wgmma+stages_2+persistent+cluster_2",
    )
]
CONFIGS: list[ForwardKernelConfig] = list(
    dict.fromkeys([*PROGRESSION, *HEURISTIC, *VARIED, *FP8, *PACKED])
)
SOME = [PROGRESSION[0], LAST, *(VARIED[i] for i in (1, 4, 5, 7, 9))]
SYNCHRONISED = [
    PROGRESSION[0],
    PROGRESSION[1],
    LAST,
    HEURISTIC[0],
    *(VARIED[i] for i in (0, 1, 6, 7, 8, 9)),
    *(FP8[i] for i in (3, 5, 6)),
    *PACKED[:2],
]
