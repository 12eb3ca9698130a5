"""Profiling: ncu's recorded output into tables, its failures into advice, the target it runs."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flashsmith import bench, settings
from flashsmith.bench import launch, ncu
from flashsmith.bench.grid import Problem
from flashsmith.bench.ncu import Launch, parse_raw_csv
from flashsmith.bench.peers import PEERS, Peer
from flashsmith.bench.profile import METRICS, identify, tabulate
from flashsmith.cli import app, job
from flashsmith.configs import (
    CAUSAL,
    DType,
    ForwardKernelInstance,
    get_kernel_configs,
    parse_kernel_name_into_config,
)
from flashsmith.errors import KernelNotFoundError, ProfilerError
from flashsmith.reference import reference_attention

TOOLS = Path(__file__).parent.parent / "tools" / "benchmark"
# Recorded on an H200 by ncu 2025.3.1, of which some columns and rows are left.
RECORDED = Path(__file__).parent / "data" / "ncu" / "h200_raw.csv"
PROBLEM = Problem(DType.FP16, 128, "full", 4, 16, 4096)
BEST = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
BUFFERED = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
HELD = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


def recorded() -> list[Launch]:
    return parse_raw_csv(RECORDED.read_text())


# The CSV.


def test_recorded_csv_is_read_past_what_comes_before_it() -> None:
    launches = recorded()
    assert [identify(each.kernel) for each in launches] == [
        "fa2",
        *(ForwardKernelInstance(parse_kernel_name_into_config(k)) for k in (BEST, BUFFERED, HELD)),
    ]
    metrics = launches[1].metrics
    assert metrics["gpu__time_duration.sum"] == pytest.approx(1463.904)  # ns there, us here
    assert metrics["gpc__cycles_elapsed.max"] == 2_644_469
    assert metrics["launch__registers_per_thread"] == 255
    assert "launch__cluster_scheduling_policy" not in metrics  # a word


def test_output_between_the_rows_changes_nothing() -> None:
    lines = RECORDED.read_text().splitlines()
    noisy = [part for line in lines for part in (line, '==PROF== "x": 50%', "loss 0.1", "")]
    assert parse_raw_csv("\n".join(noisy)) == recorded()


@pytest.mark.parametrize(
    ("unit", "value", "us"),
    [
        ("ns", "1,500", 1.5),
        ("us", "1.5", 1.5),
        ("ms", "2", 2e3),
        ("s", "1", 1e6),
        ("nsecond", "1500", 1.5),
        ("usecond", "2", 2),
        ("msecond", "1", 1e3),
        ("second", "3", 3e6),
    ],
)
def test_times_are_microseconds_whatever_their_unit(unit: str, value: str, us: float) -> None:
    text = f'"ID","Kernel Name","t"\n"","","{unit}"\n"0","k","{value}"\n'
    assert parse_raw_csv(text)[0].metrics["t"] == pytest.approx(us)


@pytest.mark.parametrize("cell", ["n/a", "", "(!) n/a"])
def test_a_metric_without_a_number_is_left_out(cell: str) -> None:
    text = f'"ID","Kernel Name","m"\n"","","%"\n"0","k","{cell}"\n'
    assert parse_raw_csv(text) == [Launch("k", {"ID": 0.0})]


def test_a_row_that_is_cut_off_is_refused() -> None:
    text = RECORDED.read_text()
    with pytest.raises(ValueError, match=r"line 9 has \d+ cells for 44 names"):
        parse_raw_csv(text[: text.rindex('","')] + '"')
    with pytest.raises(ValueError, match="no column 'Kernel Name'"):
        parse_raw_csv(text.replace("Kernel Name", "Function"))


def test_no_table_is_no_launches() -> None:
    assert parse_raw_csv("==WARNING== No kernels were profiled.\n") == []


# Whose kernel it is.


@pytest.mark.parametrize("with_types", [False, True])
def test_both_spellings_of_our_kernels_are_known(with_types: bool) -> None:
    for config in get_kernel_configs("all"):
        instance = ForwardKernelInstance(config, CAUSAL)
        assert identify(instance.kernel_name(with_types)) == instance


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(Params)", "fa2"),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64>>(Params)", "fa2"),
        ("void flash::flash_fwd_splitkv_combine_kernel<Traits<64>>(Params)", None),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", None),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
            "flash::CollectiveMainloopFwdSm90<2>>>>(Params)",
            "fa3",
        ),
        ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<64>>(Params)", None),
        ("flash::prepare_varlen_num_blocks_kernel(int)", None),
        (
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at",
            "fa4",
        ),
        ("triton_tem_fused_flex_attention_0", "flex"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None),
    ],
)
def test_kernels_of_peers_are_known_by_name(name: str, peer: str | None) -> None:
    assert identify(name) == peer
    assert peer is None or peer in PEERS


# The table.


def test_rows_hold_what_was_measured() -> None:
    fa2, best, buffered, _ = tabulate(recorded(), PROBLEM)
    assert (fa2.kernel, best.kernel, buffered.kernel) == ("fa2", BEST, BUFFERED)
    assert best.metrics == {
        "duration_us": 1463.904,
        "cycles": 2644469,
        "registers": 255,
        "occupancy_percent": 12.22,
        "l2_hit_percent": None,  # was not asked for then
        "bank_conflicts": 118084,
        "dram_percent": 3.68,
        "l2_percent": 25.78,
        "tensor_percent": 57.77,
        "ex2_percent": 20.48,
        "issue_percent": 39.10,
    }
    assert best.percent_of_baseline == pytest.approx(100 * 1550.24 / 1463.904)
    assert best.attn_tflops == pytest.approx(4 * 4 * 16 * 4096**2 * 128 / 1463.904e-6 / 1e12)
    flop = parse_kernel_name_into_config(BEST).total_flop(4, 16, 4096)
    assert best.tflops == pytest.approx(flop / 1463.904e-6 / 1e12)
    assert (fa2.percent_of_baseline, fa2.tflops) == (100, None)


def test_stalls_are_sorted_and_leave_out_who_issues() -> None:
    best = tabulate(recorded(), PROBLEM)[1]
    assert list(best.stalls.items())[:4] == [
        ("wait", 1.48),
        ("math_pipe_throttle", 0.85),
        ("not_selected", 0.43),
        ("dispatch", 0.39),
    ]
    assert "selected" not in best.stalls
    assert {"barrier", "short_scoreboard", "long_scoreboard", "mio_throttle"} < set(best.stalls)


def test_runs_of_a_kernel_are_averaged() -> None:
    first = recorded()[1]
    slower = {name: 3 * value for name, value in first.metrics.items()}
    (row,) = tabulate([first, replace(first, metrics=slower)], PROBLEM)
    assert row.runs == 2
    assert row.metrics["duration_us"] == pytest.approx(2 * 1463.904)
    assert row.metrics["cycles"] == 2 * 2644469
    assert row.stalls["wait"] == pytest.approx(2 * 1.48)


def test_without_fa2_the_first_kernel_is_the_baseline() -> None:
    rows = tabulate(recorded()[1:], PROBLEM)
    assert rows[0].percent_of_baseline == 100
    assert rows[1].percent_of_baseline == pytest.approx(100 * 1463.904 / 1465.696)


def test_a_causal_mask_leaves_half_of_the_operations() -> None:
    full = tabulate(recorded(), PROBLEM)[1]
    causal = tabulate(recorded(), replace(PROBLEM, mask="causal"))[1]
    assert causal.attn_tflops == pytest.approx((full.attn_tflops or 0) / 2)
    assert causal.tflops == pytest.approx((full.tflops or 0) / 2)


def test_of_two_metrics_the_one_that_the_gpu_has_counts() -> None:
    shared, all_of_lsu = METRICS["bank_conflicts"]
    launch_of = recorded()[1]
    exact = replace(launch_of, metrics=launch_of.metrics | {shared: 7.0})
    assert tabulate([exact], PROBLEM)[0].metrics["bank_conflicts"] == 7
    assert launch_of.metrics[all_of_lsu] == 118084


# Running ncu.


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an ncu that prints the given text and ends; its command lines come in a file."""

    def make(printed: str, stderr: str = "", code: int = 0) -> Path:
        program, calls = tmp_path / "ncu", tmp_path / "calls"
        (tmp_path / "printed").write_text(printed)
        (tmp_path / "stderr").write_text(stderr)
        program.write_text(
            f'#!/bin/sh\nfor word; do echo "$word" >> "{calls}"; done\n'
            f'cat "{tmp_path}/printed"; cat "{tmp_path}/stderr" >&2; exit {code}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv(settings.NCU.name, str(program))
        return calls

    return make


def test_ncu_is_found_by_setting_path_and_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(folder: str) -> Path:
        path = tmp_path / folder / "ncu"
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    monkeypatch.delenv(settings.NCU.name, raising=False)
    monkeypatch.delenv(settings.CUDA_HOME.name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(ncu, "_SYSTEM_CUDA", tmp_path / "cuda")
    monkeypatch.setattr(ncu, "_NSIGHT_COMPUTE", tmp_path / "nsight")
    with pytest.raises(ProfilerError, match=r"not found on PATH, .*cuda/bin.*install Nsight"):
        ncu.find_ncu()
    make("nsight/2024.3.2")
    newest = make("nsight/2024.10.1")
    assert ncu.find_ncu() == newest
    system = make("cuda/bin")
    assert ncu.find_ncu() == system
    home = make("home/bin")
    monkeypatch.setenv(settings.CUDA_HOME.name, str(tmp_path / "home"))
    assert ncu.find_ncu() == home
    on_path = make("path")
    assert ncu.find_ncu() == on_path
    chosen = make("chosen")
    monkeypatch.setenv(settings.NCU.name, str(chosen))
    assert ncu.find_ncu() == chosen
    monkeypatch.setenv(settings.NCU.name, str(tmp_path))
    with pytest.raises(ProfilerError, match=f"{settings.NCU.name}=.* is no program"):
        ncu.find_ncu()


def test_the_raw_report_is_kept(fake_ncu: Callable[..., Path], tmp_path: Path) -> None:
    calls = fake_ncu(RECORDED.read_text(), stderr="a remark\n")
    report = tmp_path / "new" / "raw.csv"
    launches, stderr = ncu.profile(["python", "-c", "pass"], ["m1", "m2"], report)
    assert (launches, stderr) == (recorded(), "a remark\n")
    assert report.read_text() == RECORDED.read_text()
    words = calls.read_text().splitlines()
    assert words[-3:] == ["python", "-c", "pass"]
    assert {"--csv", "--page=raw", "--clock-control=none", "--metrics=m1,m2"} < set(words)


@pytest.mark.parametrize(
    ("printed", "stderr", "code", "advice"),
    [
        (
            "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have "
            "permission to access NVIDIA GPU Performance Counters on the target device 0.\n"
            "==ERROR== The application returned an error code (1).\n",
            "Traceback",
            1,
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==ERROR== Driver resource was unavailable.\n", "", 1, "dcgmi profile --pause"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.\n", "", 1, "driver's age"),
        (
            "==PROF== Connected to process 7\n"
            "==ERROR== The application returned an error code (1).\n"
            "==WARNING== No kernels were profiled.\n",
            "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory",
            1,
            "OutOfMemoryError: CUDA out of memory\nrun it without ncu",
        ),
        (
            "==WARNING== No kernels were profiled.\n",
            "left out: x",
            0,
            "profiled no kernel.*left out: x",
        ),
        ("==ERROR== Something new.\n", "", 9, "exit code 9:\n==ERROR== Something new."),
        ("", "", 9, "it printed nothing"),
        ('"ID","Kernel Name"\n"",""\n"0"\n', "", 0, "cannot be read: line 3 has 1 cells"),
    ],
)
def test_each_failure_says_what_to_do(
    printed: str,
    stderr: str,
    code: int,
    advice: str,
    fake_ncu: Callable[..., Path],
    tmp_path: Path,
) -> None:
    fake_ncu(printed, stderr, code)
    with pytest.raises(ProfilerError, match=f"(?s){advice}.*{tmp_path}/raw.csv.*ncu --csv"):
        ncu.profile(["target"], ["m"], tmp_path / "raw.csv")


def test_a_failed_run_leaves_the_report_of_the_one_before(
    fake_ncu: Callable[..., Path], tmp_path: Path
) -> None:
    report = tmp_path / "raw.csv"
    report.write_text("old")
    fake_ncu("half", "", 9)
    with pytest.raises(ProfilerError):
        ncu.profile(["target"], ["m"], report)
    assert report.read_text() == "old"
    assert (tmp_path / "raw.csv.failed").read_text() == "half"


# What ncu runs.


def _log_peer(log: list[str], name: str, factor: float) -> Peer:
    def make(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Any:
        o = factor * reference_attention(q, k, v, causal=causal, compute=torch.float32)

        def run() -> torch.Tensor:
            log.append(name)
            return o.to(q.dtype)

        return run

    return Peer(name, name, make, lambda: "", lambda: "1.0")


def test_the_target_checks_before_and_launches_what_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setattr(launch, "_mark", lambda signal, _device: log.append(signal.__name__))
    candidates = [_log_peer(log, "right", 1.0), _log_peer(log, "wrong", 1.5)]
    left_out = launch.launch(Problem(DType.FP16, 64, "full", 1, 1, 64), candidates, 2, "cpu")
    assert log == ["right", "wrong", "start", "right", "right", "stop"]
    assert len(left_out) == 1
    assert left_out[0].startswith("wrong: error")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_target_reads_its_own_command_line(
    mask: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(problem: Problem, candidates: list[Any], n_runs: int) -> list[str]:
        seen.append((problem, candidates, n_runs))
        return ["fa2: it is missing"]

    seen: list[Any] = []
    loaded: list[Any] = []
    monkeypatch.setattr(launch, "launch", record)
    monkeypatch.setattr(launch, "load_kernels", lambda instances, device: loaded.extend(instances))
    problem = replace(PROBLEM, dtype=DType.BF16, mask=mask)
    config = parse_kernel_name_into_config(BEST.replace("FP16", "BF16"))
    command = launch.target_command(problem, [config.short_form()], ["fa2"], 3)
    assert command[:3] == [sys.executable, "-m", "flashsmith.bench.launch"]
    launch.main(command[3:])
    assert seen == [(problem, [PEERS["fa2"], config], 3)]
    assert loaded == [ForwardKernelInstance(config, problem.variant)]
    assert capsys.readouterr().err == "left out: fa2: it is missing\n"


def test_kernels_are_not_built_where_that_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(settings.CACHE_DIR.name, str(tmp_path))
    monkeypatch.setenv(settings.BUILD.name, "off")
    config = replace(parse_kernel_name_into_config(BEST), n_warps=8)  # no other test loads it
    with pytest.raises(KernelNotFoundError, match=settings.BUILD.name):
        launch.load_kernels([ForwardKernelInstance(config)], "cpu")


# The command.


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """As if there were one: kernels that the command builds are listed."""
    built: list[tuple[Any, ...]] = []
    monkeypatch.delenv(settings.KERNELS.name, raising=False)
    monkeypatch.setattr(job, "choose_device", lambda _: ("cuda", "NVIDIA H200"))
    monkeypatch.setattr(launch, "load_kernels", lambda instances, *_: built.append(instances))
    monkeypatch.setattr(bench, "environment_stamp", lambda: {"gpu": "NVIDIA H200"})
    monkeypatch.chdir(tmp_path)
    return built


def profile(*options: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["profile", *options])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_profile_prints_csv(fake_ncu: Callable[..., Path], gpu: list[Any]) -> None:
    calls = fake_ncu(RECORDED.read_text(), stderr="left out: x: it is wrong\nother\n")
    result = profile("--seq-len=2048,4096", "--d-head", "128", "--heads=8", "-k", BEST, "--csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["kernel"], row["seq_len"], row["batch"]) for row in rows] == [
        (kernel, seq_len, batch)
        for seq_len, batch in (("2048", "8"), ("4096", "4"))
        for kernel in ("fa2", BEST, BUFFERED, HELD)
    ]
    assert rows[1]["duration_us"] == "1463.904"
    assert rows[1]["heads"] == "8"
    assert rows[1]["stall_wait"] == "1.48"
    assert rows[0]["tflops"] == rows[0]["l2_hit_percent"] == ""
    raw = "profiles/ncu_fp16_d128_full_b8_h8_s2048.csv"
    assert f"ncu's raw report is {raw}" in result.stderr
    assert Path(raw).read_text() == RECORDED.read_text()
    assert "left out: x: it is wrong" in result.stderr
    assert "other" not in result.stderr
    assert gpu == [(ForwardKernelInstance(parse_kernel_name_into_config(BEST)),)]
    words = calls.read_text().splitlines()
    metrics = next(word for word in words if word.startswith("--metrics="))
    assert all(name in metrics for names in METRICS.values() for name in names)
    assert words[words.index("--peers") + 1 :][:3] == ["fa2", "--kernels", BEST]


def test_profile_prints_a_table_and_json(fake_ncu: Callable[..., Path], gpu: list[Any]) -> None:
    fake_ncu(RECORDED.read_text())
    options = ("--kernels", BEST, "--peers", "none", "--runs", "2", "--out", "reports")
    table = profile(*options).stdout
    assert "wait 1.48, math_pipe_throttle 0.85" in next(x for x in table.splitlines() if BEST in x)
    document = json.loads(profile(*options, "--json").stdout)
    assert document["environment"] == {"gpu": "NVIDIA H200"}
    assert document["kernels"][1]["percent_of_baseline"] == 105.9
    assert document["kernels"][1]["stall_wait"] == 1.48
    assert len(list(Path("reports").iterdir())) == 1


def test_profile_takes_its_kernels_from_the_environment(
    fake_ncu: Callable[..., Path], gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ncu(RECORDED.read_text())
    monkeypatch.setenv(settings.KERNELS.name, "tune")
    result = profile("--seq-len", "1024", "--mask", "causal")
    assert [len(instances) for instances in gpu] == [40, 40]  # FP16 and BF16, apart
    assert {i.config.dtype for i in gpu[0]} == {DType.FP16}
    assert {i.variant for instances in gpu for i in instances} == {CAUSAL}
    assert "[2/2] BF16 d 128 causal 16 x 16 x 1024: 40 kernels" in result.stderr


def test_what_was_measured_before_a_failure_is_printed(
    fake_ncu: Callable[..., Path], gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_2048(target: list[str], *_: Any) -> Any:
        if "2048" in target:
            raise ProfilerError("no more")
        return recorded(), ""

    fake_ncu("")
    monkeypatch.setattr(ncu, "profile", fail_at_2048)
    result = profile("--seq-len", "1024,2048", "-k", BEST, "--csv", code=1)
    assert {row["seq_len"] for row in csv.DictReader(io.StringIO(result.stdout))} == {"1024"}
    assert result.stderr.endswith("error: no more\n")


def test_launches_that_nobody_knows_are_named(
    fake_ncu: Callable[..., Path], gpu: list[Any]
) -> None:
    fake_ncu('"ID","Kernel Name"\n"",""\n"0","void gemm()"\n')
    assert "void gemm()" in profile("-k", BEST, code=1).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seq-len", "1024,"), "--seq-len is '1024,'"),
        (("--seq-len", "0"), "whole numbers above 0"),
        (("--seq-len", "1000"), "multiple of B_r"),
        (("--d-head", "80"), "supported are 64, 96, 128"),
        (("--d-head", "64", "-k", BEST), "d_head 64"),
        (("--hidden", "100"), "no multiple of d_head"),
        (("-k", f"{BEST} causal"), "add --mask causal"),
        (("-k", "best"), "kernels key 'best' is not known"),
        (("--peers", "fa9"), "supported: fa2, cudnn"),
        (("--csv", "--json"), "choose one"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], message: str, fake_ncu: Callable[..., Path], gpu: list[Any]
) -> None:
    calls = fake_ncu(RECORDED.read_text())
    result = profile(*options, code=2)
    assert message in result.stderr
    assert result.stdout == ""
    assert not calls.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_profile_without_a_gpu_says_so(fake_ncu: Callable[..., Path]) -> None:
    fake_ncu("")
    assert "profiling needs an NVIDIA GPU" in profile("-k", BEST, code=1).stderr


# The scripts, as they are called by name.


def test_autotune_script_profiles_the_tuning_space(tmp_path: Path) -> None:
    tools = tmp_path / "tools" / "benchmark"
    tools.mkdir(parents=True)
    script = tools / "benchmark_autotune.sh"
    script.write_bytes((TOOLS / "benchmark_autotune.sh").read_bytes())
    script.chmod((TOOLS / "benchmark_autotune.sh").stat().st_mode)
    (tools / "ncu_bench.py").write_text('#!/bin/sh\necho "$KERNELS $*"\n')
    (tools / "ncu_bench.py").chmod(0o755)
    lengths = {(): "1024,2048,4096,8192,16384", ("512,1024",): "512,1024"}
    for arguments, seq_lens in lengths.items():
        subprocess.run([script, *arguments], check=True, cwd="/")
        written = (tmp_path / "profiles" / "autotune.csv").read_text()
        assert written == f"tune --seq_lens={seq_lens} --d_heads=128 --runs=1 --csv\n"


def test_script_is_the_command(tmp_path: Path) -> None:
    script = TOOLS / "ncu_bench.py"
    assert script.stat().st_mode & 0o111
    done = subprocess.run(
        [sys.executable, script, *shlex.split("--seq_lens=12x --d_heads=128 --runs=1 --csv")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --seq-len is '12x'")
