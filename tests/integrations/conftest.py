"""Attention by its reference in place of kernels, where a test is about what calls it."""

from __future__ import annotations

import pytest

from flashsmith.integrations import torch_library
from support.attention import attention_by_reference


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the integrations compute in plain torch."""
    monkeypatch.setattr(torch_library, "attention", attention_by_reference)
