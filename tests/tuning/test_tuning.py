"""The tuner: halving, journal, refusals and plans, with a lab that has known speeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    Workload,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning.search import make_plan, survivors
from flashsmith.lab.tuning.session import journal_path, tuning_session
from flashsmith.selection.choose import choose
from flashsmith.selection.tables import Table, user_table_path
from support.paths import TESTS
from support.tuning import (
    A100,
    BEST,
    HEURISTIC,
    SPACE,
    STAMP,
    WORKLOAD,
    WORKLOADS,
    FakeLab,
    kernels_of,
    tune,
)
from support.workloads import changed


def test_halving_finds_the_winner_and_spends_little_on_the_hopeless(tmp_path: Path) -> None:
    fake = FakeLab()
    table = tune(tmp_path / "new" / "folder" / "t.json", fake)
    assert kernels_of(table)[0] == BEST
    assert fake.launches[BEST] == 3 + 9 + 30
    assert fake.asked[:2] == [(WORKLOAD, "check", 40), (WORKLOAD, "time", 40)]
    assert sum(launches == 3 for launches in fake.launches.values()) >= 20
    assert sum(fake.launches.values()) < 40 * 30 / 2


def test_entry_holds_what_was_measured(tmp_path: Path) -> None:
    table = tune(tmp_path / "t.json", FakeLab())
    (entry,) = table.entries.values()
    assert (entry.tried, entry.excluded, entry.workload) == (40, {}, WORKLOAD)
    best = entry.ranked[0]
    assert best.tflops == pytest.approx(WORKLOAD.flop / best.ms / 1e9, rel=1e-3)
    (heuristic,) = (row for row in entry.ranked if row.config == HEURISTIC)
    assert entry.heuristic_ratio == pytest.approx(heuristic.cost / best.cost, rel=1e-3)
    assert best.ms_back_to_back == pytest.approx(1.1)
    assert table == Table.read(tmp_path / "t.json")
    assert not journal_path(tmp_path / "t.json").exists()


def test_the_fastest_third_and_the_heuristic_survive() -> None:
    times = {cfg: Timing(i + 1.0, 0, 0) for i, cfg in enumerate(SPACE)}
    fastest = SPACE[: -(-len(SPACE) // 3)]
    slow = SPACE[-1]
    assert survivors(times, {slow}) == [*fastest, slow]
    assert survivors(times, {SPACE[0]}) == fastest


def test_a_grid_that_does_not_fill_the_gpu_is_not_timed_back_to_back(tmp_path: Path) -> None:
    """A grid like this draws too little power to reach the GPU's power limit."""
    fake, few = FakeLab(), changed(WORKLOAD, batch=1, heads=8, seq_len=1024)
    (entry,) = tune(tmp_path / "t.csv", fake, [few]).entries.values()
    assert [what for _, what, _ in fake.asked] == ["check", *["time"] * 3, "soak"]
    assert all(row.ms_back_to_back is None and row.cost == row.ms for row in entry.ranked)


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
    expected = tune(tmp_path / "whole.json", whole, WORKLOADS)
    out = tmp_path / "t.json"
    first, second = FakeLab(die_at=die_at), FakeLab()
    with pytest.raises(KeyboardInterrupt):
        tune(out, first, WORKLOADS)
    assert not out.exists()
    assert tune(out, second, WORKLOADS) == expected
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
    path.write_bytes(whole[:10])  # in the stamp, which counts as no journal
    again = FakeLab()
    tune(out, again)
    assert len(again.asked) == 6


def test_killed_process_leaves_a_journal_that_the_next_goes_on_with(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from support import tuning as t
        lab = t.FakeLab()
        ask = lab._ask
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)
        lab._ask = lambda *a: ask(*a) if len(lab.asked) < 2 else die()
        t.tune(Path({str(out)!r}), lab)
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
        def check(self, workload: Workload, configs: Any) -> dict[FlashForwardKernelConfig, str]:
            if BEST in configs:
                raise GpuLostError(BEST.short_form(), "illegal address")
            return super().check(workload, configs)

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
    with pytest.raises(TuningError, match="--force"):
        tune(out, FakeLab())


def test_entries_for_other_shapes_stay(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    tune(out, FakeLab(), WORKLOADS[:1])
    found = tune(out, FakeLab(), WORKLOADS[1:])
    assert len(found.entries) == 1
    assert len(Table.read(out).entries) == 2


def test_two_processes_do_not_tune_for_one_file(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    with (
        tuning_session(FORWARD, out, STAMP),
        pytest.raises(TuningError, match="another process is tuning"),
        tuning_session(FORWARD, out, STAMP),
    ):
        pass


def test_what_was_tuned_is_what_attention_takes(tmp_path: Path) -> None:
    assert choose(WORKLOAD, A100).config != BEST  # the tables are read
    tune(user_table_path(A100), FakeLab())
    choice = choose(WORKLOAD, A100)
    assert (choice.config, choice.source and choice.source.title) == (BEST, "your table")


def test_plan_has_what_fits_and_the_heuristic() -> None:
    progression = get_kernel_progression_configs()
    assert make_plan(FORWARD, [WORKLOAD], "sm_80", configs=progression) == {
        WORKLOAD: [*progression, HEURISTIC]
    }
    odd = changed(WORKLOAD, seq_len=1000)  # no block size divides it
    *others, _ = make_plan(FORWARD, [odd], "sm_80", configs=SPACE)[odd]
    assert set(others) <= set(SPACE) and {cfg.B_r for cfg in others} == {64, 128}


def test_plan_on_sm90_has_both_families_and_its_own_heuristic() -> None:
    sm90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])
    heuristic = SM90_FORWARD.heuristic(Workload.square(DType.FP16, 128, 4096))
    (configs,) = make_plan(FORWARD, [WORKLOAD], "sm_90a", configs=[*SPACE, *sm90]).values()
    assert configs[-1] == heuristic
    assert set(configs) == {*SPACE, *sm90, heuristic}
    odd = changed(WORKLOAD, seq_len=1000)
    assert set(make_plan(FORWARD, [odd], "sm_90a", configs=[*SPACE, *sm90])[odd]) == {
        *SPACE,
        *sm90,
        heuristic,
    }
    assert set(make_plan(FORWARD, [WORKLOAD], "sm_80", configs=[*SPACE, *sm90])[WORKLOAD]) == {
        *SPACE,
        HEURISTIC,
    }


def test_both_families_are_ranked_together() -> None:
    sm90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[0]
    times = {cfg: Timing(1.0, 0, 0) for cfg in (sm90, SPACE[1], SPACE[0])}
    assert survivors(times, {HEURISTIC})[0] == SPACE[0]  # equally fast: by family, then in order


@pytest.mark.parametrize(("arch", "key"), [("sm_90a", "sm90-tune"), ("sm_80", "tune")])
def test_default_candidates_are_those_of_the_gpu(arch: str, key: str) -> None:
    wanted = {cfg for cfg in get_kernel_configs(key) if (cfg.dtype, cfg.d_head) == (5, 128)}
    assert set(*make_plan(FORWARD, [WORKLOAD], arch).values()) == wanted | {
        FORWARD.serving(WORKLOAD, arch).heuristic_config
    }


@pytest.mark.parametrize(
    ("workloads", "message"),
    [
        ([changed(WORKLOAD, d_head=264)], "q has d_head 264"),
        (
            [WORKLOAD, changed(WORKLOAD, seq_len=3072)],
            "4096 and .* x 3072 share one entry",
        ),
        ([changed(WORKLOAD, dtype=DType.BF16)], "none of the kernels can run BF16 d 128"),
    ],
)
def test_plan_refuses(workloads: list[Workload], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(FORWARD, workloads, "sm_80", configs=SPACE)
