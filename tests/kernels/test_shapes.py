"""Every kernel accepts every shape and layout: tails, lengths of q and k, GQA, strides."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import CAUSAL, KernelId
from flashsmith.runtime import emulation
from flashsmith.runtime.workspace import workspace_for
from support.kernels import BY_FAMILY, EACH, SOME, Samples
from support.problems import Emulated, assert_correct, assert_lse, random_qkv, run, run_with_lse


@pytest.mark.parametrize(
    ("seq_len_q", "seq_len_k", "heads", "heads_kv"),
    [(1, 1, 1, 1), (77, 200, 4, 2), (200, 77, 4, 1), (256, 256, 2, 2)],
)
@EACH
def test_matches_the_reference(
    instance: KernelId,
    seq_len_q: int,
    seq_len_k: int,
    heads: int,
    heads_kv: int,
    emulated: Emulated,
) -> None:
    """Lengths are odd, and either side may be longer; heads share K and V; o and lse are
    checked."""
    kernel = emulated(instance)
    qkv = random_qkv(instance.config, seq_len_q, 1, heads, seq_len_k, heads_kv)
    o, lse = run_with_lse(kernel, qkv)
    assert_correct(o, qkv, instance)
    assert_lse(lse, qkv, instance)


@EACH
def test_rows_whose_first_masked_block_is_hidden(instance: KernelId, emulated: Emulated) -> None:
    """New queries follow a cache, and the first row of a warpgroup sees a whole number of
    blocks."""
    kernel, B_c = emulated(instance), instance.config.B_c
    for seq_len_q, cached in ((2, B_c - 1), (8, 2 * B_c - 1), (64 + 2, 2 * B_c - 64 - 1)):
        qkv = random_qkv(instance.config, seq_len_q, heads=1, seq_len_k=cached + seq_len_q)
        o, lse = run_with_lse(kernel, qkv)
        assert_correct(o, qkv, instance)
        assert_lse(lse, qkv, instance)


@SOME
def test_lengths_beside_every_tile_boundary(instance: KernelId, emulated: Emulated) -> None:
    """The boundaries are those of the rows of an mma and a tile, and of the keys of an mma and a
    block."""
    kernel, B_r, B_c = emulated(instance), instance.config.B_r, instance.config.B_c
    with emulation(kernel, count=False):
        for seq_len_q in (1, 17, B_r - 1, B_r + 1):
            for seq_len_k in (1, 8, 9, B_c - 1, B_c, B_c + 1, 2 * B_c + 1):
                qkv = random_qkv(instance.config, seq_len_q, seq_len_k=seq_len_k)
                assert_correct(run(kernel, qkv), qkv, instance)


@SOME
def test_batches_and_many_tiles(instance: KernelId, emulated: Emulated) -> None:
    """The problem has more tiles than persistent thread blocks."""
    qkv = random_qkv(instance.config, 300, batch=2, heads=4, heads_kv=2)
    assert_correct(run(emulated(instance), qkv), qkv, instance)


@SOME
def test_packed_input_and_strided_output(instance: KernelId, emulated: Emulated) -> None:
    """q, k, v are slices of one tensor; o lies inside a larger one, whose other elements stay as
    they were."""
    cfg = instance.config
    packed = torch.randn(2, 90, 3, 2, cfg.d_head).to(cfg.dtype.to_torch_dtype())
    q, k, v = packed.unbind(2)
    outer = torch.full((2, 90, 4, cfg.d_head + 32), 7.0, dtype=q.dtype)
    o = outer[:, :, 1:3, 16:-16]
    kernel = emulated(instance)
    workspace = workspace_for(kernel.plan(q, k, v, o), q.device)
    kernel(q, k, v, o, cfg.d_head**-0.5, workspace=workspace)
    assert_correct(o, (q, k, v), instance)
    o.fill_(7.0)
    assert (outer == 7.0).all()


@SOME
def test_heads_before_sequence(instance: KernelId, emulated: Emulated) -> None:
    shape, dtype = (2, 3, 100, instance.config.d_head), instance.config.dtype.to_torch_dtype()
    q, k, v = (torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(3))
    assert_correct(run(emulated(instance), (q, k, v)), (q, k, v), instance)


@SOME
def test_what_lies_behind_a_tail_is_not_read(instance: KernelId, emulated: Emulated) -> None:
    """NaN behind the last query and the last key reaches no result, and no row behind o is
    written."""
    cfg = instance.config
    q, k, v = random_qkv(cfg, 160, seq_len_k=200, heads=2)
    o = torch.full_like(q, 7.0)
    q[:, 70:], k[:, 83:], v[:, 83:] = torch.nan, torch.nan, torch.nan
    cut = q[:, :70], k[:, :83], v[:, :83]
    assert_correct(run(emulated(instance), cut, o=o[:, :70]), cut, instance)
    assert (o[:, 70:] == 7.0).all()


@BY_FAMILY
def test_rows_that_see_no_key_are_zero(samples: Samples, emulated: Emulated) -> None:
    for cfg in samples.some:
        kernel = emulated(KernelId(cfg, CAUSAL))
        qkv = random_qkv(cfg, 200, seq_len_k=77)
        o, lse = run_with_lse(kernel, qkv)
        assert (o[:, :123] == 0).all()
        assert lse[..., :123].isneginf().all()
