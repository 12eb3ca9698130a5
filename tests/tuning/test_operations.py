"""The tuner of decode and the backward, with a lab that has known speeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flashsmith.cli import app
from flashsmith.codegen import generate
from flashsmith.configs import CAUSAL, FULL, KernelConfig, KernelId
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.workload import D_HEADS, BackwardWorkload, DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import Target
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.commands import tune as lab_tune
from flashsmith.lab.commands.grids import decode_workloads
from flashsmith.lab.commands.request import Request
from flashsmith.lab.tuning.session import journal_path, tuning_session
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose_for
from flashsmith.selection.tables import Table, user_table_path
from support.tuning import A100, STAMP

FEW = DecodeWorkload(DType.FP16, 64, rows=16)
FP8 = DecodeWorkload(DType.FP16, 64, rows=16, fp8_cache=True)
GRADIENTS = BackwardWorkload(Problem.square(DType.FP16, 64, 1, 2, 128))
SAME_BITS = BackwardWorkload(GRADIENTS.problem, CAUSAL, deterministic=True)
Plan = dict[Any, list[Any]]
PLANS: dict[str, Plan] = {
    each.name: {workload: each.candidates(workload, "sm_80") for workload in workloads}
    for each, workloads in ((DECODE, (FEW, FP8)), (BACKWARD, (GRADIENTS, SAME_BITS)))
}
EACH = pytest.mark.parametrize("operation", [DECODE, BACKWARD], ids=lambda each: each.name)


class FakeLab:
    """The fourth candidate takes 10 us on the first workload, the heuristic's choice 12, all others
    more; the lab can die at a given question."""

    def __init__(
        self,
        plan: Plan,
        wrong: Mapping[KernelConfig, str] | None = None,
        unsound: Sequence[KernelConfig] = (),
        die_at: int = -1,
    ) -> None:
        (configs, *_) = plan.values()
        self.best, self.heuristic = configs[3], configs[-1]
        self.wrong, self.unsound, self.die_at = wrong or {}, unsound, die_at
        self.asked: list[object] = []

    def _ask(self, *question: object) -> None:
        if len(self.asked) == self.die_at:
            raise KeyboardInterrupt
        self.asked.append(question)

    def build(self, plan: Any, progress: Any) -> None:
        pass

    def check(self, workload: Any, configs: Sequence[Any]) -> dict[Any, str]:
        self._ask("check", workload, len(configs))
        return {config: why for config, why in self.wrong.items() if config in configs}

    def time(self, workload: Any, configs: Sequence[Any], repeats: int | None) -> dict[Any, Timing]:
        self._ask("time", workload, len(configs), repeats)
        known = {self.best: 0.010, self.heuristic: 0.012}
        times = {c: known.get(c, 0.013 + i / 1000) for i, c in enumerate(configs)}
        return {config: Timing(ms, ms, ms) for config, ms in times.items()}

    def soak(self, workload: Any, configs: Sequence[Any]) -> dict[Any, str]:
        self._ask("soak", workload, len(configs))
        return {config: "rows of NaN" for config in configs if config in self.unsound}


def tune(
    operation: Operation[Any, Any], out: Path, lab: Any, plan: Plan | None = None, **options: Any
) -> Table[Any, Any]:
    stamp = options.pop("stamp", STAMP)
    with tuning_session(operation, out, stamp, **options) as session:
        return session.run(plan or PLANS[operation.name], lab, lambda *_: None)


def fake(operation: Operation[Any, Any], **given: Any) -> FakeLab:
    return FakeLab(PLANS[operation.name], **given)


def first(operation: Operation[Any, Any], table: Table[Any, Any]) -> Any:
    workload = next(iter(PLANS[operation.name]))
    return next(each for each in table.entries.values() if each.workload == workload)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100"])
def test_candidates_can_be_built_for_their_gpu(arch: str) -> None:
    """The candidates of sm_90 include rings of stages for which sm_80 has no room."""
    capability = get_gpu_architecture(arch).compute_capability
    every = Request(dtypes=tuple(DType), d_heads=D_HEADS)
    workloads: list[tuple[Any, Any]] = [
        (DECODE, each) for each in decode_workloads(every, capability)
    ]
    workloads += [
        (BACKWARD, BackwardWorkload(Problem.square(dtype, d_head, 1, 2, 512), FULL, same))
        for dtype in DType
        for d_head in D_HEADS
        for same in (False, True)
    ]
    for operation, workload in workloads:
        *others, heuristic = operation.candidates(workload, arch)
        assert heuristic not in others and len(set(others)) == len(others), workload
        assert all(config.is_buildable(arch) for config in (*others, heuristic))
        assert not [c for c in (*others, heuristic) if operation.why_not(c, workload)]
        generate(map(KernelId, (*others, heuristic)))


@EACH
def test_the_fastest_enters_the_table_and_serves(
    operation: Operation[Any, Any], tuned: Path
) -> None:
    out, lab = user_table_path(A100, operation), fake(operation)
    entry = first(operation, tune(operation, out, lab))
    best = entry.ranked[0]
    assert (best.config, best.ms, entry.heuristic_ratio) == (lab.best, 0.01, 1.2)
    plan = PLANS[operation.name]
    assert (entry.tried, entry.excluded) == (len(plan[entry.workload]), {})
    assert {each.workload for each in Table.read(out).entries.values()} == set(plan)
    assert not journal_path(out).exists()
    assert choose_for(operation, entry.workload, A100).config == lab.best


@EACH
def test_what_is_wrong_anywhere_does_not_enter(
    operation: Operation[Any, Any], tmp_path: Path
) -> None:
    out, known = tmp_path / "t.csv", fake(operation)
    best, heuristic = known.best, known.heuristic
    entry = first(operation, tune(operation, out, fake(operation, unsound=[best])))
    assert entry.ranked[0].config == heuristic and entry.heuristic_ratio == 1
    assert entry.excluded == {best.short_form(): "soak: rows of NaN"}
    lab = fake(operation, wrong={heuristic: "error 1"})
    entry = first(operation, tune(operation, out, lab, fresh=True))
    assert entry.ranked[0].config == best and entry.heuristic_ratio is None
    assert entry.excluded == {heuristic.short_form(): "error 1"}


def test_nothing_is_written_where_every_kernel_is_wrong(tmp_path: Path) -> None:
    out, wrong = tmp_path / "t.csv", dict.fromkeys(PLANS["decode"][FEW], "bad")
    with pytest.raises(TuningError, match=r"tuned for FP16 d 64, up to 16 rows, any tiles: .*bad"):
        tune(DECODE, out, fake(DECODE, wrong=wrong))
    assert not out.exists()


@EACH
@pytest.mark.parametrize("die_at", range(5))
def test_an_interrupted_run_goes_on_without_measuring_again(
    operation: Operation[Any, Any], tmp_path: Path, die_at: int
) -> None:
    whole, out = fake(operation), tmp_path / "t.csv"
    expected = tune(operation, tmp_path / "whole.csv", whole)
    interrupted, again = fake(operation, die_at=die_at), fake(operation)
    with pytest.raises(KeyboardInterrupt):
        tune(operation, out, interrupted)
    assert not out.exists()
    assert tune(operation, out, again) == expected
    assert interrupted.asked + again.asked == whole.asked


def test_a_kernel_that_took_the_gpu_with_it_is_not_run_again(tmp_path: Path) -> None:
    known = fake(DECODE)

    class Lost(FakeLab):
        def check(self, workload: Any, configs: Any) -> dict[Any, str]:
            raise GpuLostError(self.best.short_form(), "no answer")

    class LostInSoak(FakeLab):
        def soak(self, workload: Any, configs: Any) -> dict[Any, str]:
            raise GpuLostError(KernelId(self.heuristic, CAUSAL).name, "no answer")

    out, plan = tmp_path / "t.csv", {FEW: PLANS["decode"][FEW]}
    for losing in (Lost(plan), LostInSoak(plan)):
        with pytest.raises(GpuLostError):
            tune(DECODE, out, losing, plan)
    entry = first(DECODE, tune(DECODE, out, fake(DECODE), plan))
    assert {known.best.short_form(), known.heuristic.short_form()} <= set(entry.excluded)
    assert entry.ranked[0].config not in (known.best, known.heuristic)


@EACH
def test_entries_of_other_workloads_stay(operation: Operation[Any, Any], tmp_path: Path) -> None:
    out, plan = tmp_path / "t.csv", PLANS[operation.name]
    for workload in plan:
        tune(operation, out, fake(operation), {workload: plan[workload]})
    assert {each.workload for each in Table.read(out).entries.values()} == set(plan)
    with pytest.raises(TuningError, match="of another environment"):
        tune(operation, out, fake(operation), stamp={**STAMP, "gpu": "NVIDIA H200"})
    other = BACKWARD if operation is DECODE else DECODE
    with pytest.raises(TuningError, match=rf"is a table of {operation.name} kernels"):
        tune(other, out, fake(other))


@pytest.mark.parametrize(("capability", "number"), [((8, 0), 19), ((9, 0), 24)])
def test_each_workload_that_tables_tell_apart_is_tuned_once(
    capability: tuple[int, int], number: int
) -> None:
    workloads = decode_workloads(Request(dtypes=(DType.BF16,), d_heads=(128,)), capability)
    assert len(workloads) == len({str(workload) for workload in workloads}) == number
    assert len({workload.tuning_key() for workload in workloads}) == number


# ---- the command ----


def invoke(operation: str, *args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["tune", "--operation", operation, *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeLab], None]:
    """Returns a function that installs a lab, on a fake A100."""
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cuda", A100))
    monkeypatch.setattr(lab_tune, "target_of", lambda _: Target.cuda("sm_80"))
    monkeypatch.setattr(lab_tune, "environment_stamp", lambda: STAMP)

    def use(lab: FakeLab) -> None:
        monkeypatch.setattr(lab_tune, "KernelLab", lambda *_: lab)

    heuristic = fake(DECODE).heuristic
    use(fake(DECODE, wrong={heuristic: "error 1"}))
    return use


KIND = ("--dtype", "fp16", "--d-head", "64")


@pytest.mark.usefixtures("gpu")
def test_command_tunes_reports_and_writes_the_users_table() -> None:
    result, known = invoke("decode", *KIND), fake(DECODE)
    assert known.best.short_form() in result.stdout
    excluded = f"excluded: {known.heuristic} for FP16 d 64, up to 16 rows, any tiles: error 1"
    assert excluded in result.stderr
    path = user_table_path(A100, DECODE)
    assert str(path) in result.stderr
    assert first(DECODE, Table.read(path)).ranked[0].config == known.best


def test_command_tunes_the_backward_with_and_without_the_same_bits(
    gpu: Callable[[FakeLab], None],
) -> None:
    gpu(fake(BACKWARD))
    shape = ("--batch", 1, "--heads", 2, "--seq-len", 128)
    document = json.loads(invoke("backward", *KIND, "--mask", "full", *shape, "--json").stdout)
    assert [each["deterministic"] for each in document["entries"]] == ["no", "yes"]
    assert len(Table.read(user_table_path(A100, BACKWARD)).entries) == 2
    where = ("--mask", "full", *shape, "--explain", "--gpu", A100, "--json")
    (words, _) = json.loads(invoke("backward", *KIND, *where).stdout)
    assert words["kernel"] == document["entries"][0]["kernel"]
    assert words["source"] == "your table" and "the fastest of" in words["reason"]


@pytest.mark.usefixtures("gpu")
def test_command_writes_where_it_is_told_and_speaks_json(tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    document = json.loads(invoke("decode", *KIND, "--out", out, "--json").stdout)
    assert Path(document["table"]) == out
    assert document["entries"][0]["kernel"] == fake(DECODE).best.short_form()
    assert len(document["entries"]) == len(Table.read(out).entries) == 19
    out.write_text("# flashsmith tuned table, format 2, 0 rows\n")
    assert "discards tables" in invoke("decode", *KIND, "--out", out, "--force", code=2).stderr


def test_command_says_how_to_go_on(gpu: Callable[[FakeLab], None]) -> None:
    gpu(fake(DECODE, die_at=3))
    path = journal_path(user_table_path(A100, DECODE))
    assert f"{path} has what is measured" in invoke("decode", *KIND, code=130).stderr
    gpu(fake(DECODE))
    invoke("decode", *KIND)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("decode", "--grid", "small"), "kernels of its own; leave out --grid"),
        (("decode", "-k", "tune"), "leave out --kernels"),
        (("decode", "--d-head", "80"), "--d-head is 80"),
        (("backward", "-k", "tune"), "for the forward alone; leave out --kernels"),
        (("backward", "--emulator-counts"), "leave out --emulator-counts"),
        (("sideways",), "--operation is 'sideways'; supported: forward, backward, decode"),
    ],
)
def test_command_refuses(args: tuple[str, ...], words: str) -> None:
    assert words in invoke(*args, code=2).stderr


def test_command_without_a_gpu_tunes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cpu", "torch finds no GPU"))
    assert "nothing is tuned: torch finds no GPU" in invoke("decode", code=1).stderr


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("operation", "args"),
    [
        ("decode", ("--d-head", 256)),
        ("backward", ("--d-head", 64, "--mask", "causal", "--seq-len", 1024, "--batch", 2)),
    ],
)
def test_command_tunes_on_this_gpu(tmp_path: Path, operation: str, args: Any) -> None:
    out = tmp_path / "t.csv"
    invoke(operation, "--dtype", "bf16", *args, "--out", out, "--repeats", 5)
    assert Table.read(out).entries
