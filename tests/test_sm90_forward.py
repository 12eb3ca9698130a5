"""The sm90 family's results on the emulator, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

import flashsmith
from conftest import BASE
from flashsmith.configs import (
    CAUSAL,
    FULL,
    ForwardKernelInstance,
    Sm90ForwardKernelConfig,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.reference import reference_lse
from flashsmith.runtime import Kernel, emulation
from flashsmith.runtime.workspace import workspace_for
from flashsmith.selection import select_config
from problems import Tensors, assert_correct, random_qkv, run
from sm90_kernels import CONFIGS, INSTANCES, LAST, PROGRESSION, VARIED

Emulated = Callable[[ForwardKernelInstance], Kernel]

FIELDS = {field.name for field in fields(Sm90ForwardKernelConfig)}
EACH = pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.slug)
REPRESENTATIVE = [
    ForwardKernelInstance(cfg, variant)
    for cfg in (PROGRESSION[0], LAST, *(VARIED[i] for i in (1, 4, 5, 7, 9)))
    for variant in (FULL, CAUSAL)
]
SOME = pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)


def lse_of(kernel: Kernel, qkv: Tensors) -> torch.Tensor:
    """The kernel's log-sum-exp, into memory that was NaN."""
    q, config = qkv[0], kernel.instance.config
    batch, seq_len, heads, _ = q.shape
    lse = torch.full((batch, heads, seq_len), torch.nan)
    workspace = workspace_for(config.workspace_bytes, q.device)
    kernel(*qkv, torch.empty_like(q), config.d_head**-0.5, lse=lse, workspace=workspace)
    return lse


def assert_lse(lse: torch.Tensor, qkv: Tensors, instance: ForwardKernelInstance) -> None:
    """FP32 sums of exact exponentials; polynomials have a relative error of 7.5e-5."""
    assert isinstance(instance.config, Sm90ForwardKernelConfig)
    expected = reference_lse(*qkv[:2], causal=instance.variant.causal).float()
    error = 8e-5 if instance.config.fma_exponentials else 3e-6
    torch.testing.assert_close(lse, expected, atol=error, rtol=1e-6)


def test_the_set_has_every_field_both_ways() -> None:
    for name in FIELDS:
        values = {getattr(cfg, name) for cfg in CONFIGS}
        assert len(values) > 1, name
    assert not any(cfg.problems() for cfg in CONFIGS)


@pytest.mark.parametrize(
    ("seq_len_q", "seq_len_k", "heads", "heads_kv"),
    [(1, 1, 1, 1), (77, 200, 4, 2), (200, 77, 4, 1), (256, 256, 2, 2)],
)
@EACH
def test_matches_the_reference(
    instance: ForwardKernelInstance,
    seq_len_q: int,
    seq_len_k: int,
    heads: int,
    heads_kv: int,
    emulated_sm90: Emulated,
) -> None:
    """Ragged lengths, the longer one on either side; heads that share K and V; o and lse."""
    kernel = emulated_sm90(instance)
    qkv = random_qkv(instance.config, seq_len_q, 1, heads, seq_len_k, heads_kv)
    assert_correct(run(kernel, qkv), qkv, instance)
    assert_lse(lse_of(kernel, qkv), qkv, instance)


@EACH
def test_rows_whose_first_masked_block_is_hidden(
    instance: ForwardKernelInstance, emulated_sm90: Emulated
) -> None:
    """New queries behind a cache: the first row of a warpgroup sees a whole number of blocks."""
    kernel, B_c = emulated_sm90(instance), instance.config.B_c
    for seq_len_q, cached in ((2, B_c - 1), (8, 2 * B_c - 1), (64 + 2, 2 * B_c - 64 - 1)):
        qkv = random_qkv(instance.config, seq_len_q, heads=1, seq_len_k=cached + seq_len_q)
        assert_correct(run(kernel, qkv), qkv, instance)
        assert_lse(lse_of(kernel, qkv), qkv, instance)


@SOME
def test_batches_and_many_tiles(instance: ForwardKernelInstance, emulated_sm90: Emulated) -> None:
    """More tiles than persistent blocks."""
    qkv = random_qkv(instance.config, 300, batch=3, heads=6, heads_kv=3)
    assert_correct(run(emulated_sm90(instance), qkv), qkv, instance)


@EACH
def test_five_warp_orders_are_bitwise_equal(
    instance: ForwardKernelInstance, emulated_sm90: Emulated
) -> None:
    kernel, qkv = emulated_sm90(instance), random_qkv(instance.config, 200, heads=2)
    first = run(kernel, qkv)
    assert not first.isnan().any()
    for seed in range(1, 5):
        with emulation(kernel, seed=seed, count=False):
            assert torch.equal(run(kernel, qkv), first), f"seed {seed}"


@SOME
def test_packed_input_and_strided_output(
    instance: ForwardKernelInstance, emulated_sm90: Emulated
) -> None:
    """q, k, v as slices of one tensor; o inside a larger one, whose rest stays as it was."""
    cfg = instance.config
    packed = torch.randn(2, 90, 3, 2, cfg.d_head).to(cfg.dtype.to_torch_dtype())
    q, k, v = packed.unbind(2)
    outer = torch.full((2, 90, 4, cfg.d_head + 32), 7.0, dtype=q.dtype)
    o = outer[:, :, 1:3, 16:-16]
    workspace = workspace_for(cfg.workspace_bytes, q.device)
    emulated_sm90(instance)(q, k, v, o, cfg.d_head**-0.5, workspace=workspace)
    assert_correct(o, (q, k, v), instance)
    o.fill_(7.0)
    assert (outer == 7.0).all()


@SOME
def test_heads_before_sequence(instance: ForwardKernelInstance, emulated_sm90: Emulated) -> None:
    shape, dtype = (2, 3, 100, instance.config.d_head), instance.config.dtype.to_torch_dtype()
    q, k, v = (torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(3))
    assert_correct(run(emulated_sm90(instance), (q, k, v)), (q, k, v), instance)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@SOME
def test_softmax_scale(
    instance: ForwardKernelInstance, scale: float, emulated_sm90: Emulated
) -> None:
    qkv = random_qkv(instance.config)
    assert_correct(run(emulated_sm90(instance), qkv, scale), qkv, instance, scale)


@pytest.mark.parametrize("order", [1, -1], ids=["grows", "shrinks"])
@pytest.mark.parametrize("growth", [0.5, 3.0, 12.0, 40.0])
@SOME
def test_maximum_that_moves(
    instance: ForwardKernelInstance, growth: float, order: int, emulated_sm90: Emulated
) -> None:
    """By less and by more than the bound under which a lazy or stale maximum stays in place."""
    q, k, v = random_qkv(instance.config)
    ramp = torch.linspace(0, 4 * growth, 256).to(k.dtype)
    q[..., 0], k[..., 0] = 8.0, (ramp if order == 1 else ramp.flip(0))[None, :, None]
    assert_correct(run(emulated_sm90(instance), (q, k, v)), (q, k, v), instance)
    assert_lse(lse_of(emulated_sm90(instance), (q, k, v)), (q, k, v), instance)


@SOME
def test_large_logits_pick_one_key(
    instance: ForwardKernelInstance, emulated_sm90: Emulated
) -> None:
    q, k, v = random_qkv(instance.config)
    assert_correct(run(emulated_sm90(instance), (q * 30, k * 30, v)), (q * 30, k * 30, v), instance)


@SOME
def test_nan_stays_in_the_rows_that_see_it(
    instance: ForwardKernelInstance, emulated_sm90: Emulated
) -> None:
    q, k, v = random_qkv(instance.config, 150)
    q[0, 70] = torch.nan
    o = run(emulated_sm90(instance), (q, k, v))
    assert o.isnan().any(-1).flatten().nonzero().flatten().tolist() == [70]


def test_causal_ignores_the_future(emulated_sm90: Emulated) -> None:
    """Bitwise: what comes after a row does not reach it."""
    kernel = emulated_sm90(ForwardKernelInstance(LAST, CAUSAL))
    q, k, v = random_qkv(LAST, 200, seq_len_k=230)
    o = run(kernel, (q, k, v))
    k[:, 131:], v[:, 131:] = 50.0, -50.0
    assert torch.equal(run(kernel, (q, k, v))[:, :101], o[:, :101])


def test_rows_that_see_no_key_are_zero(emulated_sm90: Emulated) -> None:
    instance = ForwardKernelInstance(LAST, CAUSAL)
    qkv = random_qkv(LAST, 200, seq_len_k=77)
    assert (run(emulated_sm90(instance), qkv)[:, :123] == 0).all()
    assert lse_of(emulated_sm90(instance), qkv)[..., :123].isneginf().all()


@pytest.mark.parametrize("cfg", [VARIED[9], LAST], ids=str)
def test_log_sum_exp_is_written_once(cfg: Sm90ForwardKernelConfig, emulated_sm90: Emulated) -> None:
    """By one of the lanes that know it."""
    kernel = emulated_sm90(ForwardKernelInstance(cfg))
    qkv = random_qkv(cfg, 200, heads=2)
    stored = []
    for call in (run, lse_of):
        with emulation(kernel) as emulator:
            call(kernel, qkv)
            stored.append(emulator.counters()["global_store_bytes"])
    without, with_lse = stored
    assert with_lse - without == 2 * 200 * 4


def test_tiles_of_a_queue_are_done_once(emulated_sm90: Emulated) -> None:
    """By four blocks, one after the other: the first finds the queue empty before the others."""
    kernel = emulated_sm90(ForwardKernelInstance(LAST))
    heads, seq_len = 12, 128
    with emulation(kernel, workers=1) as emulator:
        run(kernel, random_qkv(LAST, seq_len, heads=heads))
        assert emulator.counters()["wgmma_flops"] == heads * 4 * seq_len**2 * LAST.d_head


# forward and attention


@pytest.fixture(scope="module", autouse=True)
def _built(emulated_sm90: Emulated) -> None:
    """What forward and attention find without building."""


def test_forward_returns_what_is_asked() -> None:
    qkv = random_qkv(LAST, 100, heads=2)
    o = flashsmith.forward(LAST, *qkv)
    assert isinstance(o, torch.Tensor)
    with_lse, lse = flashsmith.forward(LAST, *qkv, return_lse=True)
    everything = flashsmith.forward(LAST, *qkv, return_lse=True, benchmark=True)
    assert torch.equal(with_lse, o) and torch.equal(everything[0], o)
    assert torch.equal(everything[1], lse) and everything[2] > 0
    assert (lse.shape, lse.dtype) == ((1, 2, 100), torch.float32)
    assert_lse(lse, qkv, ForwardKernelInstance(LAST))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_attention_takes_what_only_this_family_can(d_head: int, causal: bool) -> None:
    q, k, v = random_qkv(replace(LAST, d_head=d_head), 70, 1, 4, 90, 2)
    config = select_config(q, causal, k=k)
    o, lse = flashsmith.attention(q, k, v, causal=causal, return_lse=True)
    instance = ForwardKernelInstance(config, CAUSAL if causal else FULL)
    assert_correct(o, (q, k, v), instance)
    assert_lse(lse, (q, k, v), instance)
    assert torch.equal(flashsmith.attention(q, k, v, causal=causal), o)


def test_empty_tensors_are_no_work() -> None:
    q, k, v = random_qkv(LAST, 10)
    o, lse = flashsmith.forward(LAST, q[:, :0], k, v, return_lse=True)
    assert o.shape == (1, 0, 1, 128) and lse.shape == (1, 1, 0)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 64, 4, 128), (1, 64, 3, 128)), "q has 4 heads and k has 3"),
        (((2, 64, 4, 128), (1, 64, 4, 128)), "the same batch size and d_head"),
        (((1, 64, 4, 64), (1, 64, 4, 64)), "q has d_head 64, but the configuration is for 128"),
        (((1, 64, 4, 128), (1, 0, 4, 128)), "k has sequence length 0"),
    ],
)
def test_shapes_that_no_kernel_takes(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    q, k = (torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        flashsmith.forward(LAST, q, k, k.clone())


def test_expanded_keys_are_refused() -> None:
    q, k, v = random_qkv(LAST, 64, heads=2, heads_kv=1)
    with pytest.raises(ValueError, match=r"k has head stride 0 .*call .contiguous"):
        flashsmith.forward(LAST, q, k.expand(1, 64, 2, 128), v.expand(1, 64, 2, 128))


def test_sm80_family_gives_no_lse() -> None:
    with pytest.raises(ValueError, match="the sm80 family gives no log-sum-exp"):
        flashsmith.forward(BASE, *random_qkv(BASE, 64), return_lse=True)


@pytest.mark.parametrize(
    ("workspace", "message"),
    [
        (None, "workspace is None; this kernel needs 8 bytes"),
        (torch.zeros(1, dtype=torch.int32), "workspace has 4 bytes; it must be at least 8"),
        (torch.zeros(4, dtype=torch.int32)[::2], "contiguous"),
    ],
)
def test_workspace_is_checked(
    workspace: torch.Tensor | None, message: str, emulated_sm90: Emulated
) -> None:
    q, k, v = random_qkv(LAST, 64)
    with pytest.raises(ValueError, match=message):
        emulated_sm90(ForwardKernelInstance(LAST))(
            q, k, v, torch.empty_like(q), 1.0, workspace=workspace
        )


def test_lse_is_checked(emulated_sm90: Emulated) -> None:
    kernel, (q, k, v) = emulated_sm90(ForwardKernelInstance(PROGRESSION[0])), random_qkv(LAST, 64)
    for lse, error, message in (
        (torch.empty(1, 1, 64, dtype=torch.float64), TypeError, "lse has dtype float64"),
        (
            torch.empty(1, 64, 1),
            ValueError,
            r"of shape \(batch, n_heads, seq_len_q\) = \(1, 1, 64\)",
        ),
        (torch.empty(1, 1, 128)[..., ::2], ValueError, "contiguous"),
    ):
        with pytest.raises(error, match=message):
            kernel(q, k, v, torch.empty_like(q), 1.0, lse=lse)


def test_the_tuning_space_stays_inside_what_is_tested() -> None:
    """No value of a field in the tuning space is outside of what this file runs."""
    small = {"B_c", "B_r", "d_head", "dtype", "n_stages", "heads_per_group"}
    for name in FIELDS - small:
        run_here = {getattr(cfg, name) for cfg in CONFIGS}
        assert {getattr(cfg, name) for cfg in get_sm90_autotuning_kernel_configs()} <= run_here
