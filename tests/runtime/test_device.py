"""The check of a GPU before anything runs on it."""

from __future__ import annotations

import pytest
import torch

from flashsmith.runtime.device import gpu_answers


def test_a_gpu_that_has_failed_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert not gpu_answers()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert gpu_answers()
