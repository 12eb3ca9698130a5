"""Decode's tuning spaces, and the workloads that a tuned table tells apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from flashsmith.configs import FlashDecodeKernelConfig
from flashsmith.configs.base import Capability
from flashsmith.configs.decode import KINDS_OF_CACHE, as_tuned
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import D_HEADS, DecodeWorkload, WorkTiles
from flashsmith.dtype import DType
from flashsmith.gpus import get_gpu_architecture

PLAIN = DecodeWorkload(DType.BF16, 128)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_candidates_serve_fit_and_end_with_the_heuristics_choice(arch: str) -> None:
    gpu = get_gpu_architecture(arch)
    for d_head, rows, kind, in_boxes in product(
        D_HEADS, (1, 32, 128), KINDS_OF_CACHE, (False, True)
    ):
        workload = DecodeWorkload(DType.FP16, d_head, rows, *kind, in_boxes=in_boxes)
        *others, heuristic = DECODE.candidates(workload, arch)
        assert heuristic == DECODE.choose_by_heuristic(workload, gpu.compute_capability)
        assert heuristic not in others and len(set(others)) == len(others)
        for config in (*others, heuristic):
            assert DECODE.why_not(config, workload) == "", (config, workload)
            assert config.is_buildable(arch)
            if isinstance(config, FlashDecodeKernelConfig) and config != heuristic:
                room = gpu.blocks_by_shared_memory(config.shared_memory_bytes)
                assert config.blocks_per_SM <= room


def test_an_sm_is_full_of_stages() -> None:
    gpu = get_gpu_architecture("sm_90a")
    for config in DECODE.candidates(PLAIN, "sm_90a")[:-1]:
        assert isinstance(config, FlashDecodeKernelConfig)
        one_more = replace(config, n_stages=config.n_stages + 1)
        room = gpu.blocks_by_shared_memory(one_more.shared_memory_bytes)
        assert config.blocks_per_SM > room or not one_more.is_buildable("sm_90a")


def test_both_families_are_tried_for_many_rows_in_boxes() -> None:
    def tried(workload: DecodeWorkload, arch: str = "sm_90a") -> set[tuple[str, int]]:
        found = DECODE.candidates(workload, arch)
        return {(config.family, getattr(config, "B_r")) for config in found}  # noqa: B009

    many = replace(PLAIN, rows=128, in_boxes=True)
    assert tried(many) == {("sm80", 64), ("sm90", 64), ("sm90", 128)}
    assert tried(replace(many, rows=64)) == {("sm80", 64), ("sm90", 64)}
    assert tried(replace(many, in_boxes=False)) == tried(many, "sm_80") == {("sm80", 64)}
    assert tried(PLAIN) == {("sm80", 16)}


@pytest.mark.parametrize(
    ("capability", "given", "expected"),
    [
        ((9, 0), {"rows": 1}, {"rows": 16}),
        ((9, 0), {"rows": 17, "in_boxes": True}, {"rows": 32}),
        ((9, 0), {"rows": 17, "in_boxes": True, "tiles": WorkTiles.FEW},
         {"rows": 32, "in_boxes": True, "tiles": WorkTiles.FEW}),
        ((9, 0), {"rows": 33, "in_boxes": True}, {"rows": 64, "in_boxes": True}),
        ((9, 0), {"d_head": 256, "rows": 17, "in_boxes": True},
         {"d_head": 256, "rows": 32, "in_boxes": True}),
        ((9, 0), {"rows": 16, "in_boxes": True}, {"rows": 16}),
        ((9, 0), {"rows": 5000}, {"rows": 128}),
        ((8, 0), {"rows": 5000, "in_boxes": True}, {"rows": 64}),
        ((9, 0), {"tiles": WorkTiles.FEW}, {"rows": 16, "tiles": WorkTiles.FEW}),
        ((9, 0), {"rows": 30, "tiles": WorkTiles.SOME}, {"rows": 32, "tiles": WorkTiles.SOME}),
        ((9, 0), {"rows": 40, "tiles": WorkTiles.MANY}, {"rows": 64}),
        ((9, 0), {"fp8_cache": True, "tiles": WorkTiles.FEW}, {"rows": 16, "fp8_cache": True}),
        ((9, 0), {"fp8_cache": True, "tiles": WorkTiles.MANY},
         {"rows": 16, "fp8_cache": True, "tiles": WorkTiles.MANY}),
        ((9, 0), {"rows": 40, "fp8_cache": True, "in_boxes": True},
         {"rows": 64, "fp8_cache": True}),
        ((9, 0), {"rows": 40, "fp8_cache": True, "per_token_scale": True},
         {"rows": 16, "fp8_cache": True, "per_token_scale": True}),
    ],
)  # fmt: skip
def test_tables_tell_apart_what_kernels_do(
    capability: Capability, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    families = DECODE.families_on(capability)
    tuned = as_tuned(replace(PLAIN, **given), families)
    assert tuned == replace(PLAIN, **expected)
    assert as_tuned(tuned, families) == tuned


def test_what_cannot_serve_says_why() -> None:
    sm80, fp8 = DECODE.choose_by_heuristic(PLAIN, None), replace(PLAIN, fp8_cache=True)
    boxed = replace(PLAIN, rows=64, in_boxes=True)
    sm90 = DECODE.choose_by_heuristic(boxed, (9, 0))
    assert DECODE.why_not(sm80, PLAIN) == DECODE.why_not(sm90, boxed) == ""
    assert DECODE.why_not(sm80, fp8) == "its fp8_cache is False"
    assert DECODE.why_not(sm80, replace(PLAIN, d_head=64)) == "it is for BF16 and d_head 128"
    assert DECODE.why_not(sm90, PLAIN) == "the sm90 family is not for such calls"
