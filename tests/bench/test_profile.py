"""`flashsmith profile`: the program that ncu runs, the command, and the scripts."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flashsmith import settings
from flashsmith.cli import app
from flashsmith.configs import (
    CAUSAL,
    DType,
    KernelId,
    parse_kernel_name_into_config,
)
from flashsmith.errors import KernelNotFoundError, ProfilerError
from flashsmith.lab.bench import launch, ncu, stamp
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS
from flashsmith.lab.bench.peers import PEERS, Peer
from flashsmith.lab.bench.profile import METRICS
from flashsmith.lab.commands import profile as lab_profile
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.reference import reference_attention
from support.bench import play_peers
from support.caches import kernel_free_cache
from support.ncu import BEST, BUFFERED, HELD, RECORDED, TOOLS, WORKLOAD, recorded
from support.workloads import changed, square

# ---- the program that ncu runs ----

SILENT = Reporter(lambda _: None, lambda: nullcontext(lambda *_: None))


def _log_peer(log: list[str], name: str, factor: float) -> Peer:
    def make(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Any:
        o = factor * reference_attention(q, k, v, causal=causal, compute=torch.float32)

        def run() -> torch.Tensor:
            log.append(name)
            return o.to(q.dtype)

        return run

    return Peer(name, name, name, "", make, lambda: "", lambda: "1.0")


def test_the_target_checks_before_and_launches_what_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextmanager
    def watched(_device: str) -> Iterator[None]:
        log.append("start")
        yield
        log.append("stop")

    monkeypatch.setattr(launch, "watched", watched)
    play_peers(monkeypatch, _log_peer(log, "right", 1.0), _log_peer(log, "wrong", 1.5))
    workload = square(DType.FP16, 64, "full", 1, 1, 64)
    left_out = launch.launch(Case(FORWARD_KERNELS, workload, ("right", "wrong")), 2, "cpu")
    assert log == ["right", "wrong", "start", "right", "right", "stop"]
    assert len(left_out) == 1
    assert left_out[0].startswith("wrong: error")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_target_reads_its_own_command_line(
    mask: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(case: Case, n_runs: int) -> list[str]:
        seen.append((case, n_runs))
        return ["fa2: it is missing"]

    seen: list[Any] = []
    loaded: list[Any] = []
    monkeypatch.setattr(launch, "launch", record)
    monkeypatch.setattr(launch, "target_of", lambda _: None)
    monkeypatch.setattr(launch, "load_kernels", lambda instances, _: loaded.extend(instances))
    workload = changed(WORKLOAD, dtype=DType.BF16, mask=mask, heads_kv=2, seq_len_k=8192)
    config = parse_kernel_name_into_config(BEST.replace("FP16", "BF16"))
    command = launch.target_command(workload, [config.short_form()], ["fa2"], 3)
    assert command[:3] == [sys.executable, "-m", "flashsmith.lab.bench.launch"]
    launch.main(command[3:])
    assert seen == [(Case(FORWARD_KERNELS, workload, ("fa2", str(config))), 3)]
    assert loaded == [KernelId(config, workload.variant)]
    assert capsys.readouterr().err == "left out: fa2: it is missing\n"


def test_kernels_are_not_built_where_that_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(settings.CACHE_DIR.name, str(kernel_free_cache(tmp_path / "cache").root))
    monkeypatch.setenv(settings.BUILD.name, "off")
    config = replace(parse_kernel_name_into_config(BEST), n_warps=8)  # no other test loads it
    with pytest.raises(KernelNotFoundError, match=settings.BUILD.name):
        lab_profile.load({WORKLOAD: [KernelId(config)]}, "cpu", SILENT)


# ---- the command ----


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """Pretends that there is a GPU; returns the list of kernels that the command builds."""
    built: list[tuple[Any, ...]] = []
    monkeypatch.delenv(settings.KERNELS.name, raising=False)
    monkeypatch.setattr(lab_profile, "choose_device", lambda _: ("cuda", "NVIDIA H200"))
    monkeypatch.setattr(lab_profile, "load", lambda plan, *_: built.extend(plan.values()))
    monkeypatch.setattr(stamp, "environment_stamp", lambda: {"gpu": "NVIDIA H200"})
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
    assert gpu == [[KernelId(parse_kernel_name_into_config(BEST))]] * 2
    words = calls.read_text().splitlines()
    metrics = next(word for word in words if word.startswith("--metrics="))
    assert all(name in metrics for names in METRICS.values() for name in names)
    assert words[words.index("--peers") + 1 :][:3] == ["fa2", "--kernels", BEST]


def test_profile_prints_a_table_and_json(fake_ncu: Callable[..., Path], gpu: list[Any]) -> None:
    fake_ncu(RECORDED.read_text())
    options = ("--kernels", BEST, "--peers", "none", "--repeats", "2", "--out", "reports")
    table = profile(*options).stdout
    assert "wait 1.48, math_pipe_throttle 0.85" in next(x for x in table.splitlines() if BEST in x)
    document = json.loads(profile(*options, "--json").stdout)
    assert document["environment"] == {"gpu": "NVIDIA H200"}
    assert document["kernels"][1]["percent_of_baseline"] == 105.9
    assert document["kernels"][1]["stall_wait"] == 1.48
    assert len(list(Path("reports").iterdir())) == 1


def test_available_peers_are_those_that_are_here(
    fake_ncu: Callable[..., Path], gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_ncu(RECORDED.read_text())
    for name, peer in PEERS.items():
        why = "" if name == "cudnn" else "not installed"
        monkeypatch.setitem(PEERS, name, replace(peer, why_missing=lambda why=why: why))
    profile("-k", BEST, "--peers", "available")
    words = calls.read_text().splitlines()
    assert words[words.index("--peers") + 1 :][:2] == ["cudnn", "--kernels"]


def test_profile_takes_its_kernels_from_the_environment(
    fake_ncu: Callable[..., Path], gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ncu(RECORDED.read_text())
    monkeypatch.setenv(settings.KERNELS.name, "tune")
    result = profile("--seq-len", "1024", "--mask", "causal")
    assert [len(instances) for instances in gpu] == [40, 40]  # FP16 and BF16 are built apart
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


# ---- the scripts, by their names ----


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
