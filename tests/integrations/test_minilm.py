"""A trained model of transformers on emulated kernels: embeddings of short sentences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.minilm import (
    PADDING_SIDES,
    SENTENCES,
    assert_embeddings_as_eager,
    load_model,
    tokens_of,
)

pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
integration = pytest.importorskip("flashsmith.integrations.transformers")


@pytest.fixture(scope="module")
def minilm() -> Any:
    return load_model()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("padding_side", PADDING_SIDES)
def test_sentence_embeddings_are_those_of_eager_attention(
    minilm: Any, padding_side: str, dtype: torch.dtype
) -> None:
    with torch.no_grad():
        assert_embeddings_as_eager(
            minilm, integration.register(), dtype, tokens_of(SENTENCES, padding_side)
        )
