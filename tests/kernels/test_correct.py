"""The kernels' results on the emulator against float64: scales, maxima, non-finite numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, fields
from itertools import combinations

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, KernelId
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import EmulatorFault
from flashsmith.reference import compare, reference_attention
from flashsmith.runtime import emulation
from flashsmith.runtime.workspace import workspace_for
from support.kernels import BY_FAMILY, SAMPLES, SOME, Samples, both_variants
from support.problems import Emulated, assert_correct, assert_lse, random_qkv, run, run_with_lse
from support.sm80_kernels import BASE, DECLARED, DECLARED_INSTANCES, KNOBS, SAMPLED_INSTANCES
from support.sm90_kernels import LAST, VARIED

SMALL = {"B_c", "B_r", "d_head", "dtype", "n_stages", "heads_per_group"}  # fields with many values
FMA = [cfg for cfg in VARIED if cfg.fma_exponentials]


def test_every_family_has_samples() -> None:
    assert [samples.family for samples in SAMPLES] == list(FORWARD.families)


@BY_FAMILY
def test_the_samples_have_every_field_both_ways(samples: Samples) -> None:
    for field in fields(samples.family.config):
        assert len({getattr(cfg, field.name) for cfg in samples.configs}) > 1, field.name
    assert {cfg.d_head for cfg in samples.configs} == set(samples.family.d_heads)
    assert not any(cfg.problems() for cfg in (*samples.configs, *samples.synchronised))
    assert {*samples.some} <= {*samples.configs}


@BY_FAMILY
def test_the_tuning_space_stays_inside_the_samples(samples: Samples) -> None:
    """The samples have every value that a field has in the tuning space."""
    for name in {field.name for field in fields(samples.family.config)} - SMALL:
        run_here = {getattr(cfg, name) for cfg in samples.configs}
        assert {getattr(cfg, name) for cfg in samples.family.sets.tuning_space()} <= run_here, name


def test_the_declared_set_is_complete() -> None:
    assert len(set(DECLARED)) == 165
    assert {i.config for i in DECLARED_INSTANCES if i.variant == FULL} == {
        *DECLARED,
        *KNOBS.values(),
    }
    causal = [i.config for i in DECLARED_INSTANCES if i.variant == CAUSAL]
    assert {(c.B_r, c.B_c, c.n_warps) for c in causal} >= {
        (128, 128, 8), (128, 64, 8), (128, 32, 8), (64, 128, 4), (64, 32, 4), (128, 64, 4)
    }  # fmt: skip


def test_the_sample_has_any_three_values_that_a_declared_kernel_has_at_once() -> None:
    def triples(instances: list[KernelId]) -> set[tuple[object, ...]]:
        values = [[*asdict(i.config).items(), i.variant] for i in instances]
        return {triple for each in values for triple in combinations(each, 3)}

    assert {KernelId(cfg) for cfg in KNOBS.values()} < {*SAMPLED_INSTANCES} < {*DECLARED_INSTANCES}
    assert triples(SAMPLED_INSTANCES) == triples(DECLARED_INSTANCES)


@pytest.mark.parametrize("instance", SAMPLED_INSTANCES, ids=lambda i: i.slug)
def test_declared_kernels_of_sm80(instance: KernelId, emulated: Emulated) -> None:
    """A sample of the kernels runs here, on several blocks of keys of which the last is partial;
    all of them run on a GPU."""
    qkv = random_qkv(instance.config, 200)
    assert_correct(run(emulated(instance), qkv), qkv, instance)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@SOME
def test_softmax_scale(instance: KernelId, scale: float, emulated: Emulated) -> None:
    qkv = random_qkv(instance.config)
    assert_correct(run(emulated(instance), qkv, scale), qkv, instance, scale)


@pytest.mark.parametrize("order", [1, -1], ids=["grows", "shrinks"])
@pytest.mark.parametrize("growth", [0.5, 3.0, 12.0, 40.0])
@SOME
def test_maximum_that_moves(
    instance: KernelId, growth: float, order: int, emulated: Emulated
) -> None:
    """The maximum moves by less and by more than the bound below which a lazy or stale maximum
    stays."""
    q, k, v = random_qkv(instance.config)
    ramp = torch.linspace(0, 4 * growth, 256).to(k.dtype)
    q[..., 0], k[..., 0] = 8.0, (ramp if order == 1 else ramp.flip(0))[None, :, None]
    o, lse = run_with_lse(emulated(instance), (q, k, v))
    assert_correct(o, (q, k, v), instance)
    assert_lse(lse, (q, k, v), instance)


@SOME
def test_large_logits_pick_one_key(instance: KernelId, emulated: Emulated) -> None:
    q, k, v = random_qkv(instance.config)
    assert_correct(run(emulated(instance), (q * 30, k * 30, v)), (q * 30, k * 30, v), instance)


@pytest.mark.parametrize("factor", [6, 30, 100])
@pytest.mark.parametrize("instance", both_variants(FMA), ids=lambda i: i.slug)
def test_polynomials_of_exponents_far_below_zero(
    instance: KernelId, factor: float, emulated: Emulated
) -> None:
    """A weight of 2^-126 or below becomes 0; an exponent that wrapped round would make a large
    number."""
    q, k, v = random_qkv(instance.config, 300)
    assert_correct(run(emulated(instance), (q * factor, k, v)), (q * factor, k, v), instance)


def test_some_and_all_exponentials_are_polynomials() -> None:
    assert {cfg.fma_exponentials for cfg in FMA} == {4, 16}


@SOME
def test_nan_stays_in_the_rows_that_see_it(instance: KernelId, emulated: Emulated) -> None:
    q, k, v = random_qkv(instance.config, 150)
    q[0, 70] = torch.nan
    o = run(emulated(instance), (q, k, v))
    assert o.isnan().any(-1).flatten().nonzero().flatten().tolist() == [70]


@BY_FAMILY
def test_causal_ignores_the_future(samples: Samples, emulated: Emulated) -> None:
    """The first rows do not change by a bit when the keys behind them do."""
    for cfg in samples.some[:2]:
        kernel = emulated(KernelId(cfg, CAUSAL))
        q, k, v = random_qkv(cfg, 200, seq_len_k=230)
        o = run(kernel, (q, k, v))
        k[:, 131:], v[:, 131:] = 50.0, -50.0
        assert torch.equal(run(kernel, (q, k, v))[:, :101], o[:, :101])


@pytest.mark.parametrize("cfg", [VARIED[9], LAST, BASE], ids=str)
def test_log_sum_exp_is_written_once(cfg: object, emulated: Emulated) -> None:
    """One of the lanes that know the LSE writes it."""
    kernel = emulated(KernelId(cfg))
    qkv = random_qkv(cfg, 200, heads=2)
    stored = []
    for call in (run, run_with_lse):
        with emulation(kernel) as emulator:
            call(kernel, qkv)
            stored.append(emulator.counters()["global_store_bytes"])
    without, with_lse = stored
    assert with_lse - without == 2 * 200 * 4


def test_tiles_of_a_queue_are_done_once(emulated: Emulated) -> None:
    """The queue is empty after the first of four thread blocks, which run one after the other."""
    kernel = emulated(KernelId(LAST))
    heads, seq_len = 12, 128
    with emulation(kernel, workers=1) as emulator:
        run(kernel, random_qkv(LAST, seq_len, heads=heads))
        assert emulator.counters()["wgmma_flops"] == heads * 4 * seq_len**2 * LAST.d_head


def test_a_block_draws_when_it_loads_the_last_keys_of_a_tile(emulated: Emulated) -> None:
    """An earlier draw would keep a tile from blocks that are free sooner. The launch is stopped in
    the first of many blocks of keys, when a warp does not wait for them."""
    kernel = emulated(KernelId(LAST))
    qkv = random_qkv(LAST, LAST.B_r, heads=12, seq_len_k=(LAST.n_stages + 3) * LAST.B_c)
    o = torch.empty_like(qkv[0])
    with emulation(kernel) as emulator:
        run(kernel, qkv)
        waits = [site for site in emulator.sites() if site.kind == "mbarrier_wait_parity"]
    stopped = 0
    for site in (each for each in waits if each.file == "block_steps.cuh"):
        workspace = workspace_for(kernel.plan(*qkv, o), o.device)
        assert workspace is not None
        with emulation(kernel, dropped=site, workers=1), suppress(EmulatorFault):
            kernel(*qkv, o, 1.0, workspace=workspace)
            continue
        stopped += 1
        assert not workspace.view(torch.int32)[0]
    assert stopped


def test_comparison_sees_a_wrong_element() -> None:
    q, k, v = random_qkv(BASE)
    exact = reference_attention(q, k, v)
    low = reference_attention(q, k, v, compute=torch.float16)
    o = exact.half()
    assert compare(o, exact, low).ok
    for wrong in (torch.nan, torch.inf, float(o[0, 3, 0, 5]) + 0.05):
        bad = o.clone()
        bad[0, 3, 0, 5] = wrong
        result = compare(bad, exact, low)
        assert not result.ok and "(0, 3, 0, 5)" in result.worst
