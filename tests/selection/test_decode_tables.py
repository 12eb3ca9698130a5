"""Tuned tables of decode: what they hold, and when they serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import flashsmith
from flashsmith.configs import CAUSAL, FULL
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload, Workload
from flashsmith.dtype import DType
from flashsmith.errors import DeviceError, TuningError
from flashsmith.ops import decode_calls
from flashsmith.problem import Problem
from flashsmith.selection.choice import FewQueriesChoice
from flashsmith.selection.choose import choose, forget_tables
from flashsmith.selection.decode_tables import (
    DecodeEntry,
    DecodeTable,
    choose_tuned_decode,
    decode_table_path,
)
from flashsmith.selection.served import served_instances
from support.tuning import STAMP as OF_AN_A100

H200 = "NVIDIA H200"
STAMP = {**OF_AN_A100, "gpu": H200}
PLAIN = DecodeWorkload(DType.BF16, 128, rows=16)
BOXED = DecodeWorkload(DType.BF16, 128, rows=64, in_boxes=True)
OTHER = DECODE.candidates(PLAIN, "sm_90a")[2]
OTHER_BOXED = next(c for c in DECODE.candidates(BOXED, "sm_90a")[:-1] if c.family == "sm90")
TABLE = DecodeTable.of(
    STAMP,
    [
        DecodeEntry(PLAIN, OTHER, 12.5, 1.25, tried=12, excluded=1),
        DecodeEntry(BOXED, OTHER_BOXED, 30.0, None, tried=20, excluded=0),
    ],
)


@pytest.fixture(autouse=True)
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    forget_tables()
    yield decode_table_path(H200)
    forget_tables()


def test_a_table_is_read_as_it_was_written(tuned: Path) -> None:
    TABLE.write(tuned)
    assert DecodeTable.read(tuned) == TABLE
    assert tuned.name == "h200-decode.csv"


def test_it_serves_what_it_was_measured_for_and_the_rule_the_rest(tuned: Path) -> None:
    def chosen(workload: DecodeWorkload) -> object:
        return choose_tuned_decode(workload, H200).config

    rule = DECODE.choose_by_rule(PLAIN, (9, 0))
    assert chosen(PLAIN) == rule != OTHER  # there is no table yet
    TABLE.write(tuned)
    forget_tables()
    assert choose_tuned_decode(PLAIN, H200) == (OTHER, f"your table {tuned}")
    assert chosen(replace(PLAIN, rows=4)) == OTHER
    assert chosen(replace(PLAIN, dtype=DType.FP16)) == OTHER.for_dtype(DType.FP16)
    assert chosen(replace(BOXED, rows=50)) == OTHER_BOXED
    for unmeasured in (
        replace(PLAIN, many_tiles=True),
        replace(PLAIN, fp8_cache=True),
        replace(PLAIN, d_head=64),
        replace(BOXED, in_boxes=False),
        replace(BOXED, rows=65),
    ):
        assert chosen(unmeasured) == DECODE.choose_by_rule(unmeasured, (9, 0))
    on_cpu = choose_tuned_decode(PLAIN, None)
    assert on_cpu == (DECODE.choose_by_rule(PLAIN, None), "the rule of its family")
    assert choose_tuned_decode(PLAIN, "NVIDIA Unheard Of", (9, 0)).config == rule


def test_few_queries_of_attention_take_it_too(tuned: Path) -> None:
    TABLE.write(tuned)
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
        (("BF16,128,16,no", "BF16,128,16,perhaps"), "fp8_cache is 'perhaps'"),
        (("BF16,128,16,no", "BF16,64,16,no"), "cannot serve .*it is for BF16 and d_head 128"),
        (("format 1", "format 9"), "its format is 9"),
        (("2 rows", "3 rows"), "it was cut off"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_for_here_is_passed_over_with_a_warning(
    tuned: Path, changed: tuple[str, str], words: str
) -> None:
    TABLE.write(tuned)
    text = tuned.read_text()
    assert changed[0] in text
    tuned.write_text(text.replace(*changed, 1))
    with pytest.warns(UserWarning, match=rf"{words}(.|\n)*tune --decode --force"):
        found = choose_tuned_decode(PLAIN, H200)
    assert found.config == DECODE.choose_by_rule(PLAIN, (9, 0))


def test_what_does_not_fit_the_gpu_is_passed_over() -> None:
    large = next(c for c in DECODE.candidates(PLAIN, "sm_90a") if not c.is_buildable("sm_80"))
    a100 = "NVIDIA A100-SXM4-80GB"
    entry = DecodeEntry(PLAIN, large, 10.0, 1.5, tried=9, excluded=0)
    DecodeTable.of({**STAMP, "gpu": a100}, [entry]).write(decode_table_path(a100))
    assert choose_tuned_decode(PLAIN, a100).config == DECODE.choose_by_rule(PLAIN, (8, 0))


def test_a_gpu_that_is_too_old_is_refused_with_or_without_a_table() -> None:
    t4 = "Tesla T4"
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"has compute capability 7\.5"):
            choose_tuned_decode(PLAIN, t4, (7, 5))
        DecodeTable.of({**STAMP, "gpu": t4}, TABLE.entries.values()).write(decode_table_path(t4))
        forget_tables()


def test_no_table_at_all_is_refused(tuned: Path) -> None:
    tuned.write_text("dtype,kernel\n")
    with pytest.raises(TuningError, match="its first line is not like"):
        DecodeTable.read(tuned)


def test_calls_are_thought_over_when_tables_are_forgotten() -> None:
    q, k = torch.randn(1, 1, 2, 64).half(), torch.randn(1, 20, 1, 64).half()
    flashsmith.decode(None, q, k, k, cache_seqlens=20)
    assert decode_calls._choices
    forget_tables()
    assert not decode_calls._choices
