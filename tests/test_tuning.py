"""The tuner: halving, journal, refusals, and the command, with a lab that has known speeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from flashsmith.bench import Problem, Timing
from flashsmith.cli import app, tune_job
from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.families import SM80_FORWARD, SM90_FORWARD
from flashsmith.errors import BuildError, GpuLostError, TuningError
from flashsmith.jit import Target, kernel_source_stamp
from flashsmith.runtime import Kernel
from flashsmith.selection.choose import choose, forget_tables
from flashsmith.selection.tables import Table, user_table_path
from flashsmith.tuning import KernelLab, journal_path, lab, make_plan, tuning_session
from flashsmith.tuning.search import survivors

A100 = "NVIDIA A100-SXM4-80GB"
STAMP = {"gpu": A100, "driver_version": "580.159.04", **kernel_source_stamp()}
SPACE = get_autotuning_kernel_configs([DType.FP16])
PROBLEM = Problem(DType.FP16, 128, "full", 4, 16, 4096)
PROBLEMS = [replace(PROBLEM, seq_len=seq_len) for seq_len in (1024, 4096)]
RULE = SM80_FORWARD.rule(DType.FP16, 128, 4096)
BEST = SPACE[17]


@pytest.fixture(autouse=True)
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    monkeypatch.delenv("KERNELS", raising=False)
    forget_tables()
    yield tmp_path
    forget_tables()


def milliseconds(problem: Problem, cfg: FlashForwardKernelConfig) -> float:
    """The true time in the fake lab: BEST wins, the others follow in an arbitrary order."""
    return 1.0 if cfg == BEST else 1.05 + SPACE.index(cfg) * 7 % len(SPACE) / 40


class FakeLab:
    """Times are the true ones with noise that repeats average away; counts what it is asked."""

    def __init__(
        self,
        wrong: Mapping[FlashForwardKernelConfig, str] | None = None,
        die_at: int = -1,
        unsound: Mapping[FlashForwardKernelConfig, str] | None = None,
    ) -> None:
        self.wrong, self.die_at, self.unsound = wrong or {}, die_at, unsound or {}
        self.launches: dict[FlashForwardKernelConfig, int] = {}
        self.asked: list[tuple[Problem, str, int]] = []

    def _ask(self, problem: Problem, what: str, number: int) -> None:
        if len(self.asked) == self.die_at:
            raise KeyboardInterrupt
        self.asked.append((problem, what, number))

    def build(self, plan: Any, progress: Any) -> None:
        pass

    def check(
        self, problem: Problem, configs: Sequence[FlashForwardKernelConfig]
    ) -> dict[FlashForwardKernelConfig, str]:
        self._ask(problem, "check", len(configs))
        return {cfg: why for cfg, why in self.wrong.items() if cfg in configs}

    def time(
        self, problem: Problem, configs: Sequence[FlashForwardKernelConfig], repeats: int | None
    ) -> dict[FlashForwardKernelConfig, Timing]:
        if repeats is None:
            self._ask(problem, "time back to back", len(configs))
            steady = {cfg: 1.1 * milliseconds(problem, cfg) for cfg in configs}
            return {cfg: Timing(ms, ms, ms) for cfg, ms in steady.items()}
        self._ask(problem, "time", len(configs))
        times = {}
        for i, cfg in enumerate(configs):
            self.launches[cfg] = self.launches.get(cfg, 0) + repeats
            ms = milliseconds(problem, cfg) + (0.3 if i % 2 else -0.3) / repeats**0.5
            times[cfg] = Timing(ms, ms - 0.01, ms + 0.01)
        return times

    def soak(
        self, problem: Problem, configs: Sequence[FlashForwardKernelConfig]
    ) -> dict[FlashForwardKernelConfig, str]:
        self._ask(problem, "soak", len(configs))
        return {cfg: why for cfg, why in self.unsound.items() if cfg in configs}


def tune(out: Path, fake: Any, problems: Sequence[Problem] = (PROBLEM,), **options: Any) -> Table:
    plan = make_plan(problems, SPACE, "sm_80")
    with tuning_session(out, options.pop("stamp", STAMP), options.pop("fresh", False)) as session:
        return session.run(plan, fake, lambda *_: None, **options)


def kernels_of(table: Table, problem: Problem = PROBLEM) -> list[FlashForwardKernelConfig]:
    (entry,) = (e for e in table.entries.values() if e.seq_len == problem.seq_len)
    return [row.config for row in entry.ranked]


def test_halving_finds_the_winner_and_spends_little_on_the_hopeless(tmp_path: Path) -> None:
    fake = FakeLab()
    table = tune(tmp_path / "new" / "folder" / "t.json", fake)
    assert kernels_of(table)[0] == BEST
    assert fake.launches[BEST] == 3 + 9 + 30
    assert fake.asked[:2] == [(PROBLEM, "check", 40), (PROBLEM, "time", 40)]
    assert sum(launches == 3 for launches in fake.launches.values()) >= 20
    assert sum(fake.launches.values()) < 40 * 30 / 2


def test_entry_holds_what_was_measured(tmp_path: Path) -> None:
    table = tune(tmp_path / "t.json", FakeLab())
    (entry,) = table.entries.values()
    assert (entry.tried, entry.excluded, entry.batch, entry.heads) == (40, {}, 4, 16)
    best = entry.ranked[0]
    assert best.tflops == pytest.approx(PROBLEM.flop / best.ms / 1e9, rel=1e-3)
    (rule,) = (row for row in entry.ranked if row.config == RULE)
    assert entry.rule_ratio == pytest.approx(rule.cost / best.cost, rel=1e-3)
    assert best.ms_back_to_back == pytest.approx(1.1)
    assert table == Table.read(tmp_path / "t.json")
    assert not journal_path(tmp_path / "t.json").exists()


def test_best_of_each_tile_and_the_rule_survive() -> None:
    times = {cfg: Timing(i + 1.0, 0, 0) for i, cfg in enumerate(SPACE)}  # one tile is fastest
    kept = survivors(times, RULE)
    assert kept[: -(-len(SPACE) // 3)] == SPACE[: -(-len(SPACE) // 3)]
    assert {(cfg.B_r, cfg.B_c) for cfg in kept} == {(cfg.B_r, cfg.B_c) for cfg in SPACE}
    assert RULE in kept
    assert len(kept) < len(SPACE) / 2


def test_wrong_kernel_is_excluded_and_named(tmp_path: Path) -> None:
    fake = FakeLab(wrong={BEST: "wrong: error 1"})
    (entry,) = tune(tmp_path / "t.json", fake).entries.values()
    assert entry.excluded == {BEST.short_form(): "wrong: error 1"}
    assert BEST not in fake.launches
    assert all(row.config != BEST for row in entry.ranked)


def test_nothing_is_written_when_every_kernel_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"no kernel can be tuned for FP16 d 128 full.*bad"):
        tune(tmp_path / "t.json", FakeLab(wrong=dict.fromkeys(SPACE, "bad")))
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("die_at", range(11))
def test_interrupted_run_resumes_without_measuring_again(tmp_path: Path, die_at: int) -> None:
    whole = FakeLab()
    expected = tune(tmp_path / "whole.json", whole, PROBLEMS)
    out = tmp_path / "t.json"
    first, second = FakeLab(die_at=die_at), FakeLab()
    with pytest.raises(KeyboardInterrupt):
        tune(out, first, PROBLEMS)
    assert not out.exists()
    assert tune(out, second, PROBLEMS) == expected
    assert first.asked + second.asked == whole.asked


def test_journal_survives_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    with pytest.raises(KeyboardInterrupt):
        tune(out, FakeLab(die_at=3))
    path = journal_path(out)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    resumed = FakeLab()
    with pytest.raises(KeyboardInterrupt):
        resumed.die_at = 1  # after the round whose line was cut
        tune(out, resumed)
    assert path.read_bytes() == whole
    path.write_bytes(whole[:10])  # in the stamp: as if there were none
    again = FakeLab()
    tune(out, again)
    assert len(again.asked) == 6


def test_killed_process_leaves_a_journal_that_the_next_goes_on_with(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_tuning as t
        lab = t.FakeLab()
        ask = lab._ask
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)
        lab._ask = lambda *a: ask(*a) if len(lab.asked) < 2 else die()
        t.tune(t.Path({str(out)!r}), lab)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    rest = FakeLab()
    table = tune(out, rest)
    assert kernels_of(table)[0] == BEST
    assert len(rest.asked) == 4


def test_other_options_do_not_take_over_old_measurements(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    with pytest.raises(KeyboardInterrupt):
        tune(out, FakeLab(die_at=3))
    fake = FakeLab()
    tune(out, fake, repeats=100)
    asked = [what for _, what, _ in fake.asked]
    assert asked == [*["time"] * 3, "soak", "time back to back"]


def test_kernel_that_takes_the_gpu_with_it_is_left_out_by_the_next_process(
    tmp_path: Path,
) -> None:
    class Lost(FakeLab):
        def check(self, problem: Problem, configs: Any) -> dict[FlashForwardKernelConfig, str]:
            if BEST in configs:
                raise GpuLostError(BEST.short_form(), "illegal address")
            return super().check(problem, configs)

    out = tmp_path / "t.json"
    with pytest.raises(GpuLostError):
        tune(out, Lost())
    (entry,) = tune(out, Lost()).entries.values()
    assert "illegal address" in entry.excluded[BEST.short_form()]
    assert all(row.config != BEST for row in entry.ranked)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"gpu": "NVIDIA H100 80GB HBM3"},
            "GPU: NVIDIA A100-SXM4-80GB there, NVIDIA H100 80GB HBM3 here",
        ),
        ({"driver_version": "590.1"}, "driver (major version): 580.159.04 there, 590.1 here"),
        (
            {"kernels_sm80": "0123"},
            f"kernels of sm_80: {STAMP['kernels_sm80']} there, 0123 here",
        ),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_what_is_from_elsewhere_is_refused(
    tmp_path: Path, change: dict[str, str], reason: str, finished: bool
) -> None:
    out = tmp_path / "t.json"
    if finished:
        tune(out, FakeLab())
    else:
        with pytest.raises(KeyboardInterrupt):
            tune(out, FakeLab(die_at=2))
    kept = {path: path.read_bytes() for path in tmp_path.glob("t.json*")}
    with pytest.raises(TuningError) as refusal:
        tune(out, FakeLab(), stamp=STAMP | change)
    assert reason in str(refusal.value)
    assert {path: path.read_bytes() for path in tmp_path.glob("t.json*")} == kept
    fake = FakeLab()
    table = tune(out, fake, stamp=STAMP | change, fresh=True)
    assert len(fake.asked) == 6
    assert table.stamp == STAMP | change


def test_minor_driver_version_is_no_reason(tmp_path: Path) -> None:
    tune(tmp_path / "t.json", FakeLab())
    tune(tmp_path / "t.json", FakeLab(), stamp=STAMP | {"driver_version": "580.200"})


def test_foreign_file_is_no_journal(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    journal_path(out).write_text("not a journal\n")
    with pytest.raises(TuningError, match="--fresh"):
        tune(out, FakeLab())


def test_entries_for_other_shapes_stay(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    tune(out, FakeLab(), PROBLEMS[:1])
    found = tune(out, FakeLab(), PROBLEMS[1:])
    assert len(found.entries) == 1
    assert len(Table.read(out).entries) == 2


def test_two_processes_do_not_tune_for_one_file(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    with (
        tuning_session(out, STAMP),
        pytest.raises(TuningError, match="another process is tuning"),
        tuning_session(out, STAMP),
    ):
        pass


def test_what_was_tuned_is_what_attention_takes(tmp_path: Path) -> None:
    assert choose(DType.FP16, 128, 4096, False, A100).config != BEST  # and the tables are read
    tune(user_table_path(A100), FakeLab())
    choice = choose(DType.FP16, 128, 4096, False, A100)
    assert (choice.config, choice.source and choice.source.title) == (BEST, "your table")


def test_plan_has_what_fits_and_the_rule() -> None:
    progression = get_kernel_progression_configs()
    assert make_plan([PROBLEM], progression, "sm_80") == {PROBLEM: [*progression, RULE]}
    odd = replace(PROBLEM, seq_len=960)
    assert {cfg.B_r for cfg in make_plan([odd], SPACE, "sm_80")[odd]} == {64}


def test_plan_on_sm90_has_both_families_and_its_own_rule() -> None:
    sm90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])
    rule = SM90_FORWARD.rule(DType.FP16, 128, 4096)
    (configs,) = make_plan([PROBLEM], [*SPACE, *sm90], "sm_90a").values()
    assert configs[-1] == rule
    assert set(configs) == {*SPACE, *sm90, rule}
    odd = replace(PROBLEM, seq_len=1000)
    assert set(make_plan([odd], [*SPACE, *sm90], "sm_90a")[odd]) == {*sm90, rule}
    assert set(make_plan([PROBLEM], [*SPACE, *sm90], "sm_80")[PROBLEM]) == {*SPACE, RULE}


def test_both_families_are_ranked_together() -> None:
    sm90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[0]
    times = {cfg: Timing(1.0, 0, 0) for cfg in (sm90, SPACE[1], SPACE[0])}
    assert survivors(times, RULE)[0] == SPACE[0]  # equally fast: by family, then in order


@pytest.mark.parametrize(("arch", "key"), [("sm_90a", "sm90-tune"), ("sm_80", "tune")])
def test_default_candidates_are_those_of_the_gpu(arch: str, key: str) -> None:
    request = tune_job.Request("128", "fp16", "full", None, None, None, None, None, kernels=[])
    wanted = {cfg for cfg in get_kernel_configs(key) if (cfg.dtype, cfg.d_head) == (5, 128)}
    assert set(request.configs([PROBLEM], arch)) == wanted


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([replace(PROBLEM, seq_len=100)], "multiple of 64"),
        ([PROBLEM, replace(PROBLEM, seq_len=3072)], "lengths 4096 and 3072 share one entry"),
        ([replace(PROBLEM, dtype=DType.BF16)], "none of the kernels can run BF16 d 128"),
    ],
)
def test_plan_refuses(problems: list[Problem], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(problems, SPACE, "sm_80")


SMALL = Problem(DType.FP16, 128, "full", 1, 1, 128)
PROGRESSION = get_kernel_progression_configs()[-2:]


def fake_timer(runs: Mapping[str, Callable[[], object]], repeats: int | None) -> dict[str, Timing]:
    for run in runs.values():
        run()
    return {name: Timing(1.0 + i, 1.0, 1.0) for i, name in enumerate(runs)}


@pytest.fixture
def emulated_lab(emulated: Callable[..., Kernel]) -> KernelLab:
    """The real lab on the emulator, with a timer that only runs."""
    return KernelLab("cpu", fake_timer)


def test_lab_builds_checks_and_times_on_the_emulator(
    emulated_lab: KernelLab, tmp_path: Path
) -> None:
    plan = {SMALL: PROGRESSION}
    emulated_lab.build(plan, lambda *_: None)
    with tuning_session(tmp_path / "t.json", STAMP) as session:
        table = session.run(plan, emulated_lab, lambda *_: None)
    (entry,) = table.entries.values()
    assert (entry.tried, entry.excluded) == (2, {})
    assert kernels_of(table, SMALL) == PROGRESSION  # the last stands for the rule's choice


def test_lab_finds_a_wrong_kernel(emulated_lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Kernel.__call__
    bad = PROGRESSION[0]

    def off_by_a_bit(
        self: Kernel, q: Any, k: Any, v: Any, o: torch.Tensor, *a: Any, **b: Any
    ) -> float:
        elapsed = call(self, q, k, v, o, *a, **b)
        if self.instance.config == bad:
            o[0, 7, 0, 5] += 0.1
        return elapsed

    monkeypatch.setattr(Kernel, "__call__", off_by_a_bit)
    wrong = emulated_lab.check(SMALL, PROGRESSION)
    assert list(wrong) == [bad]
    assert "(0, 7, 0, 5)" in wrong[bad]


def test_lab_builds_the_others_when_some_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = get_kernel_progression_configs()
    bad = {configs[1], configs[5]}
    built: list[FlashForwardKernelConfig] = []

    def load(instances: Any, target: Target, progress: Any) -> None:
        if any(instance.config in bad for instance in instances):
            raise BuildError("spills")
        built.extend(instance.config for instance in instances)

    monkeypatch.setattr(lab, "load_kernels", load)
    here = KernelLab("cpu", fake_timer)
    here.build({SMALL: configs}, lambda *_: None)
    assert set(built) == set(configs) - bad
    assert here.check(SMALL, sorted(bad)) == dict.fromkeys(sorted(bad), "spills")


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["tune", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeLab]:
    """An A100 whose kernels have the times of FakeLab."""
    monkeypatch.setattr(tune_job, "choose_device", lambda _: ("cuda", A100))
    monkeypatch.setattr(tune_job, "target_of", lambda _: Target.cuda("sm_80"))
    monkeypatch.setattr(tune_job, "environment_stamp", lambda: STAMP)
    monkeypatch.setattr(tune_job, "KernelLab", lambda _: FakeLab(wrong={RULE: "wrong: by far"}))
    return FakeLab


SHAPE = ("--d-head", "128", "--dtype", "fp16", "--mask", "full", "--seq-len", "4096")


@pytest.mark.usefixtures("gpu")
def test_command_tunes_reports_and_writes_the_users_table() -> None:
    result = invoke(*SHAPE)
    assert BEST.short_form() in result.stdout
    assert f"excluded: {RULE} full at length 4096: wrong: by far" in result.stderr
    path = user_table_path(A100)
    assert f"the table is {path}" in result.stderr
    assert kernels_of(Table.read(path))[0] == BEST


@pytest.mark.usefixtures("gpu")
def test_command_writes_where_it_is_told_and_speaks_json(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    document = json.loads(invoke(*SHAPE, "--out", out, "--json", "-k", BEST).stdout)
    assert document["entries"][0]["kernel"] == BEST.short_form()
    assert document["entries"][0]["tried"] == 2  # and the rule's choice
    assert Path(document["table"]) == out
    assert Table.read(out).stamp == STAMP


def test_command_says_how_to_go_on_after_an_interruption(
    gpu: type[FakeLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_job, "KernelLab", lambda _: gpu(die_at=3))
    result = invoke(*SHAPE, code=130)
    path = journal_path(user_table_path(A100))
    assert f"{path} has what is measured; the same command goes on" in result.stderr
    monkeypatch.setattr(tune_job, "KernelLab", lambda _: gpu())
    assert f"going on with {path}" in invoke(*SHAPE).stderr


def test_command_without_a_gpu_tunes_nothing_and_offers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_job, "choose_device", lambda _: ("cpu", "torch finds no GPU"))
    message = invoke(*SHAPE, code=1).stderr
    assert "nothing is tuned: torch finds no GPU" in message
    assert "--emulator-counts" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("emulated")
def test_emulator_counts_rank_by_conflicts_and_write_nothing(tmp_path: Path) -> None:
    conflicting, swizzled = get_kernel_progression_configs()[:2]
    args = ("--d-head", 128, "--dtype", "fp16", "--mask", "full", "--seq-len", 64,
            "-k", conflicting, "-k", swizzled, "--emulator-counts")  # fmt: skip
    result = invoke(*args, "--tokens", 64)
    lines = [line for line in result.stdout.splitlines() if "FP16" in line]
    assert len(lines) == 3  # and the rule's choice
    assert conflicting.short_form() in lines[-1]
    assert "counts, not times" in result.stderr
    assert " ms" not in result.stdout
    rows = json.loads(invoke(*args, "--tokens", 64, "--json").stdout)["rows"]
    wavefronts = [row["shared_wavefronts"] for row in rows]
    assert wavefronts == sorted(wavefronts)
    assert wavefronts[-1] > 2 * wavefronts[0] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--explain", "--out", "t.json"), "--explain measures nothing; leave out --out"),
        (("--gpu", A100), "without --explain this GPU is the one; leave out --gpu"),
        (("--emulator-counts", "--fresh"), "keeps and times nothing; leave out --fresh"),
        (("--explain", "--seq-len", "many"), "--seq-len is 'many'"),
        (("--explain", "--d-head", "80"), "--d-head is 80"),
        (("--explain", "--mask", "half"), "variant 'half' is not known"),
        (("--explain", "--hidden", "100"), "no multiple of d_head"),
        (("--emulator-counts", "-k", "nothing"), "kernels key 'nothing' is not known"),
        (("--emulator-counts", "--dtype", "bf16", "-k", BEST), "is for no shape of --dtype"),
    ],
)
def test_command_refuses(args: tuple[object, ...], message: str) -> None:
    assert message in invoke(*args, code=2).stderr


@pytest.mark.gpu
def test_command_tunes_on_this_gpu(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    kernels = [word for cfg in PROGRESSION for word in ("-k", cfg)]
    invoke(*SHAPE, *kernels, "--out", out, "--repeats", 5)
    table = Table.read(out)
    (entry,) = table.entries.values()
    assert (entry.tried, entry.excluded) == (3, {})
    assert entry.ranked[0].ms > 0
    assert table.stamp["gpu"] == torch.cuda.get_device_name()
