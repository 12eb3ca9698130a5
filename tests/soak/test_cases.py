"""Soaking: the cases that are drawn, their contents, and their text form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    VARIANTS,
    DType,
    ForwardKernelConfig,
    KernelId,
    Variant,
    get_kernel_progression_configs,
)
from flashsmith.lab.soak import (
    EMULATOR,
    Meaning,
    SoakCase,
    Values,
    Varlen,
    gpu_extent,
    prepare,
    random_case,
    takes,
    tile_boundary_cases,
    truth_of,
)
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.lab.soak.layout import LAYOUTS, place
from flashsmith.lab.soak.values import PATTERNS, make_values
from flashsmith.problem import Problem
from flashsmith.reference import Packing, Semantics
from support.sm90_kernels import CONFIGS as SM90_CONFIGS

H200 = gpu_extent(132)
SM80 = get_kernel_progression_configs()[-1]
EACH = pytest.mark.parametrize("cfg", [SM80, *SM90_CONFIGS], ids=str)
BOTH = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
RISE = Values("rise", 96, 7.92)
PROBLEM = Problem(DType.BF16, 128, 4, 18, 3, 500, 300)
CASE = SoakCase(PROBLEM, Meaning(causal=True), 0.5, "packed", RISE, 5)


# ---- cases ----


def test_case_reads_back() -> None:
    assert str(CASE) == (
        "dtype=BF16 d_head=128 batch=4 heads=18 heads_kv=3 seq_len_q=500 seq_len_k=300 "
        "causal=True softmax_scale=0.5 layout=packed values=rise:96:7.92 seed=5"
    )
    assert SoakCase.parse(str(CASE)) == CASE
    rng = Random(1)
    for cfg in SM90_CONFIGS:
        case = random_case(rng, cfg, CAUSAL, H200)
        assert SoakCase.parse(str(case)) == case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("d_head=0", "d_head is 0; expected at least 1"),
        ("seq_len_k=-1", "seq_len_k is -1; expected at least 0"),
        ("heads=17", "heads is 17, no multiple of heads_kv 3"),
        ("layout=odd", "layout is 'odd'; supported are contiguous, padded"),
        ("values=odd", "values is 'odd': pattern 'odd' is not known"),
        ("values=rise:0:1", "block is at least 1"),
        ("values=nan_v", "reach queries that do not see them"),
        ("dtype=FP8", "dtype is 'FP8'"),
        ("causal=yes", "causal is 'yes': expected True or False"),
        ("window_size=-2,3", "window_size is \\(-2, 3\\); expected two numbers, -1 or more"),
        ("window_size=3", "window_size is \\(3,\\); expected two numbers"),
        ("softcap=-1", "softcap is -1.0; expected 0 or more"),
        ("alibi=x", "alibi is 'x'; expected h or bh"),
        ("bias=jb", "bias is 'jb'; expected some of bhij"),
        ("lengths_q=1,2", "lengths_q has 2 numbers, and batch is 4"),
        ("lengths_k=1,2,0,301", "lengths_k is .*; expected 0 to \\(300, 300, 300, 300\\)"),
        ("lengths_k=1,2,0,4 used_k=1,3,0,4", "used_k is .*; expected 0 to \\(1, 2, 0, 4\\)"),
        ("size=1", "'size' is no field; fields: dtype, d_head"),
    ],
)
def test_case_that_cannot_be_is_refused(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SoakCase.parse(f"{CASE} {change}")


def test_case_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is incomplete: .*'heads'"):
        SoakCase.parse("dtype=BF16 d_head=128 batch=4")


# ---- tile boundaries ----


def keys_seen(problem: Problem, row: int) -> int:
    """Returns the number of keys a row sees under a causal mask, which may be negative or too
    large."""
    return problem.seq_len_k - problem.seq_len_q + row + 1


def some_first_rows_see_a_part(problem: Problem) -> bool:
    """Returns whether the first row of a warpgroup sees some keys, and not all."""
    rows = range(0, problem.seq_len_q, 64)
    return any(0 < keys_seen(problem, row) < problem.seq_len_k for row in rows)


@EACH
def test_every_place_of_a_warpgroup_sees_whole_blocks_and_a_few_keys_more_or_less(
    cfg: ForwardKernelConfig,
) -> None:
    problems = [case.problem for case in tile_boundary_cases(cfg, CAUSAL, EMULATOR)]
    for row in range(0, cfg.B_r, 64):
        residues = {
            keys_seen(each, row) % cfg.B_c
            for each in problems
            if each.seq_len_q > row and 0 < keys_seen(each, row) < each.seq_len_k
        }
        assert {0, 1, 2 % cfg.B_c, cfg.B_c - 1} <= residues, row
    partly = [each for each in problems if some_first_rows_see_a_part(each)]
    assert any(each.seq_len_k > each.seq_len_q for each in partly)
    assert any(each.seq_len_k < each.seq_len_q for each in partly)


@BOTH
@EACH
def test_tile_boundaries_have_many_tiles_of_one_block(
    cfg: ForwardKernelConfig, variant: Variant
) -> None:
    for extent in (EMULATOR, H200):
        problems = [case.problem for case in tile_boundary_cases(cfg, variant, extent)]
        tiles = [
            each.batch * each.heads * math.ceil(each.seq_len_q / cfg.B_r)
            for each in problems
            if each.seq_len_k <= cfg.B_c
        ]
        assert max(tiles) >= 4 * extent.num_sms
        assert extent is EMULATOR or max(each.heads for each in problems) == 18


@BOTH
@EACH
def test_tile_boundaries_have_every_pattern_layout_and_odd_length(
    cfg: ForwardKernelConfig, variant: Variant
) -> None:
    cases = tile_boundary_cases(cfg, variant, EMULATOR)
    assert {case.variant for case in cases} == {variant}
    assert len(set(cases)) == len(cases) < 70
    taken = [case for case in cases if takes(cfg, case)]
    without = {"nan_v", "inf_v"} if variant == CAUSAL else set()
    if getattr(cfg, "fma_exponentials", 0):
        without |= {"nan_q", "nan_k", "inf_q", "inf_k"}
    assert {case.values.pattern for case in taken} == set(PATTERNS) - without
    assert {case.layout for case in taken} == set(LAYOUTS)
    (refused,) = (case.problem for case in cases if not takes(cfg, case))
    assert refused.seq_len_q > refused.seq_len_k == 0
    problems = [case.problem for case in taken]
    assert {0, 1, cfg.B_r - 1, cfg.B_r, cfg.B_r + 1} <= {each.seq_len_q for each in problems}
    assert {1, cfg.B_c - 1, cfg.B_c, cfg.B_c + 1} <= {each.seq_len_k for each in problems}
    assert any(each.heads > each.heads_kv for each in problems)


def test_steps_are_just_under_and_over_the_lazy_bound() -> None:
    lazy = {(getattr(cfg, "lazy_rescale_log2", 0) or 8): cfg for cfg in SM90_CONFIGS}
    assert set(lazy) == {1, 2, 4, 8}
    for bound, cfg in lazy.items():
        steps = {c.values.step for c in tile_boundary_cases(cfg, FULL, EMULATOR)} - {0}
        assert steps == {bound * 0.99, bound * 1.01}


def random_cases(cfg: ForwardKernelConfig, variants: Sequence[Variant]) -> list[SoakCase]:
    rng = Random(0)
    return [random_case(rng, cfg, rng.choice(variants), EMULATOR) for _ in range(300)]


@EACH
def test_random_cases_are_taken_small_and_of_all_kinds(cfg: ForwardKernelConfig) -> None:
    cases = random_cases(cfg, VARIANTS)
    assert all(takes(cfg, case) for case in cases)
    problems = [case.problem for case in cases]
    assert all(0 < each.n_scores <= EMULATOR.max_scores for each in problems)
    assert {case.variant for case in cases} == set(VARIANTS)
    assert {case.layout for case in cases} == set(LAYOUTS)
    assert len({case.values for case in cases}) > 10
    assert any(each.seq_len_q > each.seq_len_k for each in problems)
    assert any(each.seq_len_q < each.seq_len_k for each in problems)
    assert any(each.heads > each.heads_kv for each in problems)
    assert random_cases(cfg, VARIANTS) == cases


@EACH
def test_random_cases_are_those_of_their_variant(cfg: ForwardKernelConfig) -> None:
    rng = Random(0)
    for variant in MIXED_VARIANTS:
        for _ in range(40):
            case = random_case(rng, cfg, variant, EMULATOR)
            assert case.kernel(cfg) == KernelId(cfg, variant)
            assert SoakCase.parse(str(case)) == case
            assert takes(cfg, case) and case.problem.n_scores <= EMULATOR.max_scores
            assert case.problem.d_head % 8 == case.problem.d_v % 8 == 0


def test_random_meanings_are_of_all_kinds() -> None:
    cases = random_cases(SM80, MIXED_VARIANTS)
    meanings = [case.meaning for case in cases]
    B_c = SM80.B_c
    lefts = {each.window_size[0] for each in meanings}
    assert {-1, 0, 1, B_c - 1, B_c, B_c + 1} <= lefts and max(lefts) > 10_000
    for bounded in (True, False):
        rights = {each.window_size[1] for each in meanings if each.causal is not bounded}
        assert len(rights) > 2
    assert {each.top_left for each in meanings} == {True, False}
    assert {each.alibi for each in meanings} == {"", "h", "bh"}
    assert len({each.bias for each in meanings}) > 5
    problems = [case.problem for case in cases]
    for ordered in (int.__lt__, int.__gt__, int.__eq__):
        assert any(ordered(each.d_head, each.d_v) for each in problems)


def test_random_lengths_are_of_all_kinds() -> None:
    cases = [case for case in random_cases(SM80, MIXED_VARIANTS) if case.variant.varlen]
    for name in ("lengths_q", "lengths_k", "used_q", "used_k"):
        found = [getattr(case.varlen, name) for case in cases]
        assert None in found
        lengths = {n for each in found if each is not None for n in each}
        assert {0, 1} <= lengths and max(lengths) > 100, name
    packed = {(c.varlen.lengths_q is None, c.varlen.lengths_k is None) for c in cases}
    assert packed == set(product((True, False), repeat=2)), "one side, both and none"


# ---- the tensors of a case ----


def test_what_no_sequence_uses_is_nan_and_is_not_written() -> None:
    case = SoakCase(
        Problem(DType.FP16, 64, 3, 2, 1, 9, 12),
        varlen=Varlen(lengths_q=(9, 0, 4), used_q=(5, 0, 4), used_k=(12, 3, 0)),
    )
    prepared = prepare(case, "cpu")
    placed, truth = prepared.placed, prepared.truth
    assert truth is not None and placed.q.shape == (9 + 4 + 3, 2, 64)
    assert placed.q.isnan().any(-1).any(-1).int().tolist() == [0] * 5 + [1] * 4 + [0] * 4 + [1] * 3
    for t in (placed.k, placed.v):
        assert t.isnan().any(-1).any(-1).sum(1).tolist() == [0, 9, 12]
    assert torch.equal(truth.used[:, :, 0], ~placed.q.isnan().any(-1))
    assert torch.equal(truth.lse_used, truth.used[:, :, 0].T)
    assert torch.equal(truth.o.isnan(), ~truth.used.expand_as(truth.o))
    assert (truth.o[9:13] == 0).all() and truth.lse[:, 9:13].isneginf().all(), "it has no keys"
    extras = prepared.extras
    assert extras.cu_seqlens_q.tolist() == [0, 9, 9, 13] and extras.cu_seqlens_k is None
    assert (extras.seqused_q.tolist(), extras.seqused_k.tolist()) == ([5, 0, 4], [12, 3, 0])
    assert extras.max_seqlen_q == 9


def test_sequences_in_a_batch_have_the_truth_that_they_have_alone() -> None:
    lengths_q, lengths_k = (30, 1, 12), (7, 40, 12)
    text = "dtype=FP16 d_head=64 batch=3 heads=4 heads_kv=2 seq_len_q=30 seq_len_k=40 causal=True"
    words = f"lengths_q={','.join(map(str, lengths_q))} lengths_k={','.join(map(str, lengths_k))}"
    packed = prepare(SoakCase.parse(f"{text} {words}"), "cpu")
    truth = packed.truth
    assert truth is not None
    begin_q = begin_k = 0
    for n_q, n_k in zip(lengths_q, lengths_k, strict=True):
        rows, keys = slice(begin_q, begin_q + n_q), slice(begin_k, begin_k + n_k)
        q, k, v = packed.placed.q[rows], packed.placed.k[keys], packed.placed.v[keys]
        alone = truth_of(q[None], k[None], v[None], Semantics(causal=True), Packing())
        assert torch.equal(truth.o[rows], alone.o[0])
        assert torch.equal(truth.lse[:, rows], alone.lse[0])
        assert torch.equal(truth.allowance[rows], alone.allowance[0])
        assert torch.equal(truth.lse_tolerance[:, rows], alone.lse_tolerance[0])
        begin_q, begin_k = begin_q + n_q, begin_k + n_k


def test_meaning_makes_what_its_words_say() -> None:
    problem = Problem(DType.BF16, 64, 2, 4, 2, 50, 60)
    words = Meaning(True, (3, -1), 5.0, "bh", True, "hj", True)
    made = words.semantics(problem, 0.3, 7, "cpu")
    assert (made.causal, made.window_size, made.softcap) == (True, (3, -1), 5.0)
    assert (made.softmax_scale, made.top_left) == (0.3, True)
    assert made.alibi_slopes is not None and made.alibi_slopes.shape == (2, 4)
    assert made.sinks is not None and made.sinks.shape == (4,) and not made.sinks.isnan().any()
    assert made.bias is not None and made.bias.shape == (1, 4, 1, 60)
    assert made.bias.dtype == torch.bfloat16
    hidden = made.bias.isneginf().float().mean()
    assert 0.03 < hidden < 0.2
    again, other = (words.semantics(problem, 0.3, seed, "cpu") for seed in (7, 8))
    assert again.bias is not None and torch.equal(made.bias, again.bias)
    assert other.bias is not None and not torch.equal(made.bias, other.bias)
    rows = Meaning(bias="bhij").semantics(problem, None, 7, "cpu").bias
    assert rows is not None and rows.shape == (2, 4, 50, 60)
    assert 0 < rows.isneginf().all(-1).float().mean() < 0.3
    assert Meaning().semantics(problem, None, 7, "cpu").keywords == {}


# ---- values and layouts ----


def scores_log2(values: Values, dtype: torch.dtype, scale: float = 128**-0.5) -> torch.Tensor:
    """Returns the scores of five queries and 8 blocks of 96 keys, in units of log2."""
    shapes = (1, 5, 1, 128), (1, 768, 1, 128), (1, 768, 1, 128)
    q, k, _ = make_values(values, *shapes, dtype, scale=scale, causal=False, seed=0, device="cpu")
    return (q[0, :, 0].double() @ k[0, :, 0].double().T) * scale * math.log2(math.e)


@pytest.mark.parametrize("scale", [128**-0.5, 0.01, 1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", [3.96, 4.04, 7.92, 8.08])
def test_stairs_climb_by_exactly_their_step(step: float, dtype: torch.dtype, scale: float) -> None:
    """The error of the step is less than the distance of 7.92 and 8.08 from 8."""
    for pattern, sign in (("rise", 1), ("fall", -1)):
        s = scores_log2(Values(pattern, 96, step), dtype, scale)
        maxima = s.view(5, 8, 96).amax(-1)
        climbs = maxima.diff(dim=1) * sign
        # The unit is a power of two near what the scale requires.
        assert (climbs[0] - step).abs().max() < 0.005 * step
        assert (climbs[1] - step / 2).abs().max() < 0.005 * step
        assert (climbs[3] < 0).all()
        assert torch.allclose(climbs[0], climbs[2])


def test_huge_and_negative_are_what_they_say() -> None:
    huge = scores_log2(Values("huge"), torch.float16).abs()
    assert huge.max() > 1000 and huge.isfinite().all()
    assert scores_log2(Values("negative"), torch.bfloat16).max() < -50
    assert (scores_log2(Values("zeros"), torch.float16) == 0).all()
    spike = scores_log2(Values("spike", 96), torch.float16)
    assert (spike[:, 0] > 3 + spike[:, 1:].amax(-1)).float().mean() > 0.5


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_values_are_the_same_for_the_same_seed(pattern: str) -> None:
    def make(seed: int) -> tuple[torch.Tensor, ...]:
        shapes = (2, 40, 4, 64), (2, 50, 2, 64), (2, 50, 2, 64)
        return make_values(
            Values(pattern, 16, 1.0), *shapes, torch.float16, scale=0.125, causal=False,
            seed=seed, device="cpu",
        )  # fmt: skip

    first, again, other = make(3), make(3), make(4)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))
    assert pattern == "constant" or not all(map(torch.equal, first, other))
    assert all(tensor.isfinite().all() for tensor in first) != (pattern[:3] in ("nan", "inf"))


@pytest.mark.parametrize("lengths", [(20, 20), (20, 30), (0, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_values_and_guard_what_is_around(
    layout: str, lengths: tuple[int, int]
) -> None:
    seq_len_q, seq_len_k = lengths
    shapes = (2, seq_len_q, 4, 64), (2, seq_len_k, 2, 64), (2, seq_len_k, 2, 64)
    q, k, v = (torch.randn(shape).half() for shape in shapes)
    placed = place(layout, q.clone(), k.clone(), v.clone())
    assert all(map(torch.equal, (placed.q, placed.k, placed.v), (q, k, v)))
    contiguous = [tensor.is_contiguous() for tensor in (placed.q, placed.k, placed.v)]
    assert layout == "contiguous" or lengths[0] == 0 or not all(contiguous)
    for value in (math.nan, 3.0):
        placed.results.poison(value)
        assert not placed.results.n_overwritten()
    assert (placed.o == 3).all() and (placed.lse == 3).all()
    for whole in placed.results.around:
        for at in (0, -1):
            placed.results.poison(1.0)
            elements = whole.untyped_storage().nbytes() // whole.element_size()
            flat = torch.as_strided(whole, (elements,), (1,))
            flat[at] = 0
            assert placed.results.n_overwritten() == 1
