"""Measured times, read from files, found in folders, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashsmith.configs import DType, KernelId
from flashsmith.lab.report import Results, find_results, read_results
from flashsmith.lab.report.comparison import best_at, best_run, best_sweep, faster_families
from flashsmith.lab.report.results import BASELINE, Time
from support.paths import RESULTS
from support.report import LAST_SM90, LAST_SM90_CAUSAL, PLAIN, SWIZZLED
from support.workloads import changed, square

FP16_128 = ("FP16", 128, "full")


def lengths_of(times: list[Time]) -> list[int]:
    return sorted({time.workload.problem.seq_len_k for time in times})


def test_best_run_is_one_run_with_most_kernels() -> None:
    results = read_results(RESULTS)
    run = best_run(results.times, FP16_128, [PLAIN, SWIZZLED])
    assert {time.run for time in run} == {"progression.csv"} and lengths_of(run) == [4096]
    assert BASELINE in {time.candidate for time in run}
    assert best_run(results.times, FP16_128, [PLAIN], seq_len=512) == []
    sweep = best_sweep(results.times, ("FP16", 64, "causal"), [])
    assert lengths_of(sweep) == [512, 1024, 2048, 4096, 8192, 16384]
    assert best_sweep(results.times, ("FP16", 80, "full"), []) == []


def test_sweep_is_of_the_family_of_the_kernels() -> None:
    results = read_results(RESULTS)
    for instance in (PLAIN, LAST_SM90):
        sweep = best_sweep(results.times, ("BF16", 128, "full"), [instance])
        ours = [t.candidate for t in sweep if isinstance(t.candidate, KernelId)]
        assert {each.config.family for each in ours} == {instance.config.family}


def test_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder"):
        read_results(tmp_path / "none")
    with pytest.raises(ValueError, match="no CSV file has the columns"):
        read_results(tmp_path)
    with pytest.raises(ValueError, match=r"--gpu is 'A100'.*NVIDIA H200"):
        read_results(RESULTS, "A100")
    assert read_results(RESULTS, "h200").gpu == "NVIDIA H200"
    (tmp_path / "bad.csv").write_text(
        "kernel,dtype,d_head,mask,batch,heads,seq_len,ms,tflops\nFA2,FP16,x,full,1,1,1,1,1\n"
    )
    with pytest.raises(ValueError, match=r"bad\.csv, line 2"):
        read_results(tmp_path)


GOOD = "kernel,dtype,d_head,mask,batch,heads,seq_len,ms,tflops\nFA2,FP16,64,full,1,1,1,1,1\n"


@pytest.mark.parametrize(
    "damaged",
    [
        GOOD.encode() + b"\xe9",
        b"\xff" + GOOD.encode(),
        GOOD.replace("1,1\n", "nan,1\n").encode(),
        GOOD.replace("1,1\n", "0,1\n").encode(),
        GOOD.replace("1,1\n", "1,-1\n").encode(),
        GOOD.replace("FA2", "x" * 200_000).encode(),
        GOOD.replace("ms,tflops", "ms,tflops,duration_us,cycles").encode()
        + b"FA2,FP16"
        + b",1" * 19,
    ],
    ids=range(7),
)
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    assert len(read_results(tmp_path).times) == 1
    (tmp_path / "odd.csv").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"odd\.csv"):
        read_results(tmp_path)


@pytest.mark.parametrize("damaged", [b"\xff{}", b"{", b"[" * 100_000, b"\0"])
def test_a_damaged_environment_is_named(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "environment.json").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"environment\.json cannot be read"):
        read_results(tmp_path)


def test_results_with_gaps_and_clocks(tmp_path: Path) -> None:
    """`flashsmith bench` writes no time for what failed, and a clock for what ran."""
    (tmp_path / "times.csv").write_text(
        "kernel,kind,dtype,d_head,mask,batch,heads,seq_len,status,ms,tflops,sm_clock_mhz\n"
        f'"{PLAIN}",kernel,FP16,128,full,4,16,4096,ok,10.0,55.0,1700\n'
        "cudnn,peer,FP16,128,full,4,16,4096,ok,1.0,550,1710\n"
        "fa4,peer,FP16,128,full,4,16,4096,missing,,,\n"
    )
    (tmp_path / "environment.json").write_text(
        json.dumps({"gpu": "NVIDIA H200", "ceilings": {"FP16": {"matmul_tflops": 700}}})
    )
    results = read_results(tmp_path)
    assert [(t.name, t.sm_clock_mhz) for t in results.times] == [
        (PLAIN.name, 1700.0),
        ("cuDNN", 1710.0),
    ]
    assert results.ceiling("FP16", "times.csv") == {"matmul_tflops": 700.0}
    assert results.ceiling("BF16", "times.csv") is None


def test_a_stamp_beside_a_file_counts_where_there_is_none_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "good_environment.json").write_text(json.dumps({"gpu": "NVIDIA H200"}))
    assert read_results(tmp_path).gpu == "NVIDIA H200"
    (tmp_path / "environment.json").write_text(json.dumps({"gpu": "NVIDIA A100"}))
    assert read_results(tmp_path).gpu == "NVIDIA A100"


def test_newest_results_are_found(tmp_path: Path) -> None:
    for gpu, date in (("h200", "2026-01-02"), ("h200", "2026-01-10"), ("a100", "2026-02-01")):
        (tmp_path / gpu / date).mkdir(parents=True)
        stamp = json.dumps({"gpu": f"NVIDIA {gpu.upper()}"})
        (tmp_path / gpu / date / "environment.json").write_text(stamp)
    assert find_results(roots=[tmp_path]) == tmp_path / "a100" / "2026-02-01"
    assert find_results("NVIDIA H200", [tmp_path]) == tmp_path / "h200" / "2026-01-10"
    assert find_results("B200", [tmp_path]) is None


def test_the_progression_of_the_sm90_family_is_read() -> None:
    results = read_results(RESULTS)
    run = best_run(results.times, ("BF16", 128, "full"), [LAST_SM90, LAST_SM90_CAUSAL])
    assert {time.run for time in run} == {"sm90-bf16/sm90_progression.csv"}
    assert len([time for time in run if isinstance(time.candidate, str)]) == 4
    # The clock in the file belongs to another second than the time.
    assert {time.sm_clock_mhz for time in run} == {None}
    assert results.registers[str(LAST_SM90), "sm_90a"]["registers"] == 168


def test_rates_are_those_of_the_run() -> None:
    results = read_results(RESULTS)
    for session, tflops in (("forward-bf16", 700.6), ("sm90-bf16", 686.0)):
        rates = results.ceiling("BF16", f"{session}/forward.csv")
        assert rates
        assert rates["matmul_tflops"] == pytest.approx(tflops, abs=0.05)


def test_the_faster_family_of_another_run_is_found() -> None:
    results = read_results(RESULTS)
    sweep = best_sweep(results.times, ("BF16", 128, "full"), [PLAIN])
    faster = faster_families(results.times, sweep)
    assert lengths_of(faster) == [512, 1024, 2048, 4096, 8192, 16384] and len(faster) == 6
    for time in faster:
        assert isinstance(time.candidate, KernelId)
        assert time.candidate.config.family == LAST_SM90.config.family
        there = [t for t in sweep if t.workload == time.workload]
        slower = [t for t in there if not isinstance(t.candidate, str)]
        assert time.ms < min(t.ms for t in slower)
    # The kernels' own family is faster there, so nothing is reported.
    sweep = best_sweep(results.times, ("BF16", 128, "full"), [LAST_SM90])
    assert faster_families(results.times, sweep) == []


@pytest.mark.parametrize(("other_ms", "found"), [(2.0, True), (3.5, False)])
def test_a_faster_family_is_faster_than_our_own_and_not_than_peers(
    other_ms: float, found: bool
) -> None:
    workload = square(DType.BF16, 128, "full", batch=4, heads=16, seq_len=4096)
    for peer_ms in (1.0, 4.0):
        sweep = [Time("a", "FA2", workload, peer_ms, 1.0), Time("a", PLAIN, workload, 3.0, 1.0)]
        other = Time("b", LAST_SM90, workload, other_ms, 1.0)
        assert faster_families([*sweep, other], sweep) == ([other] if found else [])


def test_best_kernels_at_a_shape() -> None:
    """The best kernel of the family and dtype is listed, and a faster one of another family."""
    results = read_results(RESULTS)
    sm80, sm90 = PLAIN.config.family, LAST_SM90.config.family

    def families(dtype: str, family: str) -> list[tuple[str, str]]:
        workload = square(DType[dtype], 128, "full", batch=4, heads=16, seq_len=4096)
        best = best_at(results.times, workload, family)
        assert all(changed(time.workload, dtype=dtype) == workload for time in best)
        assert [time.ms for time in best] == sorted((t.ms for t in best), reverse=True)
        return [
            (time.workload.kind[0], time.candidate.config.family)
            for time in best
            if isinstance(time.candidate, KernelId)
        ]

    assert families("FP16", sm80) == [("FP16", sm80), ("BF16", sm90)]
    assert families("BF16", sm80) == families("BF16", sm90) == [("BF16", sm90)]
    assert best_at([], square(DType.FP16, 128, "full", 1, 1, 64), sm80) == []


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    for root, gpu in (("first", "A100"), ("second", "H200")):
        (tmp_path / root / "gpu" / "2026-01-01").mkdir(parents=True)
        stamp = tmp_path / root / "gpu" / "2026-01-01" / "environment.json"
        stamp.write_text(json.dumps({"gpu": f"NVIDIA {gpu}"}))
    roots = [tmp_path / "none", tmp_path / "first", tmp_path / "second"]
    assert find_results(roots=roots) == tmp_path / "first" / "gpu" / "2026-01-01"
    assert find_results("H200", roots) == tmp_path / "second" / "gpu" / "2026-01-01"


def test_results_are_found_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_results()
    assert found is not None
    assert found.is_absolute()
    assert isinstance(read_results(found), Results)
