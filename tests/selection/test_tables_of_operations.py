"""Tuned tables of decode and of the backward: their contents, and when they serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import CAUSAL, FULL, KernelConfig, Variant
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import BACKWARD, DECODE, FORWARD
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload, Workload, WorkTiles
from flashsmith.dtype import DType
from flashsmith.errors import DeviceError, TuningError
from flashsmith.ops import backward as backward_calls
from flashsmith.ops import decode_calls
from flashsmith.problem import Problem
from flashsmith.selection import select
from flashsmith.selection.choice import FewQueriesChoice
from flashsmith.selection.choose import choose, choose_for, forget_tables
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.served import served_instances
from flashsmith.selection.tables import Table, user_table_path
from support.tuning import STAMP as OF_AN_A100

H200 = "NVIDIA H200"
STAMP = {**OF_AN_A100, "gpu": H200}
PLAIN = DecodeWorkload(DType.BF16, 128, rows=16, tiles=WorkTiles.FEW)
BOXED = DecodeWorkload(DType.BF16, 128, rows=64, in_boxes=True)
OTHER = DECODE.candidates(PLAIN, "sm_90a")[2]
OTHER_BOXED = next(c for c in DECODE.candidates(BOXED, "sm_90a")[:-1] if c.family == "sm90")
GRADIENTS = BackwardWorkload(Problem.square(DType.BF16, 128, 4, 16, 4096), CAUSAL)
SAME_BITS = replace(GRADIENTS, deterministic=True)


def entry(workload: Any, config: KernelConfig, **given: Any) -> Entry[Any, Any]:
    row = Measured(config, 0.0125, 0.012, 0.013, tflops=workload.tflops(0.0125))
    usual = {"tried": 12, "excluded": {}, "heuristic_ratio": 1.25, "ranked": (row,)}
    return Entry(workload, **usual | given)


def other_backward(workload: BackwardWorkload) -> Any:
    """Returns a configuration that the heuristic does not choose."""
    return next(c for c in BACKWARD.candidates(workload, "sm_90a") if c.family == "sm90")


TABLES: dict[str, Table[Any, Any]] = {
    "decode": Table.of(
        DECODE,
        STAMP,
        [
            entry(PLAIN, OTHER),
            entry(BOXED, OTHER_BOXED, heuristic_ratio=None, excluded={"x": "error"}),
        ],
    ),
    "backward": Table.of(
        BACKWARD, STAMP, [entry(each, other_backward(each)) for each in (GRADIENTS, SAME_BITS)]
    ),
}
EACH = pytest.mark.parametrize("operation", [DECODE, BACKWARD], ids=lambda each: each.name)

pytestmark = pytest.mark.usefixtures("own_tables")


def written(operation: Operation[Any, Any], gpu: str = H200) -> Path:
    path = user_table_path(gpu, operation)
    TABLES[operation.name].write(path)
    forget_tables()
    return path


@EACH
def test_a_table_is_read_as_it_was_written(operation: Operation[Any, Any]) -> None:
    path = written(operation)
    found = Table.read(path)
    assert found == TABLES[operation.name] and found.operation is operation
    assert path.name == f"h200-{operation.name}.csv"


@EACH
def test_a_table_of_another_operation_is_refused(operation: Operation[Any, Any]) -> None:
    table = written(operation)
    table.rename(user_table_path(H200))
    with pytest.warns(UserWarning, match=rf"it is of {operation.name} kernels, and was looked up"):
        found = choose_for(FORWARD, Workload.square(DType.BF16, 128, 4096), H200)
    assert "of " + operation.name in found.passed_over[0]


def test_decode_takes_what_was_measured_for_it_and_the_heuristics_choice_else() -> None:
    def chosen(workload: DecodeWorkload) -> object:
        return choose_for(DECODE, workload, H200).config

    heuristic = DECODE.choose_by_heuristic(PLAIN, (9, 0))
    assert chosen(PLAIN) == heuristic != OTHER  # there is no table yet
    path = written(DECODE)
    found = choose_for(DECODE, PLAIN, H200)
    assert found.config == OTHER
    assert found.reason == f"your table {path}, BF16 d 128 16 bits, up to 16 rows, few tiles"
    assert chosen(replace(PLAIN, rows=4)) == OTHER
    assert chosen(replace(PLAIN, dtype=DType.FP16)) == OTHER.for_dtype(DType.FP16)
    assert chosen(replace(BOXED, rows=50)) == OTHER_BOXED
    for unmeasured in (
        replace(PLAIN, tiles=WorkTiles.MANY),
        replace(PLAIN, fp8_cache=True),
        replace(PLAIN, d_head=64),
        replace(BOXED, in_boxes=False),
        replace(BOXED, rows=65),
    ):
        assert chosen(unmeasured) == DECODE.choose_by_heuristic(unmeasured, (9, 0))
    assert choose_for(DECODE, PLAIN, None).config == DECODE.choose_by_heuristic(PLAIN, None)
    assert choose_for(DECODE, PLAIN, "NVIDIA Unheard Of", (9, 0)).config == heuristic


def test_gradients_take_what_was_measured_for_their_bucket_and_bits() -> None:
    def chosen(workload: BackwardWorkload) -> Any:
        return choose_for(BACKWARD, workload, H200).config

    by_heuristic = {each: chosen(each) for each in (GRADIENTS, SAME_BITS)}
    written(BACKWARD)
    for workload, heuristic in by_heuristic.items():
        other = other_backward(workload)
        assert chosen(workload) == other != heuristic
        assert chosen(replace(workload, problem=replace(workload.problem, batch=3))) == other
        fp16 = replace(workload.problem, dtype=DType.FP16)
        assert chosen(replace(workload, problem=fp16)) == other.for_dtype(DType.FP16)
        unmeasured = replace(workload, variant=FULL)
        assert chosen(unmeasured) == BACKWARD.choose_by_heuristic(unmeasured, (9, 0))
    assert chosen(SAME_BITS).is_deterministic
    # A kernel that does not serve the variant is skipped.
    biased = replace(GRADIENTS, variant=Variant(causal=True, bias=True))
    assert chosen(biased) == BACKWARD.choose_by_heuristic(biased, (9, 0))


def test_a_call_for_gradients_takes_the_tables_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call also forgets the kernel with the tables."""
    q, k, v = (torch.randn(1, 40, 2, 64).half() for _ in range(3))
    o, lse = flashsmith.attention(q, k, v, return_lse=True)

    def chosen() -> set[KernelConfig]:
        flashsmith.backward(None, torch.ones_like(o), q, k, v, o, lse)
        return {each.kernel.instance.config for each in backward_calls._choices.values()}

    (heuristic,) = chosen()
    a100 = "NVIDIA A100-SXM4-80GB"
    workload = BackwardWorkload(Problem.square(DType.FP16, 64, 1, 2, 40))
    other = next(c for c in BACKWARD.candidates(workload, "sm_80") if c != heuristic)
    table = Table.of(BACKWARD, OF_AN_A100, [entry(workload, other)])
    table.write(user_table_path(a100, BACKWARD))
    monkeypatch.setattr(backward_calls, "gpu_of", lambda _: (a100, (8, 0)))
    assert chosen() == {heuristic}  # as it was remembered
    forget_tables()
    assert chosen() == {other}
    reason = select.why_chosen(other, FULL, q.device)
    assert reason is not None and reason.startswith("your table")


def test_few_queries_of_attention_take_decodes_table_too() -> None:
    written(DECODE)
    few = Workload(Problem(DType.BF16, 128, 1, 32, 8, 1, 32768), FULL)
    choice = choose(few, H200)
    assert isinstance(choice, FewQueriesChoice) and choice.config == OTHER
    served = served_instances(H200, dtypes=[DType.BF16], d_heads=[128], variants=[FULL, CAUSAL])
    assert OTHER in {kernel.config for kernel in served}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("H200", "A100"), "GPU: NVIDIA A100 there, NVIDIA H200 here"),
        (("kernels_sm80_decode: ", "kernels_sm80_decode: 0"), "kernels of sm_80: 0.* there"),
        (("BF16,128,16,few,no", "BF16,128,16,few,perhaps"), "fp8_cache is 'perhaps'"),
        (("BF16,128,16,few", "BF16,128,16,2"), "tiles is '2'; supported are any, few, some, fi"),
        (("BF16,128,16,few", "BF16,64,16,few"), "cannot serve .*it is for BF16 and d_head 128"),
        (("format 2", "format 9"), "its format is 9"),
        (("3 rows", "4 rows"), "it was cut off"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_for_here_is_passed_over_with_a_warning(
    changed: tuple[str, str], words: str
) -> None:
    path = written(DECODE)
    text = path.read_text()
    assert changed[0] in text
    path.write_text(text.replace(*changed, 1))
    with pytest.warns(UserWarning, match=rf"{words}(.|\n)*tune --operation decode --force"):
        found = choose_for(DECODE, PLAIN, H200)
    assert found.config == DECODE.choose_by_heuristic(PLAIN, (9, 0))


def test_what_does_not_fit_the_gpu_is_passed_over() -> None:
    large = next(c for c in DECODE.candidates(PLAIN, "sm_90a") if not c.is_buildable("sm_80"))
    a100 = "NVIDIA A100-SXM4-80GB"
    table = Table.of(DECODE, {**STAMP, "gpu": a100}, [entry(PLAIN, large)])
    table.write(user_table_path(a100, DECODE))
    found = choose_for(DECODE, PLAIN, a100)
    assert found.config == DECODE.choose_by_heuristic(PLAIN, (8, 0))
    assert any("it has no room there" in each for each in found.passed_over)


def test_a_gpu_that_is_too_old_is_refused_with_or_without_a_table() -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"has compute capability 7\.5"):
            choose_for(DECODE, PLAIN, "Tesla T4", (7, 5))
        written(DECODE, "Tesla T4")


def test_no_table_at_all_is_refused(own_tables: Path) -> None:
    path = own_tables / "h200-decode.csv"
    path.write_text("dtype,kernel\n")
    with pytest.raises(TuningError, match="its first line is not like"):
        Table.read(path)


def test_calls_are_thought_over_when_tables_are_forgotten() -> None:
    q, k = torch.randn(1, 1, 2, 64).half(), torch.randn(1, 20, 1, 64).half()
    flashsmith.decode(None, q, k, k, cache_seqlens=20)
    assert decode_calls._choices
    forget_tables()
    assert not decode_calls._choices
