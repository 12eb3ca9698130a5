"""The benchmark of decode, without a GPU: its caches, candidates and means."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from support.paths import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("decode")


def test_every_kind_of_cache_gives_what_is_expected(script: ModuleType) -> None:
    torch.manual_seed(0)
    q, k, v = script.tensors_of(script.Shape(3, 256, heads=4, heads_kv=2, d_head=64), "cpu")
    kinds = {}
    for kind, cache in script.caches(k, v):
        runs = script.candidates(q, cache)
        expected = script.reference(q, k, v, cache.lengths)
        errors = {name: script.error_of(run(), expected) for name, run in runs.items()}
        assert set(script._OUR_SPLITS) <= set(errors)
        assert max(errors.values()) < script._TOLERANCE, (kind, errors)
        kinds[kind] = (cache, set(runs) & set(script.PEERS))
    assert kinds["entries"][1] == {"fa2"}  # without a GPU
    assert not kinds["pages of 16"][1] and not kinds["fp8"][1]
    ragged = kinds["ragged pages of 16"][0]
    assert not ragged.is_full and ragged.rows == 256
    assert all(cache.is_full for kind, (cache, _) in kinds.items() if kind != "ragged pages of 16")
    table = kinds["pages of 64"][0].table
    assert not torch.equal(table.flatten(), torch.arange(12)), "pages are in order"


def test_other_configurations_are_measured_where_they_fit(script: ModuleType) -> None:
    names = (
        "(BF16, 64, 16, 32, 2): decode+stages_3+blocks_4",
        "(BF16, 64, 16, 32, 4): decode+fp8_cache+stages_5+blocks_2",
        "(BF16, 128, 16, 16, 2): decode+stages_3+blocks_4",
    )
    others = [script.config_named(name) for name in names]
    q, k, v = script.tensors_of(script.Shape(1, 64, heads=4, heads_kv=2, d_head=64), "cpu")
    for kind, cache in script.caches(k, v):
        runs = script.candidates(q, cache, others)
        assert set(runs) & set(names) == {names["fp8" in kind]}
    with pytest.raises(ValueError, match="expected one of the sm80 family's decode"):
        script.config_named("(BF16, 128, 64, 64, 1): wgmma+decode+stages_5")


def test_the_table_has_what_fits(script: ModuleType) -> None:
    shapes = list(script.table())
    assert {s.context for s in shapes} == {128, 512, 2048, 8192, 32768, 131072}
    assert {(s.heads, s.heads_kv, s.d_head) for s in shapes} == {
        *((32, 8, d_head) for d_head in (64, 128, 256)),
        *((heads, heads_kv, 128) for heads, heads_kv in ((64, 8), (32, 32), (8, 1))),
    }
    assert max(s.elements for s in shapes) <= 1 << 28
    assert script.Shape(256, 128) in shapes and script.Shape(256, 131072) not in shapes


def test_means_are_of_the_served_kernel_by_cache_and_length(script: ModuleType) -> None:
    rows = [
        {"cache": cache, "context": context, "candidate": name, "in_turn_of_best_peer": ratio}
        for cache, context, name, ratio in [
            ("entries", 512, "flashsmith", "2.000"),
            ("entries", 8192, "flashsmith", "0.500"),
            ("entries", 8192, "flashsmith splits 1", "9.000"),
            ("entries", 512, "fa2", ""),
            ("fp8", 512, "flashsmith", ""),
        ]
    ]
    assert list(script.summary(rows)) == [
        "entries, all: 1.000, least 0.500, 2 shapes",
        "entries, up to 2048: 2.000, least 2.000, 1 shapes",
    ]


@pytest.mark.parametrize("name", ["few_queries", "decode_graph"])
def test_its_companions_measure_the_same_shapes(script: ModuleType, name: str) -> None:
    companion = importlib.import_module(name)
    assert all(isinstance(shape, script.Shape) for shape in companion.SHAPES)
    assert companion.OURS == script.OURS
