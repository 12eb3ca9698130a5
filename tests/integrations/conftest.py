"""The reference replaces attention kernels where a test is about their callers."""

from __future__ import annotations

import pytest
from tools.transformers_sweep.reference import decode_by_reference

from support.attention import attention_by_reference, replace_attention


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the integrations compute attention in plain torch."""
    replace_attention(monkeypatch, attention_by_reference)


@pytest.fixture
def steps_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the decode steps of models that generate compute in plain torch."""
    monkeypatch.setattr("flashsmith.integrations.heads.run_decode", decode_by_reference)
