"""Which lengths the kernels of a family serve, and what the rule takes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from conftest import BASE
from flashsmith.configs import (
    DType,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.families import (
    FAMILIES,
    SM80_FORWARD,
    SM90_FORWARD,
    Family,
    families_for,
    families_on,
    rule_config,
    serves,
)
from sm90_kernels import LAST

TALL = replace(BASE, B_r=128, B_c=64, n_warps=8)
WIDE = replace(BASE, B_r=64, B_c=128)


@pytest.mark.parametrize(
    ("B_r", "B_c", "lengths"),
    [(64, 64, [64, 128, 192, 256, 320]), (128, 64, [128, 256]), (64, 128, [128, 256])],
)
def test_both_blocks_of_sm80_divide_the_length(B_r: int, B_c: int, lengths: list[int]) -> None:
    config = replace(BASE, B_r=B_r, B_c=B_c)
    for families in (FAMILIES, (SM80_FORWARD,)):
        assert [n for n in range(1, 321) if serves(config, families, n)] == lengths
    assert not serves(config, (SM90_FORWARD,), 256)


def test_sm80_serves_plain_attention_alone() -> None:
    for config in (BASE, TALL, WIDE):
        assert serves(config, FAMILIES, 256) and not serves(config, FAMILIES, 256, plain=False)


def test_sm90_serves_everything_on_its_gpu() -> None:
    for length in (1, 63, 64, 65, 1000):
        for plain in (False, True):
            assert serves(LAST, FAMILIES, length, plain=plain)
            assert not serves(LAST, (SM80_FORWARD,), length, plain=plain)


def test_families_on_a_gpu_come_newest_first_and_on_the_emulator_plainest_first() -> None:
    assert families_on(None) == (SM80_FORWARD, SM90_FORWARD)
    assert families_on((9, 0)) == (SM90_FORWARD, SM80_FORWARD)
    for capability in ((8, 0), (8, 9), (10, 0), (12, 1)):
        assert families_on(capability) == (SM80_FORWARD,)
    assert families_on((7, 5)) == ()
    assert families_for(None) == families_on(None)
    assert families_for("NVIDIA H200") == families_for("sm_90a") == families_on((9, 0))
    assert families_for("a card of tomorrow", (9, 0)) == families_on((9, 0))  # by what it can do
    with pytest.raises(ValueError, match="gpu 'a card of tomorrow' is not known"):
        families_for("a card of tomorrow")


def test_the_rule_is_of_the_first_family_that_takes_the_problem() -> None:
    def family(families: Sequence[Family], d_head: int, length: int, plain: bool = True) -> str:
        return rule_config(families, DType.BF16, d_head, length, plain=plain).family

    emulator, h100, a100 = families_on(None), families_on((9, 0)), families_on((8, 0))
    assert family(emulator, 128, 256) == "sm80"
    assert family(emulator, 128, 256, plain=False) == "sm90"
    assert family(emulator, 128, 100) == family(emulator, 96, 256) == "sm90"
    assert family(h100, 128, 256) == family(h100, 64, 1) == "sm90"
    assert family(a100, 128, 256) == "sm80"
    with pytest.raises(ValueError, match="d_head 80; supported are 64, 96, 128, 192, 256"):
        family(emulator, 80, 256)
    with pytest.raises(ValueError, match="d_head 80; supported are 64, 96, 128, 192, 256"):
        family(h100, 80, 256)
    with pytest.raises(ValueError, match="sequence length 100; it must be a multiple of 64"):
        family(a100, 128, 100)
    with pytest.raises(ValueError, match="no kernel of the sm80 family takes k of another shape"):
        family(a100, 128, 256, plain=False)


def test_the_rule_takes_tiles_that_the_tuner_tries() -> None:
    """Apart from the number of stages. What the rule takes was measured beside its neighbours."""
    tried = {replace(cfg, n_stages=2) for cfg in get_sm90_autotuning_kernel_configs()}
    tried_sm80 = get_autotuning_kernel_configs(d_heads=(64, 128))
    for dtype in DType:
        for d_head in (64, 96, 128, 192, 256):
            rule = SM90_FORWARD.rule(dtype, d_head, 4096)
            assert not rule.problems() and replace(rule, n_stages=2) in tried, rule
        for d_head, length in product((64, 128), (64, 128, 192)):
            assert SM80_FORWARD.rule(dtype, d_head, length) in tried_sm80
