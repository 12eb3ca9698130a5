"""`flashsmith bench`: its shapes and its command, on the emulator with replaced clocks."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from flashsmith import settings
from flashsmith.cli import app
from flashsmith.configs import DType
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench import ceilings, runner, summary
from flashsmith.lab.bench.grid import make_grid
from flashsmith.lab.bench.monitor import GpuMonitor, Sample
from flashsmith.lab.bench.results import FAILED, KERNEL, OK, PEER, CountRow, ResultFile, TimeRow
from flashsmith.lab.bench.runner import Runner
from flashsmith.lab.bench.timer import HEAD_START, Timing
from flashsmith.lab.commands import bench as lab_bench
from flashsmith.lab.commands import bench_files
from support.bench import CEILINGS, FITTING, PLAIN, svg_texts, times_of
from support.paths import ROOT
from support.problems import heed_interrupts
from support.workloads import square


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (settings.KERNELS, settings.BUILD, settings.FA3_LIBRARY, settings.FA3_CUDART):
        monkeypatch.delenv(setting.name, raising=False)


def test_grid_keeps_tokens_and_hidden_size() -> None:
    grid = make_grid(
        [DType.BF16], [64, 128], ["full", "causal"], [512, 32768], tokens=16384, hidden=2048
    )
    assert len(grid) == 8
    assert square(DType.BF16, 64, "full", 32, 32, 512) in grid
    assert square(DType.BF16, 128, "causal", 1, 16, 32768) in grid  # the batch is at least 1


def test_grid_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="hidden is 100, no multiple of d_head 64"):
        make_grid([DType.FP16], [64], ["full"], [64], tokens=64, hidden=100)
    with pytest.raises(ValueError, match="variant 'banded' is not known"):
        make_grid([DType.FP16], [64], ["banded"], [64], tokens=64, hidden=64)


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Stands in for the GPU: kernels run on the emulator, and take the times given here."""
    times = {"fa2": 2.0, PLAIN: 4.0, FITTING: 1.0}
    steady = {"fa2": 2.0, PLAIN: 4.0, FITTING: 1.6}
    monkeypatch.setattr(lab_bench, "_choose_device", lambda counts: "cpu")
    monkeypatch.setattr(Runner, "times_anything", True)
    monkeypatch.setattr(runner, "time_interleaved", times_of(times))
    monkeypatch.setattr(runner, "time_back_to_back", times_of(steady))
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda dtype: CEILINGS[str(dtype)])
    monkeypatch.setattr(lab_bench, "GpuMonitor", lambda: GpuMonitor(lambda: Sample(1700.0, 600.0)))
    yield times


def small_grid(out: Path, *kernels: str) -> list[object]:
    names = [part for kernel in kernels for part in ("-k", kernel)]
    grid = ["--d-head", 64, "--mask", "full", "--tokens", 128, "--hidden", 64]
    return [*names, *grid, "--seq-len", "64,128", "--peers", "fa2,fa4", "--out", out]


@pytest.mark.usefixtures("clock")
def test_bench_writes_csv_markdown_plots_and_stamp(tmp_path: Path) -> None:
    command = small_grid(tmp_path, PLAIN, FITTING)
    document = json.loads(invoke(*command, "--json").stdout)
    with (tmp_path / "forward.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["kernel"], r["seq_len"], r["batch"]) for r in rows] == [
        (name, *shape)
        for shape in (("64", "2"), ("128", "1"))
        for name in ("fa2", "fa4", PLAIN, FITTING)
    ]
    assert [r["status"] for r in rows[:4]] == [OK, "missing", OK, OK]
    assert "flash_attn.cute.interface is not installed" in rows[1]["reason"]
    assert [r["ratio_to_best_peer"] for r in rows[:4]] == ["1", "", "0.5", "2"]
    assert float(rows[3]["tflops"]) == pytest.approx(4 * 2 * 64**3 / 1e-3 / 1e12)
    assert len(document["rows"]) == len(rows)
    markdown = (tmp_path / "forward.md").read_text()
    assert f"| 128 | `{FITTING}` | 1 (0.5 to 2) |" in markdown
    assert "FP16 matrix product 700 TFLOP/s, copy 4000 GB/s" in markdown
    stamp = json.loads((tmp_path / "environment.json").read_text())
    assert stamp["ceilings"]["FP16"]["matmul_tflops"] == 700
    assert stamp["arguments"]["peers"] == ["fa2", "fa4"]
    assert stamp["torch"] == torch.__version__
    assert "d_head 64, full" in svg_texts(tmp_path / "tflops.svg")
    assert sorted(map(str, tmp_path.iterdir())) == sorted(document["files"])


def test_bench_again_measures_nothing_and_refuses_other_arguments(
    clock: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_files, "find_plots", lambda _: None)  # plots take a second
    command = small_grid(tmp_path, FITTING)
    first = invoke(*command)
    assert FITTING in first.stdout
    before = (tmp_path / "forward.csv").read_bytes()
    del clock[FITTING]  # timing this kernel again would fail
    assert invoke(*command).stdout == first.stdout
    assert (tmp_path / "forward.csv").read_bytes() == before
    message = invoke(*command, "--repeats", 7, code=2).stderr
    assert "repeats was 30 and is 7" in message
    assert "--force" in message
    clock[FITTING] = 3.0
    invoke(*command, "--repeats", 7, "--force")
    assert (tmp_path / "forward.csv").read_text().count(",3,1.5,6,") == 2


@pytest.mark.usefixtures("clock")
def test_both_regimes_have_files_of_their_own(tmp_path: Path) -> None:
    command = [*small_grid(tmp_path, PLAIN, FITTING), "--regime", "both"]
    document = json.loads(invoke(*command, "--json").stdout)
    found = {}
    for regime, name in (("in-turn", "forward"), ("back-to-back", "forward_back_to_back")):
        rows = ResultFile(TimeRow, tmp_path / f"{name}.csv").rows
        assert {row.regime for row in rows} == {regime}
        found[regime] = [row.ratio_to_best_peer for row in rows if row.kernel == FITTING]
        assert len(rows) == 8
        markdown = (tmp_path / f"{name}.md").read_text()
        assert f"| d 64, full | {found[regime][0]:.2f} |" in markdown
        assert f"fa2: torch {torch.__version__}" not in markdown
        assert f"FlashAttention-2 (torch SDPA): torch {torch.__version__}." in markdown
    assert found == {"in-turn": [2.0, 2.0], "back-to-back": [1.25, 1.25]}
    assert "in turn, L2 flushed" in svg_texts(tmp_path / "tflops.svg")
    assert "back to back" in svg_texts(tmp_path / "tflops_back_to_back.svg")
    assert sorted(map(str, tmp_path.iterdir())) == sorted(document["files"])
    assert {row["regime"] for row in document["rows"]} == {"in-turn", "back-to-back"}
    assert document["environment"]["peers"] == {"fa2": f"torch {torch.__version__}"}


@pytest.mark.usefixtures("clock")
def test_another_regime_is_no_continuation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_files, "find_plots", lambda _: None)
    command = small_grid(tmp_path, FITTING)
    printed = invoke(*command, "--regime", "back-to-back").stdout
    assert "back-to-back" in printed
    assert not (tmp_path / "forward.csv").exists()
    message = invoke(*command, "--regime", "in-turn", code=2).stderr
    assert "regime was back-to-back and is in-turn" in message
    (tmp_path / "tflops_back_to_back.svg").touch()
    invoke(*command, "--regime", "in-turn", "--force")
    assert [*tmp_path.glob("*_back_to_back.*")] == []


@pytest.mark.usefixtures("clock")
def test_options_reach_the_timers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def timed(name: str, runs: dict[str, object], **options: object) -> dict[str, Timing]:
        given[name] = options
        return dict.fromkeys(runs, Timing(1.0, 1.0, 1.0))

    for name in ("time_interleaved", "time_back_to_back"):
        monkeypatch.setattr(runner, name, partial(timed, name))
    command = [*small_grid(tmp_path, FITTING), "--regime", "both"]
    invoke(*command, "--repeats", 7, "--milliseconds", 42)
    assert given == {
        "time_interleaved": {"repeats": 7, "head_start": HEAD_START, "pause": 0.0},
        "time_back_to_back": {"milliseconds": 42.0, "warmup_ms": 84.0},
    }


@pytest.mark.usefixtures("clock")
def test_a_bad_kernel_does_not_end_the_sweep(tmp_path: Path) -> None:
    """Each warp would have 8 rows, and an mma needs 16: that kernel cannot be built, the other one
    can."""
    illegal = FITTING.replace("64, 64, 4)", "64, 64, 8)")
    result = invoke(*small_grid(tmp_path, illegal, FITTING), code=1)
    rows = ResultFile(TimeRow, tmp_path / "forward.csv").rows
    ours = [row for row in rows if row.kind == KERNEL]
    status = {(row.kernel, row.workload.problem.seq_len_q): row.status for row in ours}
    assert status == {
        **{(illegal, n): FAILED for n in (64, 128)},
        **{(FITTING, n): OK for n in (64, 128)},
    }
    assert f"failed: {illegal}" in result.stderr


@pytest.mark.usefixtures("clock")
def test_a_lost_gpu_goes_on_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NewProcess(BaseException):
        pass

    started: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise NewProcess

    def lose(name: str, *_: object) -> None:
        raise GpuLostError(name, "illegal address")

    monkeypatch.setattr(runner, "check", lose)
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "flashsmith", "bench", "--force"])
    with pytest.raises(NewProcess):
        invoke("-k", FITTING, "--peers", "fa2", "--d-head", 64, "--mask", "full", "--seq-len", 64,
               "--tokens", 64, "--hidden", 64, "--out", tmp_path, "--force")  # fmt: skip
    assert started == [[sys.executable, "-m", "flashsmith", "bench"]]
    (row,) = ResultFile(TimeRow, tmp_path / "forward.csv").rows
    assert (row.kernel, row.kind, row.status) == ("fa2", PEER, FAILED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to benchmark")
def test_without_a_gpu_nothing_is_benchmarked_and_counts_are_offered(tmp_path: Path) -> None:
    result = invoke("--out", tmp_path / "bench", code=1)
    assert "nothing is benchmarked" in result.stderr
    assert "--emulator-counts" in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "bench").exists()


def test_emulator_counts_in_place_of_times(tmp_path: Path) -> None:
    grid = ["--d-head", 64, "--mask", "full", "--seq-len", 64, "--out", tmp_path]
    result = invoke("--emulator-counts", "-k", PLAIN, "-k", FITTING, *grid)
    plain, fitting = ResultFile(CountRow, tmp_path / "counts.csv").rows
    # 256 tokens and a hidden size of 128 make 8 heads; each has two products, of m16n8k16.
    assert plain.mma == fitting.mma == 8 * 2 * (64 // 16) * (64 // 8) * (64 // 16)
    assert summary.bank_conflicts(fitting) == 0
    conflicts = summary.bank_conflicts(plain)
    assert conflicts is not None
    assert conflicts > 10_000  # the layout is not swizzled
    assert str(conflicts) in result.stdout
    assert f"| {conflicts} |" in (tmp_path / "counts.md").read_text()
    texts = svg_texts(tmp_path / "wavefronts.svg")
    assert PLAIN in texts
    assert "bank conflicts" in texts


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--d-head", "80"), "--d-head is 80"),
        (("--seq-len", "64,many"), "--seq-len is '64,many'"),
        (("--mask", "diagonal"), "variant 'diagonal'"),
        (("--dtype", "fp8"), "dtype 'fp8'"),
        (("--peers", "fa2"), "counts kernels only"),
        (("-k", "fastest"), "kernels key 'fastest'"),
        (("-k", PLAIN, "--d-head", "128"), "fits no shape of this grid"),
        (("-k", "(FP16, 64): eager"), "cannot be parsed"),
        (("--repeats", "0"), "--repeats"),
        (("--regime", "in-turn,fast"), "'fast' is not known, choose in-turn, back-to-back or both"),
        (("--milliseconds", "0"), "--milliseconds"),
    ],
)
def test_wrong_options_are_named(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = invoke("--emulator-counts", *args, "--out", tmp_path / "bench", code=2)
    assert message in result.stderr
    assert not (tmp_path / "bench").exists()


def test_an_interrupted_process_resumes(tmp_path: Path) -> None:
    """The script is called by its own name and spelling, and interrupted after the first shape."""
    script = ROOT / "tools" / "benchmark" / "pt_bench.py"
    options = ["--d_heads=64", "--mask=full", "--seq_lens=64,512,576,640", "--tokens=64"]
    command = [sys.executable, str(script), "--emulator_counts", *options]
    command += ["--kernels", FITTING, "--out", str(tmp_path)]
    path = tmp_path / "counts.csv"
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().count("\n") > 1):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on from there" in errors
    first = path.read_text()
    assert first.count("\n") < 5
    subprocess.run(command, check=True, capture_output=True)
    assert path.read_text().startswith(first)
    rows = ResultFile(CountRow, path).rows
    assert [row.workload.problem.seq_len_k for row in rows] == [64, 512, 576, 640]
