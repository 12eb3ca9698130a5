"""The backward kernels that the tests run: each mechanism of each family at least once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle

from flashsmith.configs import (
    CAUSAL,
    FULL,
    BackwardKernelConfig,
    DType,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.configs.family import Family
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import D_HEADS, BackwardWorkload
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from support.samples import covering

BAND = Variant(causal=True, window=True)
VARIANTS = (
    *(FULL, CAUSAL, BAND),
    *map(Variant.from_name, ("softcap", "bias", "causal+varlen", "causal+dropout")),
    *MIXED_VARIANTS,
)
# No heuristic chooses these: other numbers of stages and warps, two warpgroups without ping-pong,
# persistent blocks with and without turns at dQ, and no clusters.
VARIED = [
    parse_kernel_name_into_config(name)
    for name in (
        "(FP16, 64, 64, 64, 4): backward+stages_2",
        "(BF16, 96, 64, 32, 4): backward+stages_2+split",
        "(FP16, 64, 128, 64, 8): backward+stages_1",
        "(FP16, 64, 64, 128, 8): backward+sums+stages_1",
        "(BF16, 64, 64, 64, 4): backward+sums+stages_1+groups_2",
        "(FP16, 96, 64, 64, 8): backward+sums+stages_2+groups_2",
        "(FP16, 64, 64, 128, 2): backward+wgmma+q_stages_2+do_stages_1",
        "(FP16, 64, 64, 192, 3): backward+wgmma+q_stages_3+do_stages_3+turns_1+persistent"
        "+skip_unseen",
        "(BF16, 96, 64, 128, 2): backward+wgmma+q_stages_1+do_stages_2+v_regs_3+persistent"
        "+split_groups",
        "(FP16, 128, 64, 128, 2): backward+wgmma+q_stages_3+do_stages_2+v_regs_4+turns_2"
        "+persistent+skip_unseen",
        "(BF16, 128, 64, 128, 2): backward+wgmma+q_stages_3+do_stages_2+v_regs_4+turns_2"
        "+persistent+in_order+skip_unseen+split_groups",
        "(FP16, 192, 64, 96, 3): backward+wgmma+q_stages_2+do_stages_1+persistent",
        "(BF16, 192, 64, 96, 3): backward+wgmma+q_stages_2+do_stages_1+persistent+in_order",
        "(FP16, 192, 64, 64, 2): backward+wgmma+split+k_stages_2+v_stages_1+q_stages_2+do_stages_1",
    )
]

_LONG = 8192  # at this sequence length, the heuristic does not order the sums of dQ


def _heuristic(
    family: Family[BackwardWorkload, BackwardKernelConfig],
) -> list[BackwardKernelConfig]:
    """Returns the heuristic's choice for every d_head of a family, with alternating dtypes."""
    kinds = zip(D_HEADS, cycle((DType.BF16, DType.FP16)))
    return [
        family.heuristic(BackwardWorkload.square(dtype, d_head, _LONG))
        for d_head, dtype in kinds
        if d_head in family.d_heads
    ]


def name_of(config: BackwardKernelConfig) -> str:
    """Returns the family's name, with the scheme, whether warpgroups share keys, and the order of
    dQ's sums if they vary."""
    sharing = "sharing keys" if getattr(config, "shares_keys", False) else ""
    order = "in order" if getattr(config, "dQ_in_order", False) else ""
    return " ".join(filter(None, (config.family, config.scheme, sharing, order)))


_OF_FAMILIES = [list(_heuristic(family)) for family in BACKWARD.families]
_OF_FAMILIES += [[cfg.made_deterministic() for cfg in each] for each in _OF_FAMILIES]
CONFIGS = list(dict.fromkeys([*(cfg for each in _OF_FAMILIES for cfg in each), *VARIED]))
# One kernel of each family in BF16, for every variant.
PLAIN = {name_of(each[0]): each[0].for_dtype(DType.BF16) for each in _OF_FAMILIES}
OF_PLAIN = [
    KernelId(cfg, variant)
    for cfg in PLAIN.values()
    for variant in VARIANTS
    if cfg.serves_variant(variant)
]


def _has(kernel: KernelId) -> Iterator[object]:
    """Yields the configuration, and each of its knobs with each feature."""
    values = asdict(kernel.variant).items()
    yield kernel.config
    for knob in asdict(kernel.config).items():
        yield from ((name_of(kernel.config), knob, name) for name, value in values if value)


_OTHERS = [
    KernelId(cfg, variant)
    for cfg in CONFIGS
    for variant in VARIANTS
    if cfg not in PLAIN.values() and cfg.serves_variant(variant)
]
KERNELS = [*OF_PLAIN, *covering(_OTHERS, _has)]
