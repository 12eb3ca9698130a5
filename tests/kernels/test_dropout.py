"""Dropout in the forward kernels: the mask to the bit, and everything that it must not change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.reference import Semantics, dropout_mask
from flashsmith.runtime import load_kernels
from support import sm80_kernels, sm90_kernels
from support.dropout import BATCH, HEADS, STATE, P, counted, kept_by
from support.semantics import CONFIGS, FAMILIES, assert_right, call, packing_of, tensors_of

# More shapes of tiles: two fragments a warp, four warpgroups, few keys, and not a power of two.
CONFIGS = CONFIGS | {
    "two fragments": sm80_kernels.VARIED[0],
    "four warpgroups": sm90_kernels.VARIED[1],
    "few keys": sm90_kernels.VARIED[2],
    "96 keys": sm90_kernels.VARIED[4],
}
EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
BY_FAMILY = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())
NAMES = ("dropout", "full", "causal+dropout", "causal", "varlen+dropout", "causal+varlen+dropout")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    of_all = [KernelId(cfg, Variant(dropout=True)) for cfg in CONFIGS.values()]
    of_some = [KernelId(c, Variant.from_name(n)) for c in FAMILIES.values() for n in NAMES]
    load_kernels(list(dict.fromkeys([*of_all, *of_some])), Target.emulator())


@EACH
def test_a_kernel_drops_the_weights_that_the_mask_says(cfg: ForwardKernelConfig) -> None:
    n_q, n_k = cfg.B_r + 37, 2 * cfg.B_c + 19
    assert torch.equal(kept_by(cfg, n_q, n_k), dropout_mask(STATE, P, (BATCH, HEADS, n_q, n_k)))


@BY_FAMILY
def test_packed_sequences_have_the_masks_of_their_numbers(cfg: ForwardKernelConfig) -> None:
    lengths_q, lengths_k = [40, 0, 17, 70], [30, 20, 0, 64]
    kept = dropout_mask(STATE, P, (4, 4, 70, 64))
    q = torch.zeros(sum(lengths_q), 4, cfg.d_head, dtype=cfg.dtype.to_torch_dtype())
    k = q.new_zeros(sum(lengths_k), 2, cfg.d_head)
    packing = packing_of(lengths_q, lengths_k)
    eyes = [torch.eye(n, cfg.d_head, dtype=q.dtype) for n in lengths_k]
    v = torch.cat(eyes)[:, None].repeat(1, 2, 1)
    o: Any = flashsmith.forward(
        cfg, q, k, v, dropout_p=P, rng_state=STATE,
        cu_seqlens_q=packing.cu_seqlens_q, cu_seqlens_k=packing.cu_seqlens_k,
    )  # fmt: skip
    begin = 0
    for number, (n_q, n_k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        own = counted(o[begin : begin + n_q].transpose(0, 1), max(n_k, 1))[..., :n_k]
        assert torch.equal(own.bool(), kept[number, :, :n_q, :n_k]), number
        begin += n_q


@pytest.mark.parametrize("causal", [False, True])
@BY_FAMILY
def test_the_log_sum_exp_counts_all_weights(cfg: ForwardKernelConfig, causal: bool) -> None:
    qkv = tensors_of(cfg, 70, 90)
    dropping = Semantics(causal=causal, dropout_p=0.9, rng_state=STATE)
    _, lse = assert_right(cfg, qkv, dropping)
    assert torch.equal(lse, call(cfg, qkv, Semantics(causal=causal))[1])


@BY_FAMILY
def test_queries_that_see_nothing_get_zeros(cfg: ForwardKernelConfig) -> None:
    qkv = tensors_of(cfg, 70, 20)
    o, lse = assert_right(cfg, qkv, Semantics(causal=True, dropout_p=P, rng_state=STATE))
    assert (o[:, :50] == 0).all() and (lse[:, :, :50] == -math.inf).all()


@pytest.mark.parametrize("p", [2.0**-15, 0.5, 0.99, 0.999999])
@BY_FAMILY
def test_every_probability_is_right(cfg: ForwardKernelConfig, p: float) -> None:
    assert_right(cfg, tensors_of(cfg, 70, 90), Semantics(dropout_p=p, rng_state=STATE))


@BY_FAMILY
def test_a_probability_of_next_to_nothing_drops_nothing(cfg: ForwardKernelConfig) -> None:
    qkv = tensors_of(cfg, 70, 90)
    o, _ = call(cfg, qkv, Semantics(dropout_p=1e-6, rng_state=STATE))
    assert torch.equal(o, call(cfg, qkv, Semantics())[0])


@BY_FAMILY
def test_each_word_of_the_state_matters(cfg: ForwardKernelConfig) -> None:
    qkv = tensors_of(cfg, 30, 40)
    states = [STATE, *(STATE + torch.tensor(s) for s in ([1, 0], [2**32, 0], [0, 1], [0, 2**32]))]
    found = [assert_right(cfg, qkv, Semantics(dropout_p=P, rng_state=s))[0] for s in states]
    assert not any(torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
