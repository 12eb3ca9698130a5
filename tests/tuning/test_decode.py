"""The tuner of decode: with a lab that has known speeds, and on the emulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from flashsmith.cli import app
from flashsmith.codegen import generate
from flashsmith.configs import DecodeKernelConfig, KernelId
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import D_HEADS, DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import Target
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.commands import tune as lab_tune
from flashsmith.lab.commands import tune_decode as lab_tune_decode
from flashsmith.lab.tuning import decode_lab, lab
from flashsmith.lab.tuning.decode_lab import DecodeLab, Measurements, Shape, shapes_for
from flashsmith.lab.tuning.decode_search import Found, tune_decode, words_of, workloads_of
from flashsmith.lab.tuning.session import journal_path
from flashsmith.ops.bound_decode import BoundDecode
from flashsmith.runtime import DecodeTensors
from flashsmith.selection.decode_tables import DecodeTable, choose_tuned_decode, decode_table_path
from support.tuning import A100, STAMP, fake_timer

FEW = DecodeWorkload(DType.FP16, 64, rows=16)
FP8 = DecodeWorkload(DType.FP16, 64, rows=16, fp8_cache=True)
PLAN = {workload: DECODE.candidates(workload, "sm_80") for workload in (FEW, FP8)}
BEST, RULE = PLAN[FEW][3], PLAN[FEW][-1]


class FakeLab:
    """``BEST`` takes 10 us, the rule's choice 12, others more; dies at a question."""

    def __init__(
        self,
        wrong: dict[DecodeKernelConfig, str] | None = None,
        unsound: Sequence[DecodeKernelConfig] = (),
        die_at: int = -1,
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.wrong, self.unsound, self.die_at, self.error = wrong or {}, unsound, die_at, error
        self.asked: list[object] = []

    def _ask(self, question: object) -> None:
        if len(self.asked) == self.die_at:
            raise self.error
        self.asked.append(question)

    def build(self, plan: Any, progress: Any) -> None:
        pass

    def measure(
        self, workload: DecodeWorkload, configs: Sequence[DecodeKernelConfig], repeats: int
    ) -> Measurements:
        self._ask((workload, len(configs)))
        wrong = {config: why for config, why in self.wrong.items() if config in configs}
        known = {BEST: 10.0, RULE: 12.0}
        right = [config for config in configs if config not in wrong]
        return Measurements(wrong, {c: known.get(c, 13.0 + i) for i, c in enumerate(right)})

    def soak(self, config: DecodeKernelConfig) -> str | None:
        self._ask(config)
        return "rows of NaN" if config in self.unsound else None


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100"])
def test_candidates_can_be_built_for_their_gpu(arch: str) -> None:
    """Those of sm_90 include rings of stages for which sm_80 has no room."""
    architecture = get_gpu_architecture(arch)
    workloads = workloads_of(DType, D_HEADS, architecture.compute_capability)
    found = {config for each in workloads for config in DECODE.candidates(each, arch)}
    generate(map(KernelId, found))
    assert all(config.is_buildable(arch) for config in found)


def tune(out: Path, lab: Any, plan: Any = PLAN, **options: Any) -> list[Found]:
    return tune_decode(plan, lab, out, STAMP, lambda *_: None, 30, **options)


def test_the_fastest_enters_the_table_and_serves(tmp_path: Path, tuned: Path) -> None:
    out = decode_table_path(A100)
    first, _ = tune(out, FakeLab())
    assert (first.entry.config, first.entry.microseconds, first.entry.rule_ratio) == (BEST, 10, 1.2)
    assert (first.entry.tried, first.excluded) == (len(PLAN[FEW]), {})
    assert set(DecodeTable.read(out).entries) == {FEW, FP8}
    assert not journal_path(out).exists()
    assert choose_tuned_decode(FEW, A100).config == BEST


def test_what_is_wrong_anywhere_does_not_enter(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    first, _ = tune(out, FakeLab(unsound=[BEST]))
    assert first.entry.config == RULE and first.entry.rule_ratio == 1
    assert first.excluded == {BEST.short_form(): "soak: rows of NaN"}
    first, _ = tune(out, FakeLab(unsound=[BEST, RULE]), fresh=True)
    assert first.entry.config not in (BEST, RULE) and first.entry.rule_ratio is None
    first, _ = tune(out, FakeLab(wrong={RULE: "error 1"}), fresh=True)
    assert first.entry.config == BEST and first.entry.rule_ratio is None
    assert (first.entry.excluded, first.excluded) == (1, {RULE.short_form(): "error 1"})


def test_nothing_is_written_where_every_kernel_is_wrong(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    with pytest.raises(TuningError, match=r"tuned for FP16 d 64, up to 16 rows, few tiles: .*bad"):
        tune(out, FakeLab(wrong=dict.fromkeys(PLAN[FEW], "bad")))
    assert not out.exists()


@pytest.mark.parametrize("die_at", range(4))
def test_an_interrupted_run_goes_on_without_measuring_again(tmp_path: Path, die_at: int) -> None:
    whole, out = FakeLab(), tmp_path / "t.csv"
    expected = tune(tmp_path / "whole.csv", whole)
    first, second = FakeLab(die_at=die_at), FakeLab()
    with pytest.raises(KeyboardInterrupt):
        tune(out, first)
    assert not out.exists()
    assert tune(out, second) == expected
    assert first.asked + second.asked == whole.asked


def test_a_kernel_that_took_the_gpu_with_it_is_not_run_again(tmp_path: Path) -> None:
    class Lost(FakeLab):
        def measure(self, workload: Any, configs: Any, repeats: int) -> Measurements:
            raise GpuLostError(BEST.short_form(), "no answer")

        def soak(self, config: DecodeKernelConfig) -> str | None:
            raise GpuLostError(config.short_form(), "no answer")

    out, plan = tmp_path / "t.csv", {FEW: PLAN[FEW]}
    with pytest.raises(GpuLostError):
        tune(out, Lost(), plan)
    again = FakeLab()
    again.soak = Lost().soak  # type: ignore[method-assign]
    with pytest.raises(GpuLostError):
        tune(out, again, plan)
    (found,) = tune(out, (last := FakeLab()), plan)
    assert [len(PLAN[FEW]) - 1] == [n for _, n in again.asked]  # type: ignore[misc]
    assert BEST.short_form() in found.excluded and RULE.short_form() in found.excluded
    assert found.entry.config not in (BEST, RULE) and last.asked == [found.entry.config]


def test_entries_of_other_workloads_stay(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    tune(out, FakeLab(), {FEW: PLAN[FEW]})
    tune(out, FakeLab(), {FP8: PLAN[FP8]})
    assert set(DecodeTable.read(out).entries) == {FEW, FP8}
    with pytest.raises(TuningError, match="of another environment"):
        tune_decode(PLAN, FakeLab(), out, {**STAMP, "gpu": "NVIDIA H200"}, lambda *_: None, 30)


@pytest.mark.parametrize(("capability", "number"), [((8, 0), 10), ((9, 0), 15)])
def test_each_workload_that_tables_tell_apart_is_tuned_once(
    capability: tuple[int, int], number: int
) -> None:
    workloads = workloads_of([DType.BF16], [128], capability)
    assert len(workloads) == len({words_of(workload) for workload in workloads}) == number


def test_many_tiles_are_timed_where_tiles_are_many() -> None:
    assert {batch for batch, _ in shapes_for(FEW, 132)} == {1, 16}
    many = DecodeWorkload(DType.FP16, 64, many_tiles=True)
    assert {batch for batch, _ in shapes_for(many, 132)} == {132}


# ---- on the emulator ----

SMALL = DecodeLab(lambda _: (Shape(1, 40), Shape(2, 17)), "cpu", fake_timer)
KINDS = [
    FEW,
    FP8,
    DecodeWorkload(DType.BF16, 64, rows=16, fp8_cache=True, token_scales=True),
    DecodeWorkload(DType.BF16, 64, rows=32),
]


@pytest.mark.parametrize("workload", KINDS, ids=words_of)
def test_the_lab_checks_times_and_soaks(workload: DecodeWorkload) -> None:
    rule = DECODE.choose_by_rule(workload, None)
    SMALL.build({workload: [rule]}, lambda *_: None)
    wrong, microseconds = SMALL.measure(workload, [rule], 1)
    assert not wrong and microseconds == {rule: pytest.approx(1000.0)}


def test_times_are_geometric_means_over_shapes() -> None:
    asked: list[int] = []

    def timer(runs: Any, repeats: int | None) -> dict[str, Timing]:
        asked.append(repeats or 0)
        return {name: Timing([2.0, 8.0][len(asked) - 1], 0, 0) for name in runs}

    rule = DECODE.choose_by_rule(FEW, None)
    lab = DecodeLab(lambda _: (Shape(1, 17), Shape(1, 9)), "cpu", timer)
    assert lab.measure(FEW, [rule], 7).microseconds == {rule: pytest.approx(4000.0)}
    assert asked == [7, 7]


@pytest.mark.parametrize(("batch", "shape"), [(1, "1 x 40"), (2, "2 x 17")])
def test_the_lab_finds_a_wrong_kernel(
    batch: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On whichever shape it is wrong."""
    rule, call = DECODE.choose_by_rule(FEW, None), BoundDecode.__call__

    def off_by_a_bit(self: BoundDecode, tensors: Any, *arguments: Any) -> None:
        call(self, tensors, *arguments)
        o = DecodeTensors(*tensors).o
        o[-1, 0, 5, 7] += 0.1 * (len(o) == batch)

    monkeypatch.setattr(BoundDecode, "__call__", off_by_a_bit)
    wrong, microseconds = SMALL.measure(FEW, [rule], 1)
    assert not microseconds
    assert wrong[rule].startswith(f"{shape} keys: error 0.")
    assert f"({batch - 1}, 0, 5, 7)" in wrong[rule]


def test_the_lab_says_what_a_kernel_raises_and_what_was_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule, *_ = PLAN[FEW][::-1]

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(decode_lab, "decode", refuse)
    assert SMALL.measure(FEW, [rule], 1) == ({rule: "1 x 40 keys: ValueError: no room"}, {})
    monkeypatch.setattr(decode_lab, "load_buildable", lambda kernels, *_: {kernels[0]: "spills"})
    lab = DecodeLab(lambda _: (), "cpu", fake_timer)
    lab.build({FEW: [rule]}, lambda *_: None)
    assert lab.measure(FEW, [rule], 1) == ({rule: "spills"}, {})


def test_the_lab_soaks(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, soaked = DECODE.choose_by_rule(FEW, None), []

    class Failure:
        case, failure = "case 1", "NaN"

    class Tally:
        failures = (Failure,)

    def soak(kernels: Any, plan: Any, device: str) -> Any:
        soaked.extend((kernel.config, plan.seams, plan.random_cases, device) for kernel in kernels)
        return {0: Tally}

    monkeypatch.setattr(lab, "soak", soak)
    monkeypatch.setattr(decode_lab, "load_buildable", lambda *_: {})
    assert SMALL.soak(rule) == "case 1: NaN"
    assert soaked == [(rule, True, 0, "cpu")] * 3  # full, causal and another variant
    monkeypatch.setattr(decode_lab, "load_buildable", lambda kernels, *_: {kernels[1]: "spills"})
    assert SMALL.soak(rule) == "spills"


# ---- the command ----


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["tune", "--decode", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeLab], None]:
    """An A100 with the lab that is given."""
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cuda", A100))
    monkeypatch.setattr(lab_tune, "target_of", lambda _: Target.cuda("sm_80"))
    monkeypatch.setattr(lab_tune, "environment_stamp", lambda: STAMP)

    def use(lab: FakeLab) -> None:
        monkeypatch.setattr(lab_tune_decode, "DecodeLab", lambda _: lab)

    use(FakeLab(wrong={RULE: "error 1"}))
    return use


KIND = ("--dtype", "fp16", "--d-head", "64")


@pytest.mark.usefixtures("gpu")
def test_command_tunes_reports_and_writes_the_users_table() -> None:
    result = invoke(*KIND)
    assert BEST.short_form() in result.stdout
    excluded = f"excluded: {RULE} for FP16 d 64, up to 16 rows, few tiles: error 1"
    assert excluded in result.stderr
    path = decode_table_path(A100)
    assert str(path) in result.stderr
    assert DecodeTable.read(path).entries[FEW].config == BEST


@pytest.mark.usefixtures("gpu")
def test_command_writes_where_it_is_told_and_speaks_json(tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    document = json.loads(invoke(*KIND, "--out", out, "--json").stdout)
    assert Path(document["table"]) == out
    assert document["entries"][0]["kernel"] == BEST.short_form()
    assert len(document["entries"]) == len(DecodeTable.read(out).entries) == 10
    out.write_text("# flashsmith tuned table, format 2, 0 rows\n")
    assert "discards tables" in invoke(*KIND, "--out", out, "--force", code=2).stderr


def test_command_says_how_to_go_on(gpu: Callable[[FakeLab], None]) -> None:
    gpu(FakeLab(die_at=3))
    path = journal_path(decode_table_path(A100))
    assert f"{path} has what is measured" in invoke(*KIND, code=130).stderr
    gpu(FakeLab())
    invoke(*KIND)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--grid", "small"), "--decode has shapes and kernels of its own; leave out --grid"),
        (("--explain",), "leave out --explain"),
        (("-k", "tune"), "leave out --kernels"),
        (("--d-head", "80"), "--d-head is 80"),
    ],
)
def test_command_refuses(args: tuple[object, ...], words: str) -> None:
    assert words in invoke(*args, code=2).stderr


def test_command_without_a_gpu_tunes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cpu", "torch finds no GPU"))
    assert "nothing is tuned: torch finds no GPU" in invoke(code=1).stderr


@pytest.mark.gpu
def test_command_tunes_on_this_gpu(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    invoke("--dtype", "bf16", "--d-head", 256, "--out", out, "--repeats", 5)
    table = DecodeTable.read(out)
    assert all(entry.microseconds > 0 for entry in table.entries.values())
    assert table.stamp["gpu"] == torch.cuda.get_device_name()
