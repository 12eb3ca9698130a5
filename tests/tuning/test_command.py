"""`flashsmith tune`, with a lab that has known speeds, and on the emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from flashsmith.cli import app
from flashsmith.configs import (
    get_kernel_progression_configs,
)
from flashsmith.jit import Target
from flashsmith.lab.commands import tune as lab_tune
from flashsmith.lab.tuning.search import REPEATS
from flashsmith.lab.tuning.session import journal_path
from flashsmith.selection.tables import Table, user_table_path
from support.tuning import (
    A100,
    BEST,
    HEURISTIC,
    PROGRESSION,
    STAMP,
    WORKLOAD,
    FakeLab,
    kernels_of,
)


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["tune", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeLab]:
    """Pretends that there is an A100 whose kernels take the times of FakeLab."""
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cuda", A100))
    monkeypatch.setattr(lab_tune, "target_of", lambda _: Target.cuda("sm_80"))
    monkeypatch.setattr(lab_tune, "environment_stamp", lambda: STAMP)
    monkeypatch.setattr(
        lab_tune, "KernelLab", lambda *_: FakeLab(wrong={HEURISTIC: "wrong: by far"})
    )
    return FakeLab


SHAPE = ("--d-head", "128", "--dtype", "fp16", "--mask", "full", "--seq-len", "4096")


@pytest.mark.usefixtures("gpu")
def test_command_tunes_reports_and_writes_the_users_table() -> None:
    result = invoke(*SHAPE)
    assert BEST.short_form() in result.stdout
    assert f"excluded: {HEURISTIC} for {WORKLOAD}: wrong: by far" in result.stderr
    path = user_table_path(A100)
    assert f"the table is {path}" in result.stderr
    assert kernels_of(Table.read(path))[0] == BEST


@pytest.mark.usefixtures("gpu")
def test_command_tunes_the_grids_that_are_named_and_shows_the_portfolio(tmp_path: Path) -> None:
    out, kind = tmp_path / "t.csv", SHAPE[:6]
    result = invoke(*kind, "--grid", "decode,chunk", "--out", out)
    sizes = [entry.workload.problem.sizes for entry in Table.read(out).entries.values()]
    assert sizes == ["1 x 16 x 128/8192", "1 x 16 x 1024/8192", "4 x 16 x 1/16384"]
    assert "1 kernels serve d 128 full within 1 % of the best of each shape" in result.stderr
    document = json.loads(invoke(*kind, "--grid", "chunk", "--out", out, "--json").stdout)
    (portfolio,) = document["portfolios"]
    assert portfolio["kernels"] == [BEST.short_form()] and not portfolio["beyond_tolerance"]
    assert {row["seq_len_k"] for row in document["entries"]} == {8192}


@pytest.mark.usefixtures("gpu")
def test_command_writes_where_it_is_told_and_speaks_json(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    document = json.loads(invoke(*SHAPE, "--out", out, "--json", "-k", BEST).stdout)
    assert document["entries"][0]["kernel"] == BEST.short_form()
    assert document["entries"][0]["tried"] == 2  # and the heuristic's choice
    assert Path(document["table"]) == out
    assert Table.read(out).stamp == STAMP


def outdated(path: Path) -> Table:
    """Makes a table one of other kernel sources, and returns it."""
    stale = STAMP["kernels_sm80"]
    path.write_text(path.read_text().replace(stale, "0" * len(stale)))
    return Table.read(path)


def test_what_a_table_has_is_measured_again_in_one_round(
    gpu: type[FakeLab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.csv"
    invoke(*SHAPE[:6], "--seq-len", "1024,4096", "--out", out)
    old = outdated(out)
    key, entry = next(iter(old.entries.items()))
    without_best = replace(entry, ranked=entry.ranked[1:])  # the other shape's choice
    old = replace(old, entries={**old.entries, key: without_best})
    old.write(out)
    invoke(*SHAPE, "--out", out, code=1)
    fake = gpu()
    monkeypatch.setattr(lab_tune, "KernelLab", lambda *_: fake)
    invoke("--again", "--out", out)
    new = Table.read(out)
    assert new.stamp == STAMP and set(new.entries) == set(old.entries)
    for key, entry in new.entries.items():
        before = {row.config for row in old.entries[key].ranked} | {*old.portfolio(entry)}
        assert {row.config for row in entry.ranked} == before | {HEURISTIC, BEST}
    per_shape = [what for _, what, _ in fake.asked if what != "soak"]
    assert per_shape == ["check", "time", "time back to back"] * len(new.entries)
    assert {*fake.launches.values()} <= {REPEATS, len(new.entries) * REPEATS}


@pytest.mark.usefixtures("gpu")
def test_the_shipped_table_is_measured_again_if_the_user_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped" / "a100.csv"
    monkeypatch.setattr(lab_tune, "shipped_table_path", lambda *_: shipped)
    message = invoke("--again", code=1).stderr
    assert "there is no table to measure again: neither" in message and str(shipped) in message
    invoke(*SHAPE, "--out", shipped)
    old = outdated(shipped)
    invoke("--again", "--repeats", 3)
    assert Table.read(shipped) == old
    assert Table.read(user_table_path(A100)).entries.keys() == old.entries.keys()
    shipped.write_text(shipped.read_text().replace(A100, "NVIDIA L4"))
    message = invoke("--again", "--out", shipped, code=1).stderr
    assert "is a table of forward kernels of NVIDIA L4" in " ".join(message.split())


def test_command_says_how_to_go_on_after_an_interruption(
    gpu: type[FakeLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_tune, "KernelLab", lambda *_: gpu(die_at=3))
    result = invoke(*SHAPE, code=130)
    path = journal_path(user_table_path(A100))
    assert f"{path} has what is measured; the same command goes on" in result.stderr
    monkeypatch.setattr(lab_tune, "KernelLab", lambda *_: gpu())
    assert f"going on with {path}" in invoke(*SHAPE).stderr


def test_command_without_a_gpu_tunes_nothing_and_offers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_tune, "choose_device", lambda _: ("cpu", "torch finds no GPU"))
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
    assert len(lines) == 3  # and the heuristic's choice
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
        (("--emulator-counts", "--force"), "keeps and times nothing; leave out --force"),
        (("--again", "--d-head", "64", "--force"), "table has; leave out --d-head, --force"),
        (("--again", "--explain"), "--again measures what the table has; leave out --explain"),
        (("--explain", "--grid", "tiny"), "--grid is 'tiny'; supported: full, small, chunk"),
        (("--explain", "--grid", "small", "--batch", "1"), "--grid sets all sizes"),
        (("--emulator-counts", "--grid", "small"), "keeps and times nothing; leave out --grid"),
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
    (before,) = Table.read(out).entries.values()
    assert (before.tried, before.excluded) == (3, {})
    invoke("--again", "--out", out, "--repeats", 5)
    table = Table.read(out)
    (entry,) = table.entries.values()
    assert entry.workload == before.workload and entry.excluded == {}
    assert {row.config for row in entry.ranked} == {row.config for row in before.ranked}
    assert entry.ranked[0].ms > 0
    assert table.stamp["gpu"] == torch.cuda.get_device_name()
