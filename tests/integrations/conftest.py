"""Attention by its reference in place of kernels, where a test is about what calls it."""

from __future__ import annotations

import pytest
from tools.transformers_sweep.reference import decode_by_reference

from support.attention import attention_by_reference, replace_attention


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the integrations compute in plain torch."""
    replace_attention(monkeypatch, attention_by_reference)


@pytest.fixture
def steps_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has models that generate compute in plain torch where they decode."""
    monkeypatch.setattr("flashsmith.integrations.heads.run_decode", decode_by_reference)
