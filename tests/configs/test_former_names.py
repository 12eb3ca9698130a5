"""Names that changed are read for one more release, with a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsmith.configs import FULL, Variant, parse_kernel_name_into_instance

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
