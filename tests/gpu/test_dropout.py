"""Dropout on a GPU: the masks of every family's kernels, and the origin of their RNG states."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DType, KernelId, Variant
from flashsmith.configs.registry import BACKWARD, FORWARD
from flashsmith.lab.soak import that_run_on
from flashsmith.reference import dropout_mask
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from support.dropout import BATCH, HEADS, STATE, P, kept_by, masks_differ

pytestmark = pytest.mark.gpu

DROPOUT = Variant(dropout=True)


def test_the_forward_kernels_have_the_masks_of_the_reference() -> None:
    found = [
        c
        for f in FORWARD.families
        for d in f.d_heads
        for t in DType
        for c in f.heuristic_configs(t, d)
    ]
    configs = that_run_on(found, "cuda")
    load_kernels([KernelId(cfg, DROPOUT) for cfg in configs], target_of(torch.device("cuda")))
    for cfg in configs:
        n_q, n_k = 2 * cfg.B_r + 37, 5 * cfg.B_c + 19
        kept = dropout_mask(STATE.cuda(), P, (BATCH, HEADS, n_q, n_k))
        assert torch.equal(kept_by(cfg, n_q, n_k, "cuda"), kept), cfg


def test_the_backward_kernels_have_the_masks_of_the_reference() -> None:
    found = [cfg.adapted_to(DROPOUT) for cfg in BACKWARD.heuristic_configs()]
    configs = that_run_on((cfg for cfg in found if cfg.serves_variant(DROPOUT)), "cuda")
    load_kernels([KernelId(cfg, DROPOUT) for cfg in configs], target_of(torch.device("cuda")))
    kept = dropout_mask(STATE.cuda(), P, (BATCH, HEADS, 64 * 3 + 37, 64 * 5 + 19))
    wrong = {str(cfg): masks_differ(cfg, kept, "cuda") for cfg in configs}
    assert not any(wrong.values()), wrong


def leaves() -> list[torch.Tensor]:
    """Returns q, k and v = I: o holds the weights that were not dropped, and so does the gradient
    of v."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 64, 4, 64, device="cuda").bfloat16()
    v = torch.eye(64, device="cuda").bfloat16()[None, :, None].repeat(2, 1, 4, 1)
    return [t.requires_grad_() for t in (q, k, v)]


def both_ways(tensors: list[torch.Tensor], do: torch.Tensor, **keywords: Any) -> Any:
    """Returns o, and the gradient of v."""
    o: Any = flashsmith.attention(*tensors, dropout_p=P, **keywords)
    return o, torch.autograd.grad(o, tensors[2], do)[0]


def assert_one_mask(o: torch.Tensor, dv: torch.Tensor, do: torch.Tensor) -> None:
    assert 0.25 < (o == 0).float().mean() < 0.35
    expected = torch.einsum("bqhk,bqhd->bkhd", o.float(), do.float())
    assert (dv.float() - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_generator_of_the_device_is_asked(deterministic: bool) -> None:
    tensors = leaves()
    do = torch.randn_like(tensors[0])
    torch.manual_seed(5)
    first, second = (both_ways(tensors, do, deterministic=deterministic) for _ in range(2))
    torch.cuda.manual_seed(5)
    again = both_ways(tensors, do, deterministic=deterministic)
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], second[0])
    for found in (first, second):
        assert_one_mask(*found, do)


def test_every_replay_of_a_graph_draws_a_mask_for_both_ways() -> None:
    tensors = leaves()
    do = torch.randn_like(tensors[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            both_ways(tensors, do)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, dv = both_ways(tensors, do)
    seen: list[torch.Tensor] = []
    for _ in range(3):
        graph.replay()
        assert_one_mask(o, dv, do)
        assert not any(torch.equal(o, before) for before in seen)
        seen.append(o.clone())


def test_a_compiled_function_has_one_mask_for_both_ways() -> None:
    torch.compiler.reset()
    tensors = leaves()
    do = torch.randn_like(tensors[0])
    compiled = torch.compile(lambda *qkv: flashsmith.attention(*qkv, dropout_p=P), fullgraph=True)
    o: Any = compiled(*tensors)
    assert_one_mask(o, torch.autograd.grad(o, tensors[2], do)[0], do)
    assert not torch.equal(o, compiled(*tensors))
