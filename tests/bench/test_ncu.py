"""Profiling: recorded output of ncu becomes tables, and its failures become advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith import settings
from flashsmith.configs import (
    CAUSAL,
    KernelId,
    get_kernel_configs,
    parse_kernel_name_into_config,
)
from flashsmith.errors import ProfilerError
from flashsmith.lab.bench import ncu
from flashsmith.lab.bench.ncu import ProfiledLaunch, parse_raw_csv
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.profile import METRICS, identify, tabulate
from support.ncu import BEST, BUFFERED, HELD, RECORDED, WORKLOAD, recorded
from support.workloads import changed

# ---- the CSV ----


def test_recorded_csv_is_read_past_what_comes_before_it() -> None:
    launches = recorded()
    assert [identify(each.kernel) for each in launches] == [
        "fa2",
        *(KernelId(parse_kernel_name_into_config(k)) for k in (BEST, BUFFERED, HELD)),
    ]
    metrics = launches[1].metrics
    assert metrics["gpu__time_duration.sum"] == pytest.approx(1463.904)  # ncu prints ns
    assert metrics["gpc__cycles_elapsed.max"] == 2_644_469
    assert metrics["launch__registers_per_thread"] == 255
    assert "launch__cluster_scheduling_policy" not in metrics  # its value is a word


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
    assert parse_raw_csv(text) == [ProfiledLaunch("k", {"ID": 0.0})]


def test_a_row_that_is_cut_off_is_refused() -> None:
    text = RECORDED.read_text()
    with pytest.raises(ValueError, match=r"line 9 has \d+ cells for 44 names"):
        parse_raw_csv(text[: text.rindex('","')] + '"')
    with pytest.raises(ValueError, match="no column 'Kernel Name'"):
        parse_raw_csv(text.replace("Kernel Name", "Function"))


def test_no_table_is_no_launches() -> None:
    assert parse_raw_csv("==WARNING== No kernels were profiled.\n") == []


# ---- whose kernel it is ----


@pytest.mark.parametrize("with_types", [False, True])
def test_both_spellings_of_our_kernels_are_known(with_types: bool) -> None:
    for config in get_kernel_configs("all"):
        instance = KernelId(config, CAUSAL)
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


# ---- the table ----


def test_rows_hold_what_was_measured() -> None:
    fa2, best, buffered, _ = tabulate(recorded(), WORKLOAD)
    assert (fa2.kernel, best.kernel, buffered.kernel) == ("fa2", BEST, BUFFERED)
    assert best.metrics == {
        "duration_us": 1463.904,
        "cycles": 2644469,
        "registers": 255,
        "occupancy_percent": 12.22,
        "l2_hit_percent": None,  # the recorded run did not collect it
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
    best = tabulate(recorded(), WORKLOAD)[1]
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
    (row,) = tabulate([first, replace(first, metrics=slower)], WORKLOAD)
    assert row.runs == 2
    assert row.metrics["duration_us"] == pytest.approx(2 * 1463.904)
    assert row.metrics["cycles"] == 2 * 2644469
    assert row.stalls["wait"] == pytest.approx(2 * 1.48)


def test_without_fa2_the_first_kernel_is_the_baseline() -> None:
    rows = tabulate(recorded()[1:], WORKLOAD)
    assert rows[0].percent_of_baseline == 100
    assert rows[1].percent_of_baseline == pytest.approx(100 * 1463.904 / 1465.696)


def test_a_causal_mask_leaves_half_of_the_operations() -> None:
    full = tabulate(recorded(), WORKLOAD)[1]
    causal = tabulate(recorded(), changed(WORKLOAD, mask="causal"))[1]
    assert causal.attn_tflops == pytest.approx((full.attn_tflops or 0) / 2)
    assert causal.tflops == pytest.approx((full.tflops or 0) / 2)


def test_of_two_metrics_the_one_that_the_gpu_has_counts() -> None:
    shared, all_of_lsu = METRICS["bank_conflicts"]
    launch_of = recorded()[1]
    exact = replace(launch_of, metrics=launch_of.metrics | {shared: 7.0})
    assert tabulate([exact], WORKLOAD)[0].metrics["bank_conflicts"] == 7
    assert launch_of.metrics[all_of_lsu] == 118084


# ---- running ncu ----


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
