"""Repeated calls notice what changed: each does what it does as a first call."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.ops import kv_cache as caches
from flashsmith.selection.choose import forget_calls
from support.decoding import PLAIN, requests
from support.new_keys import angles

ROWS, BATCH, QUERIES = 48, 3, 2


@pytest.fixture(params=[True, False], ids=["as on a CPU", "as on a GPU"])
def _looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test as on a GPU, too, where the host reads no lengths, so that more calls are
    repeated."""
    if not request.param:
        monkeypatch.setattr(caches, "may_look_at", lambda _: False)


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize(
    "right, wrong",
    [
        ({"splits": 1}, {"splits": True}),
        ({"splits": 2}, {"splits": 2.0}),
        ({"softcap": 1.0}, {"softcap": True}),
        ({"window_size": (1, 0)}, {"window_size": (1.0, 0)}),
        ({"window_size": (1, 0)}, {"window_size": (True, False)}),
        ({"softmax_scale": 1.0}, {"softmax_scale": True}),
        ({"cache_seqlens": 1}, {"cache_seqlens": True}),
    ],
    ids=str,
)
def test_an_equal_number_of_another_type_is_refused_all_the_same(
    right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    asked = requests(PLAIN, (ROWS,) * 2, behind=0)
    for _ in range(2):
        flashsmith.decode(None, asked.q, asked.k, asked.v, **right)
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        flashsmith.decode(None, asked.q, asked.k, asked.v, **wrong)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


Given = dict[str, Any]


def first_call() -> Given:
    """Returns a call over a KV cache without NaN, since any of its rows may be read here."""
    torch.manual_seed(0)
    k, v = normal(BATCH, ROWS, 2, 64), normal(BATCH, ROWS, 2, 64)
    return {"q": normal(BATCH, QUERIES, 4, 64), "k_cache": k, "v_cache": v,
            "cache_seqlens": ints(40, 17, 33)}  # fmt: skip


def as_pages(given: Given) -> Given:
    """Returns the cache in pages, whose order is not that of their numbers."""
    order = torch.randperm(BATCH * 3, generator=torch.Generator().manual_seed(1))
    pages = {name: given[name].reshape(BATCH * 3, 16, 2, 64) for name in ("k_cache", "v_cache")}
    return {name: t[order].contiguous() for name, t in pages.items()} | {
        "block_table": order.argsort().int().view(BATCH, 3)
    }


def new_keys(_: Given) -> Given:
    torch.manual_seed(1)
    return {"k_new": normal(BATCH, 3, 2, 64), "v_new": normal(BATCH, 3, 2, 64)}


def no_new_keys(given: Given) -> Given:
    return {name: t[:, :0] for name, t in new_keys(given).items()}


def turned_keys(given: Given) -> Given:
    cos, sin = angles(ROWS, 8)
    return new_keys(given) | {"rotary_cos": cos, "rotary_sin": sin}


def strided(t: torch.Tensor) -> torch.Tensor:
    """Returns the same numbers, with padding between rows."""
    wide = t.new_zeros(*t.shape[:3], t.shape[3] + 8)
    wide[..., : t.shape[3]] = t
    return wide[..., : t.shape[3]]


def out_with_gaps(given: Given) -> Given:
    return {"out": strided(torch.zeros_like(given["q"]))}


CHANGES: dict[str, Callable[[Given], Given]] = {
    "lengths": lambda _: {"cache_seqlens": ints(3, 41, 20)},
    "one length": lambda _: {"cache_seqlens": 30},
    "another length": lambda _: {"cache_seqlens": 31},
    "pages": as_pages,
    "entries": lambda _: {"cache_batch_idx": ints(2, 0, 1)},
    "padding": lambda _: {"cache_leftpad": ints(1, 0, 2)},
    "new keys": new_keys,
    "no new keys": no_new_keys,
    "turned keys": turned_keys,
    "turned halves": lambda given: turned_keys(given) | {"rotary_interleaved": False},
    "causal": lambda _: {"causal": True},
    "window": lambda _: {"window_size": (9, -1)},
    "window of a list": lambda _: {"window_size": [9, 1]},
    "window that hides nothing": lambda _: {"window_size": (ROWS, QUERIES - 1)},
    "slopes": lambda _: {"alibi_slopes": torch.rand(4)},
    "slopes of requests": lambda _: {"alibi_slopes": torch.rand(BATCH, 4)},
    "scale": lambda _: {"softmax_scale": 0.3},
    "splits": lambda _: {"splits": 3},
    "lse": lambda _: {"return_lse": True},
    "out": lambda given: {"out": torch.zeros_like(given["q"])},
    "out with gaps": out_with_gaps,
    "q with gaps": lambda given: {"q": strided(given["q"])},
    "one query": lambda given: {"q": given["q"][:, :1].contiguous()},
    "keys with gaps": lambda given: {"k_cache": strided(given["k_cache"])},
    "fewer rows of values": lambda given: {"v_cache": given["v_cache"][..., :32].contiguous()},
}


def changed(names: tuple[str, ...]) -> Given:
    given = first_call()
    for name in names:
        given |= CHANGES[name](given)
    if "v_new" in given and given["v_cache"].shape[3] == 32:
        given["v_new"] = given["v_new"][..., :32].contiguous()
    if "out" in given:
        given["out"] = given["out"].new_zeros(*given["q"].shape[:3], given["v_cache"].shape[3])
    return given


def outcome(names: tuple[str, ...]) -> list[Any]:
    """Returns the result or the error of the call, and the KV cache afterwards."""
    given = changed(names)
    try:
        found = flashsmith.decode(None, **given)
    except (TypeError, ValueError) as error:
        found = torch.tensor([]), type(error), str(error)
    results = list(found) if isinstance(found, tuple) else [found]
    return [*results, given["k_cache"], given["v_cache"]]


def are_same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(found, expected, strict=True)
    )


_PAIRS = sorted(random.Random(0).sample(list(combinations(CHANGES, 2)), 60))


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_calls_that_differ_in_anything_have_each_their_own_result(start: int) -> None:
    """For each pair of changes, calls are made with the first, with both, and with the second."""
    for first, second in _PAIRS[start : start + 20]:
        turns = [(), (first,), (first, second), (second,), ()]
        forget_calls()
        found = [outcome(names) for names in turns + turns]
        for names, each in zip(turns + turns, found, strict=True):
            forget_calls()
            assert are_same(each, outcome(names)), names


@pytest.mark.usefixtures("_looks")
def test_every_change_alone_is_noticed_or_makes_no_difference() -> None:
    forget_calls()
    outcome(())
    found = {name: outcome((name,)) for name in CHANGES}
    for name, each in found.items():
        forget_calls()
        assert are_same(each, outcome((name,))), name
