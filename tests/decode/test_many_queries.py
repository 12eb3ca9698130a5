"""Many queries go to the forward kernels, whose results equal split-KV's up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.ops import decode_calls
from flashsmith.ops.kv_cache import KVCache
from support.decoding import PLAIN, Placed, in_pages, in_slots, requests
from support.fp8_caches import FP8

HEADS, LENGTHS, N_Q = (8, 1), (90, 64, 7, 0), 33  # 264 packed rows for a KV head
WITH = {
    "full": {},
    "causal": {"causal": True},
    "softcap, sinks": {"causal": True, "softcap": 2.0, "sinks": torch.linspace(-1, 1, 8)},
    "window, alibi": {"window_size": (20, 3), "alibi_slopes": torch.linspace(0, 0.2, 8)},
}
Given = dict[str, Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[KVCache]:
    """Returns the list of KV caches whose calls the forward served."""
    found: list[KVCache] = []
    run = decode_calls.run_over_cache

    def noted(q: torch.Tensor, cache: KVCache, *arguments: Any) -> Any:
        found.append(cache)
        return run(q, cache, *arguments)

    monkeypatch.setattr(decode_calls, "run_over_cache", noted)
    return found


def given(place: Callable[..., Placed] = in_slots, n_q: int = N_Q, **keywords: Any) -> Given:
    """Returns the arguments of a call."""
    torch.manual_seed(0)
    asked = requests(PLAIN, LENGTHS, n_q, HEADS)
    placed = place(asked)
    return {
        "q": asked.q, "k_cache": placed.k, "v_cache": placed.v, "cache_seqlens": placed.seqlens,
        "block_table": placed.block_table, "return_lse": True, **keywords,
    }  # fmt: skip


def pages(asked: Any) -> Placed:
    return in_pages(asked, 16)


def assert_alike(call: Given, **others: Any) -> Any:
    """Checks against split-KV kernels, which a fixed number of splits selects."""
    expected = flashsmith.decode(None, **(call | others | {"splits": 1}))
    found = flashsmith.decode(None, **call)
    torch.testing.assert_close(found[0], expected[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-4)
    return found


@pytest.mark.parametrize(
    ("place", "what"),
    [(in_slots, "causal"), (in_slots, "softcap, sinks"), (pages, "full"),
     (pages, "window, alibi")],
)  # fmt: skip
def test_the_forward_serves_them(
    place: Callable[..., Placed], what: str, served: list[KVCache]
) -> None:
    assert_alike(given(place, **WITH[what]))
    assert len(served) == 1


def test_lengths_may_be_left_out(served: list[KVCache]) -> None:
    for place in (in_slots, pages):
        call = given(place, causal=True)
        for name in ("k_cache", "v_cache"):
            call[name] = call[name].nan_to_num(0.5)
        table = call["block_table"]
        call |= {"cache_seqlens": None, "block_table": None if table is None else table.clamp(0)}
        assert_alike(call)
    assert len(served) == 2


def test_results_are_written_where_they_are_wanted(served: list[KVCache]) -> None:
    for place in (in_slots, pages):
        call = given(place, causal=True)
        out = torch.empty_like(call["q"])
        o, _ = assert_alike(call | {"out": out}, out=None)
        assert o.data_ptr() == out.data_ptr() and o.shape == out.shape
        wide = torch.empty(*out.shape[:-1], 128, dtype=out.dtype)[..., :64]
        assert flashsmith.decode(None, **(call | {"out": wide}))[0].data_ptr() == wide.data_ptr()
        torch.testing.assert_close(wide, out, rtol=0.02, atol=0.02)
    assert len(served) == 2  # the forward does not serve strided rows of o


@pytest.mark.parametrize("rotary", [False, True])
def test_new_keys_are_seen(rotary: bool, served: list[KVCache]) -> None:
    call = given(causal=True)
    new = {f"{name}_new": torch.randn(4, 2, 1, 64).bfloat16() for name in "kv"}
    if rotary:
        angles = torch.rand(call["k_cache"].shape[1], 16)
        new |= {"rotary_cos": angles.cos().bfloat16(), "rotary_sin": angles.sin().bfloat16()}
    caches = [{n: call[n].clone() for n in ("k_cache", "v_cache")} for _ in range(2)]
    assert_alike(call | new | caches[0], **caches[1])
    assert all(torch.equal(caches[0][n].nan_to_num(), caches[1][n].nan_to_num()) for n in caches[0])
    assert len(served) == 1


def test_decode_serves_the_others(served: list[KVCache]) -> None:
    call = given(causal=True)
    few = given(n_q=32)
    several = torch.arange(4, dtype=torch.int32)
    no_pad = torch.zeros(4, dtype=torch.int32)
    for changed in (
        few,
        call | {"splits": 2},
        call | {"cache_batch_idx": several},
        call | {"cache_leftpad": no_pad},
        call | {"mask_mod": lambda b, h, i, j: i >= j},
        call | {"k_cache": call["k_cache"].to(FP8), "v_cache": call["v_cache"].to(FP8)},
        given(lambda asked: in_pages(asked, 24)),
    ):
        flashsmith.decode(None, **changed)
    flashsmith.decode(None, **call, benchmark=True)
    assert not served


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cache_seqlens": torch.tensor([90, 64, 7, 200], dtype=torch.int32)}, "cache_seqlens has"),
        ({"softcap": -1.0}, "softcap"),
        ({"softmax_scale": 0.0}, "softmax_scale"),
    ],
)
def test_bad_input_is_told_by_decodes_names(changed: Given, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        flashsmith.decode(None, **(given(causal=True) | changed))
