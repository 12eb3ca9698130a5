"""The measured operations: tensors, truth, candidates and FLOP of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import CAUSAL, DType
from flashsmith.configs.sm90.fp8_space import fp8_candidates
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.operations import BENCHES, decode_inputs
from flashsmith.lab.bench.operations.decode import ALL_ROWS
from flashsmith.lab.bench.operations.decode_inputs import DecodeInputs, cache_names
from flashsmith.lab.bench.operations.fp8_inputs import FP8, Fp8Inputs
from flashsmith.lab.bench.operations.inputs import TOLERANCE, Inputs, flop_of
from flashsmith.lab.bench.operations.scores import SCORES, flex_score_mod, score_arguments
from flashsmith.lab.bench.peers import flex_run
from flashsmith.lab.bench.results import OK
from flashsmith.lab.bench.runner import Runner
from flashsmith.reference import reference_attention, reference_gradients

SMALL = Case("forward", workload_of(64, 2, (4, 2), 64, CAUSAL), ())
DECODE = Case("decode", workload_of(64, 3, (4, 2), (1, 256)), (), cache="entries")
EQUAL = replace(SMALL, workload=workload_of(64, 2, 2, 64))


def packed(*lengths: int, operation: str = "forward", causal: bool = True) -> Case:
    shape = len(lengths), (4, 2), max(lengths)
    workload = workload_of(64, *shape, *[CAUSAL] * causal)
    return replace(SMALL, operation=operation, workload=workload, lengths=lengths)


def right(case: Case) -> set[str]:
    """Returns the candidates of an operation that run here, after a check that all of them are
    right."""
    operation = BENCHES[case.operation]
    here = {name for name, peer in operation.peers.items() if not peer.package.why_missing()}
    named = replace(case, candidates=case.candidates or (*operation.ours, *here))
    found = {each.name: each.checked for each in Runner("cpu").measure(named, [])}
    bad = {name: each.reason for name, each in found.items() if each.status != OK}
    assert not {name: why for name, why in bad.items() if "CPU" not in why}  # torch's, for GPUs
    return found.keys() - bad


def decoders(cache: str) -> set[str]:
    """Returns the candidates that decode such a KV cache here."""
    more = {ALL_ROWS, "flashsmith attention", "fa2"} if cache == "entries" else set()
    more |= {"flashsmith per-token scales"} if cache.startswith("fp8") else set()
    return more | {"flashsmith", "flashsmith splits 1", "flashsmith splits 8"}


BOTH = {"flashsmith", "flashsmith deterministic"}
GRADIENTS = BOTH | {"flashsmith sm80", "flashsmith sm80 sums"}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (SMALL, {"flashsmith", "flashsmith sm80", "fa2"}),
        (replace(SMALL, strided=True), {"flashsmith", "flashsmith sm80", "fa2"}),
        (replace(SMALL, window=16), {"flashsmith", "flashsmith sm80"}),
        (replace(SMALL, score="alibi"), {"flashsmith", "flashsmith sm80"}),
        (packed(48, 17, 33), {"flashsmith", "flashsmith sm80"}),
        (replace(SMALL, operation="backward"), GRADIENTS),
        (replace(EQUAL, operation="backward"), GRADIENTS | {"fa2"}),
        (replace(SMALL, operation="backward", score="bias", candidates=(*BOTH,)), BOTH),
        (packed(48, 17, operation="backward"), GRADIENTS),
        (packed(48, 17, operation="training step"), BOTH),
        (replace(EQUAL, operation="forward in 8 bits"), {"flashsmith BF16"}),
        *((replace(DECODE, cache=cache), decoders(cache)) for cache in cache_names(256, 3)),
    ],
    ids=lambda value: str(value) if isinstance(value, Case) else "",
)
def test_what_runs_without_a_gpu_is_right(case: Case, expected: set[str]) -> None:
    assert right(case) == expected


def test_a_wrong_head_of_any_sample_that_is_looked_at_is_found() -> None:
    torch.manual_seed(0)
    case = replace(SMALL, score="alibi")
    forward, backward = Inputs(case, "cpu"), Inputs(case, "cpu", gradients=True)
    keywords: dict[str, Any] = {"compute": torch.float32}
    exact = reference_attention(*forward.qkv, **forward.semantics, **keywords)
    found = reference_gradients(*backward.qkv, backward.do, **backward.semantics, **keywords)
    for given, results in ((forward, (exact,)), (backward, (found.q, found.k, found.v))):
        assert given.error_of(results) < 1e-5
        for index, result in enumerate(results):
            for sample, head in ((0, 0), (-1, -1)):
                spoilt = [each.clone() for each in results]
                spoilt[index][sample, 20, head] += 0.1 * result.abs().max()
                assert given.error_of(tuple(spoilt)) > 2 * TOLERANCE
                spoilt[index][sample, 20, head] = torch.nan
                assert not given.error_of(tuple(spoilt)) < TOLERANCE


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_every_row_of_every_packed_sequence_is_looked_at(operation: str) -> None:
    torch.manual_seed(0)
    case = packed(48, 17, 33, operation=operation)
    given = BENCHES[operation].prepare(case, "cpu")
    found = BENCHES[operation].ours["flashsmith"](given)()
    results = found if isinstance(found, tuple) else (found,)
    assert given.error_of(results) < TOLERANCE
    for result, row in product(results, range(48 + 17 + 33)):
        right = result[row].clone()
        result[row] += result.abs().max()
        assert given.error_of(results) > TOLERANCE
        result[row] = right
    offsets = given.packing["cu_seqlens_q"]
    assert offsets.tolist() == [0, 48, 65, 98] and offsets.dtype == torch.int32


def keywords_of(operator: Any, *values: object) -> dict[str, Any]:
    """Returns the arguments of a call of torch's operator by their names."""
    names = [argument.name for argument in operator.default._schema.arguments]
    return dict(zip(names, values, strict=False))


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_peers_are_told_where_packed_sequences_begin_and_the_longest_length(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    aten, of_fa3 = torch.ops.aten, SimpleNamespace()
    for way in ("forward", "backward"):
        operator = getattr(aten, f"_flash_attention_{way}")

        def of_torch(*values: Any, operator: Any = operator) -> tuple[torch.Tensor, ...]:
            calls.append(keywords_of(operator, *values))
            return values[0], values[0], values[0], values[0], values[0]

        def of_library(*values: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
            calls.append(keywords)
            return values[0], values[0], values[0], values[0]

        monkeypatch.setattr(aten, operator.__name__, of_torch)
        setattr(of_fa3, {"forward": "fwd", "backward": "bwd"}[way], of_library)
    monkeypatch.setattr(fa3, "load_operators", lambda: of_fa3)
    given: Any = BENCHES[operation].prepare(packed(48, 17, 33, operation=operation), "cpu")
    for peer, offsets, longest in (("fa3", "cu_seqlens", "max_seqlen"), ("fa2", "cum_seq", "max")):
        run: Any = BENCHES[operation].peers[peer].make(given)
        run()
        assert len(calls) == (2 if operation == "backward" else 1)
        for call in calls:
            assert call["is_causal"] and call.get("dropout_p", 0) == 0
            assert call.get("softmax_scale", 1 / 8) == 1 / 8
            for of in "qk":
                assert call[f"{offsets}_{of}"].tolist() == [0, 48, 65, 98]
                assert call[f"{longest}_{of}"] == 48
        calls.clear()
    assert BENCHES[operation].peers["cudnn"].make(given) is None


@pytest.mark.parametrize("score", [s for s in SCORES if f"score_mod: {s}" in SCORES])
def test_functions_are_the_arguments_that_they_stand_for(score: str) -> None:
    q, k, v = (torch.randn(1, 32, 2, 64).bfloat16() for _ in range(3))
    found = []
    for each in (score, f"score_mod: {score}"):
        torch.manual_seed(1)
        arguments = score_arguments(each, workload_of(64, 1, 2, 32).problem, "cpu")
        found.append(reference_attention(q, k, v, causal=True, **arguments))
    assert torch.allclose(*found, atol=1e-6)


def test_flop_are_of_what_the_mask_leaves() -> None:
    of_a_score = 4 * 64 * 4
    assert flop_of(SMALL) == of_a_score * 2 * 64 * 64 / 2
    assert flop_of(replace(SMALL, window=16)) == of_a_score * 2 * (64 * 16 - 16 * 15 / 2)
    assert flop_of(packed(48, 17)) == of_a_score * (48 * 49 + 17 * 18) / 2
    assert flop_of(packed(48, 17, causal=False)) == of_a_score * (48**2 + 17**2)
    for operation, products in (("forward", 1), ("backward", 2.5), ("training step", 3.5)):
        case = packed(48, 17, operation=operation)
        assert BENCHES[operation].prepare(case, "cpu").flop == products * flop_of(case)


@pytest.mark.parametrize("operation", ["forward", "backward", "training step"])
def test_a_peer_is_left_out_of_what_it_does_not_take(operation: str) -> None:
    """A peer refuses a case before it loads or runs its package, which is not installed here."""
    peers = BENCHES[operation].peers
    for case, takers in (
        (replace(SMALL, score="sinks"), set()),
        (replace(SMALL, score="bias", workload=EQUAL.workload), set()),
        (replace(SMALL, window=16), {"fa3", "fa3_deterministic"}),
        (replace(packed(48, 17), window=16), {"fa3", "fa3_deterministic"}),
    ):
        given: Any = BENCHES[operation].prepare(replace(case, operation=operation), "cpu")
        assert not {name for name in {*peers} - takers if peers[name].make(given) is not None}


def test_torch_has_another_diagonal_where_lengths_differ() -> None:
    peers = BENCHES["forward"].peers
    for variant, takes in (((CAUSAL,), False), ((), True)):
        given = Inputs(replace(SMALL, workload=workload_of(64, 1, 2, (32, 64), *variant)), "cpu")
        assert [peers[name].make(given) is not None for name in ("fa2", "cudnn")] == [takes] * 2


def test_flex_attention_is_given_what_ours_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention runs eagerly here, without torch.compile."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    torch.manual_seed(0)
    for score in ("bias", "score_mod: alibi", "score_mod: plain"):
        case = replace(SMALL, workload=workload_of(16, 1, 2, 128, CAUSAL), score=score)
        given = Inputs(case, "cpu")
        assert (
            given.error_of(flex_run(*given.qkv, True, flex_score_mod(given.semantics))())
            < TOLERANCE
        )


def test_pages_are_in_random_order_and_hold_the_entries() -> None:
    torch.manual_seed(0)
    entries = DecodeInputs(DECODE, "cpu").cache
    cache = entries.paged(64)
    assert cache.table is not None and cache.rows == 256 and cache.is_full
    assert not torch.equal(cache.table.flatten(), torch.arange(12)), "pages are in order"
    assert torch.equal(cache.v[cache.table.long()].flatten(1, 2), entries.v)
    varlen, again = (
        DecodeInputs(replace(DECODE, cache="varlen pages of 16"), "cpu").cache for _ in range(2)
    )
    assert not varlen.is_full and varlen.rows == 256
    assert varlen.lengths.equal(again.lengths), "they depend on the case alone"


@pytest.mark.parametrize("cache", ["entries", "varlen pages of 16", "fp8 pages of 64"])
def test_layers_of_a_step_have_caches_of_their_own(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = DecodeInputs(replace(DECODE, cache=cache), "cpu")
    monkeypatch.setattr(decode_inputs, "_BYTES_BEYOND_L2", 5 * given.n_bytes // 2)
    layers = given.layers()
    assert layers[0] is given and len(layers) == 3
    assert len({each.cache.v.data_ptr() for each in layers}) == 3
    for each in layers:
        o = flashsmith.decode(None, **each.keywords)
        assert isinstance(o, torch.Tensor) and each.error_of(o) < TOLERANCE
    monkeypatch.setattr(decode_inputs, "_BYTES_BEYOND_L2", 1 << 60)
    assert len(given.layers()) == decode_inputs._MAX_LAYERS
    monkeypatch.setattr(decode_inputs, "_BYTES_BEYOND_L2", 1)
    assert len(given.layers()) == 1


def test_flashinfer_is_no_peer_at_head_dimensions_that_it_cannot_merge() -> None:
    case = replace(
        DECODE, workload=workload_of(96, 3, (4, 2), (1, 256)), cache="varlen pages of 16"
    )
    assert BENCHES["decode"].peers["flashinfer"].make(DecodeInputs(case, "cpu")) is None


def test_bytes_of_decode_are_those_of_the_keys_and_values_that_requests_have() -> None:
    for cache, element in (("entries", 2), ("fp8", 1), ("fp8 pages of 64", 1)):
        given = DecodeInputs(replace(DECODE, cache=cache), "cpu")
        assert given.n_bytes == 3 * 256 * 2 * 2 * 64 * element
    torch.manual_seed(0)
    varlen = DecodeInputs(replace(DECODE, cache="varlen pages of 16"), "cpu")
    assert varlen.n_bytes < 3 * 256 * 2 * 2 * 64 * 2


def test_a_wrong_request_of_those_that_are_looked_at_is_found() -> None:
    given = DecodeInputs(DECODE, "cpu")
    o = flashsmith.decode(None, **given.keywords)
    for request in (0, -1):
        spoilt = o.clone()  # type: ignore[union-attr]
        spoilt[request, 0, 3, 7] += 1
        assert given.error_of(spoilt) > TOLERANCE


@pytest.mark.parametrize("cache", ["entries", "fp8"])
def test_other_configurations_of_decode_are_measured_where_they_fit(cache: str) -> None:
    names = (
        "(BF16, 64, 16, 32, 2): decode+stages_3+blocks_4",
        "(BF16, 64, 16, 32, 4): decode+fp8_cache+stages_5+blocks_2",
        "(BF16, 128, 16, 16, 2): decode+stages_3+blocks_4",
    )
    assert right(replace(DECODE, cache=cache, candidates=names)) == {names[cache == "fp8"]}


def test_numbers_of_8_bits_and_of_16_are_the_same_ones() -> None:
    given = Fp8Inputs(replace(EQUAL, operation="forward in 8 bits"), "cpu")
    for name in "qkv":
        exact = given.small[name].double() * given.scales[name].double()
        assert torch.equal(given.wide[name].double(), exact)
        assert given.small[name].float().abs().max() > torch.finfo(FP8).max / 2.3


@pytest.mark.parametrize("fp8_values", [False, True])
def test_a_kernel_of_8_bits_is_as_far_off_as_its_weights(fp8_values: bool) -> None:
    name = str(fp8_candidates(DType.BF16, 64, fp8_values)[0])
    case = replace(EQUAL, operation="forward in 8 bits", candidates=("flashsmith BF16", name))
    wide, small = Runner("cpu").measure(case, [])
    assert small.is_right and (small.error > 3 * wide.error) == fp8_values
    o = small.run()
    assert small.given.error_of((o / 4, 4.0)) == pytest.approx(small.error, rel=0.1)
    assert not small.given.error_of(o * 1.2) < small.given.tolerance


def test_rows_that_are_strided_lie_apart() -> None:
    given = Inputs(replace(SMALL, strided=True), "cpu")
    assert [t.stride(2) for t in given.qkv] == [3 * 64] * 3 and given.q.shape[-1] == 64
