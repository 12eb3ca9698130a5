"""Models with each kind of mask, with flashsmith's attention and with eager attention."""

from __future__ import annotations

import csv

import pytest
import torch

from support.paths import ROOT

transformers = pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
tools = pytest.importorskip("tools.transformers_sweep.sweep")
classes = pytest.importorskip("tools.transformers_sweep.classes")

# Each model's reason is behind it.
SAMPLE = (
    "llama LlamaModel",  # causal
    "mistral MistralModel",  # a window in all layers
    "gemma2 Gemma2Model",  # a window in some layers
    "phimoe PhimoeModel",  # a window that the layers do not know
    "qwen2_moe Qwen2MoeModel",
    "blt BltGlobalTransformer",
    "olmoe OlmoeModel",  # layers with a window that the mask lacks
    "splinter SplinterModel",  # layers without is_causal
    "bridgetower BridgeTowerModel",  # layers between towers that call themselves causal
    "phi4_multimodal Phi4MultimodalVisionModel",
    "nllb_moe NllbMoeDecoder",  # causal masks, in layers that say they are not causal
    "pegasus_x PegasusXDecoder",
    "bigbird_pegasus BigBirdPegasusDecoder",
    "informer InformerModel",  # lengths that change after the mask is made
    "doge DogeModel",  # masks that the model changes
    "t5gemma2 T5Gemma2Model",
    "deepseek_v4 DeepseekV4Model",
    "hy_v4 HYV4Model",  # selected keys
    "inkling2 Inkling2TextModel",  # a sink for each query
    "embedding_gemma2 EmbeddingGemma2Model",  # a window to either side
    "modernbert ModernBertModel",
    "llama4 Llama4TextModel",  # chunks
    "whisper WhisperDecoder",
    "bert BertModel",
    "t5 T5Model",  # a position bias
    "deepseek_v3 DeepseekV3Model",  # values of another d_head
)


@pytest.fixture(scope="module")
def found() -> dict[str, type]:
    return {f"{classes.family_of(each)} {each.__name__}": each for each in _of_sample()}


def _of_sample() -> list[type]:
    families = {name.split()[0] for name in SAMPLE}
    return list(classes.model_classes(families))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_agrees_with_eager_attention(name: str, found: dict[str, type]) -> None:
    torch.manual_seed(0)
    row = tools.sweep(found[name], set())
    assert row.result == "agrees", (row.result, row.cases, row.note)
    assert sum(outcome == "agrees" for outcome in row.cases.values()) >= 3


def test_attention_that_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, type]
) -> None:
    """The wrong attention has a window that is one key short."""
    calls = pytest.importorskip("flashsmith.integrations.transformers_calls")
    own = calls.attend_any_head

    def wrong(*tensors: torch.Tensor, **semantics: object) -> torch.Tensor:
        window = semantics.get("window_size", (-1, -1))
        assert isinstance(window, tuple)
        shorter = tuple(n - 1 if n > 0 else n for n in window)
        result: torch.Tensor = own(*tensors, **semantics | {"window_size": shorter})
        return result

    monkeypatch.setattr(calls, "attend_any_head", wrong)
    row = tools.sweep(found["mistral MistralModel"], set())
    assert row.result == "differs" and row.cases["no mask"] == "differs"
    assert tools.sweep(found["llama LlamaModel"], set()).result == "agrees"


def test_the_table_of_all_classes_has_none_that_differs() -> None:
    with (ROOT / "tools" / "transformers_sweep" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = [f"{row['family']} {row['class']}" for row in rows]
    assert len(names) > 1000 and len(set(names)) == len(names) and set(SAMPLE) <= set(names)
    results = {row["result"].partition(":")[0].split()[0] for row in rows}
    assert results <= {"agrees", "as", "refused", "cannot"}
    refused = [row for row in rows if row["result"] == "refused"]
    assert all("not supported" in row["note"] or "supported" in row["note"] for row in refused)
    assert sum(row["result"] in ("agrees", "refused") for row in rows) > 300
