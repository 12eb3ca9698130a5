"""Names that changed are read for one more release, with a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

import flashsmith.reference
import flashsmith.runtime
from flashsmith.configs import (
    FULL,
    Variant,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)

CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"


def test_a_kernel_name_with_the_former_word_is_read() -> None:
    today = parse_kernel_name_into_instance(f"{CONFIG} causal+varlen")
    with pytest.warns(DeprecationWarning, match="'ragged' is called 'varlen' now"):
        assert parse_kernel_name_into_instance(f"{CONFIG} causal+ragged") == today
    assert today.name.endswith(" causal+varlen")


def test_a_field_is_taken_and_given_by_its_former_name() -> None:
    with pytest.warns(DeprecationWarning, match="'ragged' is called 'varlen' now"):
        variant = Variant(ragged=True)  # type: ignore[call-arg]
    assert variant == Variant(varlen=True)
    with pytest.warns(DeprecationWarning):
        assert variant.ragged  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning):
        assert replace(FULL, ragged=True) == variant  # type: ignore[call-arg]


FP8 = "(BF16, 128, 128, 128, 2): wgmma+stages_2+overlap+ping_pong+persistent+fp8_scores"
DECODE = "(BF16, 128, 16, 64, 4): decode+fp8_cache"
FORMER = [
    (f"{FP8}+{{}}", "long_turns", "ping_pong_until_exp"),
    (f"{DECODE}+{{}}+stages_4+blocks_2", "token_scales", "per_token_scale"),
]


@pytest.mark.parametrize(("name", "former", "today"), FORMER)
def test_a_configuration_is_read_by_the_former_name_of_a_field(
    name: str, former: str, today: str
) -> None:
    config = parse_kernel_name_into_config(name.format(today))
    with pytest.warns(DeprecationWarning, match=f"'{former}' is called '{today}' now"):
        assert parse_kernel_name_into_config(name.format(former)) == config
    with pytest.warns(DeprecationWarning):
        assert getattr(config, former) is getattr(config, today) is True
    with pytest.warns(DeprecationWarning):
        assert not getattr(replace(config, **{former: False}), today)


def test_classes_are_there_by_their_former_names() -> None:
    with pytest.warns(DeprecationWarning, match="'Extras' is called 'CallArgs' now"):
        assert flashsmith.runtime.Extras is flashsmith.runtime.CallArgs
    with pytest.warns(DeprecationWarning, match="'Gradients' is called 'ReferenceGradients' now"):
        assert flashsmith.reference.Gradients is flashsmith.reference.ReferenceGradients
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        _ = flashsmith.runtime.Other
