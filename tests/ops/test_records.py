"""The records of a call hold values that the caller cannot change, and refuse bad ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.ops import first_use
from flashsmith.ops.spec import AttentionSpec, spec_of

Q = torch.randn(1, 20, 2, 64).half()
INT32 = {"dtype": torch.int32}


def test_functions_are_traced_once_and_leave_the_record() -> None:
    calls = []

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        calls.append(score)
        return score * 2

    keywords = {"score_mod": score_mod, "softcap": 3.0}
    found = spec_of(Q, Q, keywords)
    assert len(calls) == 1
    assert found.score > 0 and found.softcap == 3.0
    assert found == AttentionSpec(softcap=3.0, score=found.score)
    assert keywords["score_mod"] is score_mod  # the caller's dict is unchanged


@pytest.mark.parametrize("call", [flashsmith.forward, flashsmith.backward])
def test_a_keyword_that_is_none_is_named(call: Any) -> None:
    tensors = [Q] * 4 if call is flashsmith.forward else [Q] * 5 + [torch.zeros(1, 2, 20)]
    config = flashsmith.configs.get_kernel_progression_configs()[0]
    first = config if call is flashsmith.forward else None
    with pytest.raises(TypeError, match=r"caual is no keyword here; known are alibi_slopes, .*"):
        call(first, *tensors, caual=True)


WRONG: dict[str, Any] = {
    "alibi_slopes": torch.ones(3),
    "sinks": torch.ones(2, 2),
    "bias": torch.ones(1, 2, 20, 19).half(),
    "cu_seqlens_q": torch.zeros(2, 2, **INT32),
    "seqused_q": torch.zeros(2, **INT32),
    "seqused_k": torch.zeros(1),
    "rng_state": torch.zeros(3, dtype=torch.int64),
    "k": torch.randn(1, 20, 2, 64),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_a_kernel_is_built(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(first_use, "announce_build", fail)
    given: dict[str, Any] = {"q": Q, "k": Q, "v": Q, name: WRONG[name]}
    if name == "rng_state":
        given["dropout_p"] = 0.5
    if name == "cu_seqlens_q":
        given["q"] = Q[0]
    with pytest.raises((TypeError, ValueError), match=rf"{name} "):
        flashsmith.attention(**given, softcap=0.123)


def test_a_wrong_lse_of_a_backward_is_said_before_a_kernel_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_use, "announce_build", None)
    with pytest.raises(ValueError, match=r"lse has shape \(1, 2, 19\); .* = \(1, 2, 20\)"):
        flashsmith.backward(None, Q, Q, Q, Q, Q, torch.zeros(1, 2, 19), softcap=0.123)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"deterministic": "n"}, TypeError, "deterministic is 'n'"),
        ({"softcap": torch.ones(2)}, TypeError, "softcap is a Tensor"),
        ({"max_seqlen_q": 4}, ValueError, "max_seqlen_q is 4, but a sequence has 20 rows"),
        ({"window_size": torch.tensor([1, 2])}, TypeError, "window_size is tensor"),
        ({"top_left": 0}, TypeError, "top_left is 0"),
        ({"rng_state": torch.zeros(2)}, TypeError, "rng_state has dtype float32"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nothing_is_taken_in_silence(keywords: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        flashsmith.attention(Q, Q, Q, **keywords)


@pytest.mark.parametrize(("queries", "batch"), [(0, 1), (20, 0), (0, 0)])
def test_a_bias_for_all_keys_of_nothing(queries: int, batch: int) -> None:
    q, k = Q[:batch, :queries], Q[:batch]
    o = flashsmith.attention(q, k, k, bias=torch.zeros(batch, 2, queries, 1).half())
    assert isinstance(o, torch.Tensor) and o.shape == q.shape


def test_a_saved_program_is_loaded_by_a_new_process(tmp_path: Any) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> Any:
            return flashsmith.attention(q, q, q, causal=True)

    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Attention(), (Q,)), path)
    code = f"import torch, flashsmith.ops; torch.export.load({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
