"""Benchmarks: shapes, peers, checks, the sweep and its files; on the emulator, clocks replaced."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner, Result

from flashsmith import bench, settings
from flashsmith.bench import PEERS, Ceilings, Peer, Problem, Timing, make_grid, plots, summary
from flashsmith.bench.candidates import Candidate, Checker
from flashsmith.bench.monitor import GpuMonitor, Sample
from flashsmith.bench.results import FAILED, KERNEL, OK, PEER, CountRow, ResultFile, TimeRow
from flashsmith.bench.session import Session
from flashsmith.bench.sweep import MeasureTimes, sweep
from flashsmith.cli import app, bench_job
from flashsmith.configs import DType, parse_kernel_name_into_config
from flashsmith.errors import DeviceError, GpuLostError
from problems import heed_interrupts

PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
FITTING = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
SMALL = Problem(DType.FP16, 64, "full", 2, 2, 64)
H200 = Path(__file__).parent.parent / "benchmarks" / "results" / "h200" / "2026-11-21"
CEILINGS = {"FP16": Ceilings("FP16", matmul_tflops=700.0, copy_gb_per_s=4000.0)}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (settings.KERNELS, settings.FA3_SO, settings.BUILD):
        monkeypatch.delenv(setting.name, raising=False)


def time_row(kernel: str, ms: float | None, problem: Problem = SMALL, **values: Any) -> TimeRow:
    """As if measured; without numbers if ``ms`` is None."""
    numbers = {}
    if ms is not None:
        numbers = {"ms_p20": ms * 0.9, "ms_p80": ms * 1.1, "tflops": problem.tflops(ms)}
    return TimeRow(
        kernel=kernel,
        kind=PEER if kernel in PEERS else KERNEL,
        dtype=str(problem.dtype),
        d_head=problem.d_head,
        mask=problem.mask,
        batch=problem.batch,
        heads=problem.heads,
        seq_len=problem.seq_len,
        ms=ms,
        **{**numbers, **values},
    )


# Shapes.


def test_grid_keeps_tokens_and_hidden_size() -> None:
    grid = make_grid(
        [DType.BF16], [64, 128], ["full", "causal"], [512, 32768], tokens=16384, hidden=2048
    )
    assert len(grid) == 8
    assert Problem(DType.BF16, 64, "full", 32, 32, 512) in grid
    assert Problem(DType.BF16, 128, "causal", 1, 16, 32768) in grid  # at least one sample


def test_grid_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="hidden is 100, no multiple of d_head 64"):
        make_grid([DType.FP16], [64], ["full"], [64], tokens=64, hidden=100)
    with pytest.raises(ValueError, match="variant 'banded' is not known"):
        make_grid([DType.FP16], [64], ["banded"], [64], tokens=64, hidden=64)


def test_flop_and_intensity_of_a_problem() -> None:
    full = Problem(DType.FP16, 128, "full", 4, 16, 4096)
    causal = replace(full, mask="causal")
    assert full.flop == 4 * 4 * 16 * 4096**2 * 128
    assert causal.flop == full.flop / 2
    assert full.intensity == 4096 / 2  # 4 s^2 d operations for 4 tensors of s d 2-byte elements
    assert full.tflops(1.0) == pytest.approx(full.flop / 1e-3 / 1e12)


# Peers.


@pytest.mark.parametrize("causal", [False, True])
def test_fa2_is_right_on_a_cpu_too(causal: bool) -> None:
    q, k, v = SMALL.make_qkv("cpu")
    o = PEERS["fa2"].make(q, k, v, causal)()
    exact = bench.reference_attention(q, k, v, causal=causal)
    low = bench.reference_attention(q, k, v, causal=causal, compute=q.dtype)
    assert o.shape == q.shape
    assert bench.compare(o, exact, low).ok


def test_missing_peers_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reasons = {name: peer.why_missing() for name, peer in PEERS.items()}
    assert reasons["fa2"] == ""
    assert reasons["cudnn"] == reasons["flex"] == "torch finds no GPU"
    assert "flash_attn_interface is not installed" in reasons["fa3"]
    assert settings.FA3_SO.name in reasons["fa3"]
    assert "flash_attn.cute.interface is not installed" in reasons["fa4"]
    with pytest.raises(DeviceError, match=r"no fa3 or fa4 here .fa3: .*; fa4: "):
        bench.first_available("fa3", "fa4")
    assert bench.first_available("fa3", "fa2").name == "fa2"
    monkeypatch.setenv(settings.FA3_SO.name, "/nowhere/fa3.so")
    assert PEERS["fa3"].why_missing() == f"there is no file {settings.FA3_SO.name}=/nowhere/fa3.so"


def test_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="peer 'fa5' is not known; supported: fa2, cudnn, fa3"):
        bench.find_peers(["fa2", "fa5"])


@pytest.mark.parametrize(
    ("peer", "module", "result"),
    [("fa3", "flash_attn_interface", "(q, None)"), ("fa4", "flash_attn/cute/interface", "q")],
)
def test_flash_attn_modules_are_called_as_they_are(
    peer: str, module: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both give a tensor or a tuple that begins with it, by version."""
    path = (tmp_path / module).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"def flash_attn_func(q, k, v, *, causal):\n    return {result} if causal else v\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))  # none of it stays
    q, k, v = SMALL.make_qkv("cpu")
    assert PEERS[peer].make(q, k, v, True)() is q
    assert PEERS[peer].make(q, k, v, False)() is v
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert PEERS[peer].is_available


_FA3_SCHEMA = """fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v,
    Tensor? out, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new,
    Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k,
    Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos,
    Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale,
    Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left,
    int window_size_right, float softcap, bool is_rotary_interleaved,
    Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux,
    int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"""


def test_the_operator_of_vllm_is_called_by_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with vLLM's schema, which computes from what its names say."""
    seen: dict[str, Any] = {}
    names = [
        word.split()[-1] for word in _FA3_SCHEMA.partition("(")[2].partition(")")[0].split(",")
    ]

    def forward(*arguments: Any) -> list[torch.Tensor]:
        seen.update(zip(names, arguments, strict=True))
        length = seen["max_seqlen_q"]
        q, k, v = (seen[name].unflatten(0, (-1, length)) for name in "qkv")
        return [PEERS["fa2"].make(q, k, v, seen["is_causal"])().flatten(0, 1)]

    library = torch.library.Library("_vllm_fa3_C", "DEF")
    library.define(_FA3_SCHEMA)
    library.impl("fwd", forward, "CPU")
    file = tmp_path / "fa3.so"
    file.touch()
    monkeypatch.setenv(settings.FA3_SO.name, str(file))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: seen.update(path=path))
    q, k, v = SMALL.make_qkv("cpu")
    o = PEERS["fa3"].make(q, k, v, True)()
    assert torch.equal(o, PEERS["fa2"].make(q, k, v, True)())
    assert seen["path"] == str(file)
    assert seen["cu_seqlens_q"].tolist() == seen["cu_seqlens_k"].tolist() == [0, 64, 128]
    assert (seen["softmax_scale"], seen["num_splits"]) == (64**-0.5, 1)
    assert (seen["window_size_left"], seen["window_size_right"]) == (-1, -1)


# Checks and times of one shape.


def fake_peer(name: str, run: Callable[[torch.Tensor], torch.Tensor], missing: str = "") -> Peer:
    return Peer(name, name, lambda q, k, v, causal: lambda: run(q), lambda: missing)


def broken(q: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image\nis available")


def spoilt(q: torch.Tensor) -> torch.Tensor:
    o = PEERS["fa2"].make(*SMALL.make_qkv("cpu"), False)().contiguous()
    o[0, 3, 1, 5] = math.nan  # a head that is not compared
    return o


def test_checker_tells_right_wrong_broken_and_missing() -> None:
    checker = Checker(SMALL, "cpu")
    assert checker.check(PEERS["fa2"]).status == OK
    assert checker.check(parse_kernel_name_into_config(PLAIN)).status == OK
    cases = {
        "wrong": (
            fake_peer("zeros", torch.zeros_like),
            "error .*allowed .*; of the first and last head at ",
        ),
        "failed": (fake_peer("broken", broken), "RuntimeError: no kernel image"),
        "missing": (fake_peer("absent", broken, "not installed"), "not installed"),
    }
    for status, (peer, reason) in cases.items():
        checked = checker.check(peer)
        assert (checked.status, checked.run) == (status, None)
        with pytest.raises(ValueError, match=reason):
            raise ValueError(checked.reason)


def test_checker_sees_nan_in_any_head() -> None:
    checked = Checker(SMALL, "cpu").check(fake_peer("spoilt", spoilt))
    assert (checked.status, "not finite" in checked.reason) == ("wrong", True)


def times_of(values: Mapping[str, float]) -> Callable[..., dict[str, Timing]]:
    """A clock: runs what it is given, and says these times."""

    def timer(runs: Mapping[str, Callable[[], object]], **_: object) -> dict[str, Timing]:
        for run in runs.values():
            run()
        return {name: Timing(values[name], values[name] / 2, values[name] * 2) for name in runs}

    return timer


def test_times_become_rates_shares_and_ratios() -> None:
    timer = times_of({"fa2": 4.0, "other": 2.0, PLAIN: 1.0})
    measure = MeasureTimes(CEILINGS, timer, lambda start: Sample(1700.0, 650.0), "cpu")
    other = Peer("other", "Other", PEERS["fa2"].make, lambda: "")
    candidates = [PEERS["fa2"], other, fake_peer("broken", broken)]
    fa2, second, failed, ours = measure(SMALL, [*candidates, parse_kernel_name_into_config(PLAIN)])
    assert [row.kind for row in (fa2, second, failed, ours)] == [PEER, PEER, PEER, KERNEL]
    assert (ours.ms, ours.ms_p20, ours.ms_p80) == (1.0, 0.5, 2.0)
    assert ours.tflops == SMALL.flop / 1e-3 / 1e12
    assert ours.share_of_ceiling == ours.tflops / 700
    assert [row.ratio_to_best_peer for row in (fa2, second, ours)] == [0.5, 1.0, 2.0]
    assert (ours.sm_clock_mhz, ours.power_w) == (1700.0, 650.0)
    assert ours.error is not None
    assert ours.tolerance is not None
    assert ours.error <= ours.tolerance
    assert (failed.status, failed.ms) == (FAILED, None)


def test_a_clock_that_fails_is_a_reason_and_no_end() -> None:
    def timer(runs: object) -> dict[str, Timing]:
        raise RuntimeError("launch failure")

    (row,) = MeasureTimes(CEILINGS, timer, lambda start: Sample(), "cpu")(SMALL, [PEERS["fa2"]])
    assert (row.status, row.ms) == (FAILED, None)
    assert "launch failure" in row.reason


def test_monitor_gives_medians_of_a_time_span() -> None:
    values = iter([Sample(1000.0, 100.0)] + [Sample(1500.0, None)] * 10_000)
    with GpuMonitor(lambda: next(values)) as monitor:
        deadline = time.monotonic() + 10
        while monitor.since(0.0).sm_clock_mhz != 1500.0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert monitor.since(0.0) == Sample(1500.0, 100.0)
        assert monitor.since(time.monotonic() + 60) == Sample(1500.0, None)  # the last


# Rows and files.

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
    assert back[1].problem == SMALL
    assert (back[2].ms, back[2].error, back[2].reason) == (None, math.inf, 'a b, "c"')


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
    ResultFile(CountRow, tmp_path / "counts.csv")
    with pytest.raises(ValueError, match=r"has columns kernel, .*ldmatrix"):
        ResultFile(TimeRow, tmp_path / "counts.csv")


# The sweep.

PROBLEMS = [replace(SMALL, seq_len=n) for n in (64, 128, 192)]
CONFIGS = [parse_kernel_name_into_config(name) for name in (PLAIN, FITTING)]
PLAN: dict[Problem, list[Candidate]] = {problem: [*CONFIGS] for problem in PROBLEMS}


class Recorder:
    """A measure that notes what it was asked, and ends as told."""

    def __init__(self, at: Problem | None = None, error: BaseException | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._at, self._error = at, error

    def __call__(self, problem: Problem, candidates: Any) -> list[TimeRow]:
        if problem == self._at and self._error:
            raise self._error
        self.asked.append((problem.seq_len, len(candidates)))
        return [time_row(c.short_form(), 1.0, problem) for c in candidates]


def run_sweep(path: Path, measure: Recorder) -> list[TimeRow]:
    results = ResultFile(TimeRow, path)
    sweep(PLAN, measure, results, lambda done, total, name: None)
    return results.rows


def test_sweep_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "forward.csv"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(path, Recorder(PROBLEMS[1], KeyboardInterrupt()))
    second = Recorder()
    rows = run_sweep(path, second)
    assert second.asked == [(128, 2), (192, 2)]
    assert [row.problem for row in rows] == [p for p in PROBLEMS for _ in CONFIGS]
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
    path = tmp_path / "forward.csv"
    with pytest.raises(GpuLostError, match="start a new process"):
        run_sweep(path, Recorder(PROBLEMS[1], GpuLostError(PLAIN, "illegal address")))
    again = Recorder()
    rows = run_sweep(path, again)
    assert again.asked == [(128, 1), (192, 2)]
    (failed,) = [row for row in rows if row.status == FAILED]
    assert (failed.kernel, failed.seq_len) == (PLAIN, 128)
    assert "illegal address" in failed.reason


@pytest.mark.parametrize("name", ["torch", "gpu", "sources", "driver_version"])
def test_a_session_refuses_another_environment(name: str, tmp_path: Path) -> None:
    stamp = {"date": "1", "gpu": "H200", "torch": "2", "sources": "a", "driver_version": "5"}

    def begin(stamp: dict[str, str], repeats: int = 3, force: bool = False) -> Session:
        return Session.open(
            tmp_path, stamp, {"repeats": repeats}, results="forward.csv", force=force
        )

    begin(stamp).add_ceilings(CEILINGS["FP16"])
    ResultFile(TimeRow, tmp_path / "forward.csv")
    assert begin(stamp | {"date": "2", "clocks.sm": "1"}).ceilings == CEILINGS
    with pytest.raises(ValueError, match=f"{name} was {stamp[name]} and is other; choose another"):
        begin(stamp | {name: "other"})
    with pytest.raises(ValueError, match="repeats was 3 and is 4"):
        begin(stamp, repeats=4)
    assert begin(stamp | {name: "other"}, force=True).ceilings == {}


# Markdown and plots, of what was measured on the H200.


def recorded_rows() -> list[TimeRow]:
    with (H200 / "tuning.csv").open() as file:
        records = list(csv.DictReader(file))
    return [
        time_row(
            "fa2" if r["kernel"] == "FA2" else r["kernel"],
            float(r["ms"]),
            Problem(
                DType.from_string(r["dtype"]),
                *(int(r["d_head"]), r["mask"]),
                *(int(r["batch"]), int(r["heads"]), int(r["seq_len"])),
            ),
            tflops=float(r["tflops"]),
            share_of_ceiling=float(r["tflops"]) / 700,
            ratio_to_best_peer=float(r["percent_of_fa2"]) / 100,
        )
        for r in records
    ]


def test_markdown_has_every_shape_and_the_best_kernel_of_each() -> None:
    rows = recorded_rows()
    failed = time_row(PLAIN, None, status=FAILED, reason="a | b")
    text = summary.times_markdown([*rows, failed], {"gpu": "NVIDIA H200", "ceilings": {}})
    assert text.count("TFLOP/s\n") == 4  # d 64 and 128, full and causal
    fastest = min(
        (r for r in rows if r.kind == KERNEL and r.problem.shape == (1, 16384, 16, 128)
         and r.mask == "full"),
        key=lambda row: row.ms or math.inf,
    )  # fmt: skip
    (line,) = [line for line in text.splitlines() if f"{fastest.ms:.4g} (" in line]
    assert line.startswith(f"| 16384 | `{fastest.kernel}` |")
    assert f"| {fastest.tflops:.1f} |" in line
    assert f"**{fastest.tflops:.1f}**" in text  # ahead of FA2
    assert f"| `{PLAIN}` | {SMALL} | failed | a \\| b |" in text


def svg_texts(path: Path) -> str:
    root = ElementTree.parse(path).getroot()
    return "\n".join("".join(e.itertext()).strip() for e in root.iter() if e.tag.endswith("}text"))


def test_plots_show_rates_peers_and_ceilings(tmp_path: Path) -> None:
    rows = recorded_rows()
    files = plots.plot_times(rows, CEILINGS, "NVIDIA H200", tmp_path)
    assert sorted(path.name for path in files) == [
        *("roofline.png", "roofline.svg", "tflops.png", "tflops.svg")
    ]
    n_kernels = len({row.kernel for row in rows if row.kind == KERNEL})
    for name in ("tflops", "roofline"):
        png = (tmp_path / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 20_000
        texts = svg_texts(tmp_path / f"{name}.svg")
        assert "NVIDIA H200" in texts
        assert "FlashAttention-2 (torch SDPA)" in texts
        assert f"flashsmith (best of {n_kernels} kernels)" in texts
    bars = svg_texts(tmp_path / "tflops.svg").splitlines()
    for panel in ("FP16, d_head 64, causal", "FP16, d_head 128, full"):
        assert panel in bars
    assert bars.count("matrix product of 8192: 700") == 4
    best = max(r.tflops or 0 for r in rows if r.kind == KERNEL)
    assert f"{best:.0f}" in bars  # the number on its bar
    roof = svg_texts(tmp_path / "roofline.svg").splitlines()
    assert {"matrix product 700 TFLOP/s", "copy 4000 GB/s", "8192", "causal"} <= set(roof)


def test_no_plot_of_nothing(tmp_path: Path) -> None:
    assert plots.plot_times([], CEILINGS, "GPU", tmp_path) == []
    assert plots.plot_counts([], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_roof_is_the_lower_of_the_two_ceilings() -> None:
    roof = CEILINGS["FP16"]
    assert [roof.at(x) for x in (10.0, 175.0, 1000.0)] == [40.0, 700.0, 700.0]


# The command.


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """The GPU's part of the command on the CPU: kernels are emulated, times are as said here."""
    times = {"fa2": 2.0, PLAIN: 4.0, FITTING: 1.0}
    monkeypatch.setattr(bench_job, "_choose_device", lambda counts: "cpu")
    monkeypatch.setattr(bench, "time_interleaved", times_of(times))
    monkeypatch.setattr(bench, "measure_ceilings", lambda dtype: CEILINGS[str(dtype)])
    monkeypatch.setattr(bench_job, "GpuMonitor", lambda: GpuMonitor(lambda: Sample(1700.0, 600.0)))
    yield times


def small_grid(out: Path, *kernels: str) -> list[object]:
    names = [part for kernel in kernels for part in ("-k", kernel)]
    grid = ["--d-heads", 64, "--masks", "full", "--tokens", 128, "--hidden", 64]
    return [*names, *grid, "--seq-lens", "64,128", "--peers", "fa2,fa4", "--out", out]


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
    monkeypatch.setattr(bench_job, "_find_plots", lambda: None)  # they take a second
    command = small_grid(tmp_path, FITTING)
    first = invoke(*command)
    assert FITTING in first.stdout
    before = (tmp_path / "forward.csv").read_bytes()
    del clock[FITTING]  # a clock that is asked fails
    assert invoke(*command).stdout == first.stdout
    assert (tmp_path / "forward.csv").read_bytes() == before
    message = invoke(*command, "--repeats", 7, code=2).stderr
    assert "repeats was 30 and is 7" in message
    assert "--force" in message
    clock[FITTING] = 3.0
    invoke(*command, "--repeats", 7, "--force")
    assert (tmp_path / "forward.csv").read_text().count(",3,1.5,6,") == 2


@pytest.mark.usefixtures("clock")
def test_a_bad_kernel_does_not_end_the_sweep(tmp_path: Path) -> None:
    """Its rows of a warp are no multiple of the mma's: it cannot be built, and the other can."""
    illegal = FITTING.replace("64, 64, 4)", "64, 64, 8)")
    result = invoke(*small_grid(tmp_path, illegal, FITTING), code=1)
    rows = ResultFile(TimeRow, tmp_path / "forward.csv").rows
    status = {(row.kernel, row.seq_len): row.status for row in rows if row.kind == KERNEL}
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

    def lose(self: Checker, candidate: Candidate) -> None:
        raise GpuLostError("fa2", "illegal address")

    monkeypatch.setattr(Checker, "check", lose)
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "flashsmith", "bench", "--force"])
    with pytest.raises(NewProcess):
        bench_job.run(
            bench_job.Request([FITTING], "fa2", "fp16", "64", "full", "64", 64, 64, 3, False),
            tmp_path,
            force=True,
            as_json=False,
        )
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
    grid = ["--d-heads", 64, "--masks", "full", "--seq-lens", 64, "--out", tmp_path]
    result = invoke("--emulator-counts", "-k", PLAIN, "-k", FITTING, *grid)
    plain, fitting = ResultFile(CountRow, tmp_path / "counts.csv").rows
    # 256 tokens, hidden 128: 8 heads; two products, each of m16n8k16.
    assert plain.mma == fitting.mma == 8 * 2 * (64 // 16) * (64 // 8) * (64 // 16)
    assert summary.bank_conflicts(fitting) == 0
    conflicts = summary.bank_conflicts(plain)
    assert conflicts is not None
    assert conflicts > 10_000  # not swizzled
    assert str(conflicts) in result.stdout
    assert f"| {conflicts} |" in (tmp_path / "counts.md").read_text()
    texts = svg_texts(tmp_path / "wavefronts.svg")
    assert PLAIN in texts
    assert "bank conflicts" in texts


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--d-heads", "80"), "--d-head is 80"),
        (("--seq-lens", "64,many"), "--seq-lens is '64,many'"),
        (("--masks", "diagonal"), "variant 'diagonal'"),
        (("--dtype", "fp8"), "dtype 'fp8'"),
        (("--peers", "fa2"), "counts kernels only"),
        (("-k", "fastest"), "kernels key 'fastest'"),
        (("-k", PLAIN, "--d-heads", "128"), "fits no shape of this grid"),
        (("-k", "(FP16, 64): eager"), "cannot be parsed"),
        (("--repeats", "0"), "--repeats"),
    ],
)
def test_wrong_options_are_named(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = invoke("--emulator-counts", *args, "--out", tmp_path / "bench", code=2)
    assert message in result.stderr
    assert not (tmp_path / "bench").exists()


def test_an_interrupted_process_resumes(tmp_path: Path) -> None:
    """By its script's name and spelling, stopped as soon as the first shape is there."""
    script = Path(__file__).parent.parent / "tools" / "benchmark" / "pt_bench.py"
    options = ["--d_heads=64", "--masks=full", "--seq_lens=64,512,576,640", "--tokens=64"]
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
    assert [row.seq_len for row in ResultFile(CountRow, path).rows] == [64, 512, 576, 640]
