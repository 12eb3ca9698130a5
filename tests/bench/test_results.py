"""The rows and files of a benchmark, the sweep that fills and the session that guards them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith.configs import DType, Workload
from flashsmith.configs.workload import K_COLUMNS
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS
from flashsmith.lab.bench.results import (
    BACK_TO_BACK,
    FAILED,
    IN_TURN,
    CountRow,
    ResultFile,
    TimeRow,
    read_csv,
)
from flashsmith.lab.bench.session import Session
from flashsmith.lab.bench.sweep import sweep
from flashsmith.problem import Problem
from support.bench import CEILINGS, FITTING, PLAIN, SMALL, time_row
from support.paths import RESULTS
from support.workloads import changed

ROWS = [
    time_row("fa2", 2.0),
    time_row(PLAIN, 1.0, ratio_to_best_peer=2.0),
    time_row(FITTING, None, status=FAILED, reason='a\n \tb, "c"', error=math.inf),
]


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    file = ResultFile(TimeRow, tmp_path / "forward.csv")
    file.append(ROWS)
    back = ResultFile(TimeRow, tmp_path / "forward.csv").rows
    assert [row.kernel for row in back] == ["fa2", PLAIN, FITTING]
    assert back[1].ratio_to_best_peer == 2.0
    assert back[1].workload == SMALL
    assert (back[2].ms, back[2].error, back[2].reason) == (None, math.inf, 'a b, "c"')


@pytest.mark.parametrize("run", ["forward-bf16", "sm90-bf16"])
def test_files_from_before_there_were_regimes_are_in_turn(run: str, tmp_path: Path) -> None:
    old = RESULTS / run / "forward.csv"
    rows = read_csv(TimeRow, old)
    assert len(rows) == old.read_text().count("\n") - 1
    assert {row.regime for row in rows} == {IN_TURN}
    path = tmp_path / "forward.csv"
    path.write_bytes(old.read_bytes())
    ResultFile(TimeRow, path)
    assert path.read_text().splitlines()[0].endswith(",regime")
    assert read_csv(TimeRow, path) == rows


def test_files_from_before_there_were_columns_of_k_are_square(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    ResultFile(TimeRow, path).append([time_row("fa2", 2.0)])
    header, row = (line.split(",") for line in path.read_text().splitlines())
    places = [header.index(name) for name in K_COLUMNS]
    for cells in (header, row):
        del cells[places[0] : places[1] + 1]
    path.write_text(",".join(header) + "\n" + ",".join(row) + "\n")
    assert [each.workload for each in read_csv(TimeRow, path)] == [SMALL]
    path.write_text(path.read_text().replace("heads,seq_len", "seq_len,heads"))
    with pytest.raises(ValueError, match="was not written by this"):
        read_csv(TimeRow, path)


def test_k_of_another_shape_than_q_has_columns(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    workload = Workload(Problem(DType.BF16, 128, 4, 32, 8, 1, 8192))
    row = replace(time_row("fa2", 2.0), workload=workload)
    ResultFile(TimeRow, path).append([row])
    assert [each.workload for each in read_csv(TimeRow, path)] == [workload]


def test_the_regime_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "forward_back_to_back.csv"
    ResultFile(TimeRow, path).append([time_row("fa2", 2.0, regime=BACK_TO_BACK)])
    (row,) = ResultFile(TimeRow, path).rows
    assert row.regime == BACK_TO_BACK


def test_a_line_cut_off_is_forgotten_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    ResultFile(TimeRow, path).append(ROWS[:2])
    path.write_text(path.read_text()[:-20])
    file = ResultFile(TimeRow, path)
    assert [row.kernel for row in file.rows] == ["fa2"]
    file.append(ROWS[1:2])
    assert [row.kernel for row in ResultFile(TimeRow, path).rows] == ["fa2", PLAIN]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    path.write_text("name,value\na,1\n")
    with pytest.raises(ValueError, match="has columns name, value"):
        ResultFile(TimeRow, path)
    for damaged, words in ((b"\xff\n", "cannot be read"), (b"x" * 200_000 + b"\n", "line ")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"forward\.csv.*{words}"):
            ResultFile(TimeRow, path)
    ResultFile(CountRow, tmp_path / "counts.csv")
    with pytest.raises(ValueError, match=r"has columns kernel, .*ldmatrix"):
        ResultFile(TimeRow, tmp_path / "counts.csv")


WORKLOADS = [changed(SMALL, seq_len=n) for n in (64, 128, 192)]
CASES = [Case(FORWARD_KERNELS, workload, (PLAIN, FITTING)) for workload in WORKLOADS]


class Recorder:
    """A fake measurement that records the shapes it gets, and raises an error on demand."""

    def __init__(self, at: Workload | None = None, error: BaseException | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._at, self._error = at, error

    def __call__(self, case: Case) -> list[TimeRow]:
        workload, candidates = case.workload, case.candidates
        if workload == self._at and self._error:
            raise self._error
        self.asked.append((workload.problem.seq_len_q, len(candidates)))
        return [time_row(name, 1.0, workload) for name in candidates]


def run_sweep(path: Path, measure: Recorder) -> list[TimeRow]:
    results = ResultFile(TimeRow, path, regime=BACK_TO_BACK)
    sweep(CASES, measure, results, lambda done, total, name: None)
    return results.rows


def test_sweep_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(path, Recorder(WORKLOADS[1], KeyboardInterrupt()))
    second = Recorder()
    rows = run_sweep(path, second)
    assert second.asked == [(128, 2), (192, 2)]
    assert [row.workload for row in rows] == [w for w in WORKLOADS for _ in (PLAIN, FITTING)]
    third = Recorder()
    assert len(run_sweep(path, third)) == 6
    assert third.asked == []


def test_a_shape_that_is_not_whole_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    run_sweep(path, Recorder())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    again = Recorder()
    assert len(run_sweep(path, again)) == 6
    assert again.asked == [(192, 2)]


def test_a_kernel_that_breaks_the_gpu_is_left_out_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "forward_back_to_back.csv"
    with pytest.raises(GpuLostError, match="start a new process"):
        run_sweep(path, Recorder(WORKLOADS[1], GpuLostError(PLAIN, "illegal address")))
    again = Recorder()
    rows = run_sweep(path, again)
    assert again.asked == [(128, 1), (192, 2)]
    (failed,) = [row for row in rows if row.status == FAILED]
    assert (failed.kernel, failed.workload.problem.seq_len_q) == (PLAIN, 128)
    assert failed.regime == BACK_TO_BACK
    assert "illegal address" in failed.reason


@pytest.mark.parametrize("name", ["torch", "gpu", "sources", "driver_version"])
def test_a_session_refuses_another_environment(name: str, tmp_path: Path) -> None:
    stamp = {"date": "1", "gpu": "H200", "torch": "2", "sources": "a", "driver_version": "5"}

    def begin(stamp: dict[str, str], repeats: int = 3, force: bool = False) -> Session:
        return Session.open(
            tmp_path, stamp, {"repeats": repeats}, results=["forward.csv"], force=force
        )

    begin(stamp).add_ceilings(CEILINGS["FP16"])
    ResultFile(TimeRow, tmp_path / "forward.csv")
    assert begin(stamp | {"date": "2", "clocks.sm": "1"}).ceilings == CEILINGS
    with pytest.raises(ValueError, match=f"{name} was {stamp[name]} and is other; choose another"):
        begin(stamp | {name: "other"})
    with pytest.raises(ValueError, match="repeats was 3 and is 4"):
        begin(stamp, repeats=4)
    assert begin(stamp | {name: "other"}, force=True).ceilings == {}


def test_a_session_without_results_takes_the_stamp_of_the_next(tmp_path: Path) -> None:
    """The first session measured nothing, so its stamp may be replaced."""
    for gpu in ("A100", "H200"):
        session = Session.open(tmp_path, {"gpu": gpu}, {}, results=["forward.csv"])
        assert json.loads(session.path.read_text())["gpu"] == gpu
