"""Which lengths the kernels of a family serve, and what the rule takes for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from conftest import BASE
from flashsmith.configs import (
    DType,
    get_autotuning_kernel_configs,
    get_hopper_autotuning_kernel_configs,
)
from flashsmith.functional.rules import fits, rule_config
from hopper_kernels import LAST

TALL = replace(BASE, B_r=128, B_c=64, n_warps=8)
WIDE = replace(BASE, B_r=64, B_c=128)


@pytest.mark.parametrize(
    ("B_r", "B_c", "lengths"),
    [(64, 64, [64, 128, 192, 256, 320]), (128, 64, [128, 256]), (64, 128, [128, 256])],
)
def test_both_blocks_of_sm80_divide_the_length(B_r: int, B_c: int, lengths: list[int]) -> None:
    config = replace(BASE, B_r=B_r, B_c=B_c)
    assert [n for n in range(1, 321) if fits(config, n)] == lengths
    assert [n for n in range(1, 321) if fits(config, n, hopper=False)] == lengths


def test_sm80_serves_plain_attention_alone() -> None:
    for config in (BASE, TALL, WIDE):
        assert fits(config, 256) and not fits(config, 256, plain=False)


def test_sm90_serves_everything_on_its_gpu() -> None:
    for length in (1, 63, 64, 65, 1000):
        for plain in (False, True):
            assert fits(LAST, length, hopper=True, plain=plain)
            assert not fits(LAST, length, hopper=False, plain=plain)


def test_the_rule_takes_tiles_that_the_tuner_tries() -> None:
    """Apart from the number of stages. What the rule takes was measured beside its neighbours."""
    tried = {replace(cfg, n_stages=2) for cfg in get_hopper_autotuning_kernel_configs()}
    tried_sm80 = get_autotuning_kernel_configs(d_heads=(64, 128))
    for dtype in DType:
        for d_head in (64, 96, 128, 192, 256):
            rule = rule_config(dtype, d_head, 4096, hopper=True)
            assert not rule.problems() and replace(rule, n_stages=2) in tried, rule
        for d_head, length in product((64, 128), (64, 128, 192)):
            assert rule_config(dtype, d_head, length) in tried_sm80
