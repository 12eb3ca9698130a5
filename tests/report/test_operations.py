"""The report of kernels of the backward and of decode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flashsmith import settings
from flashsmith.cli import app
from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.jit import KernelResources, find_cuda_toolkit
from flashsmith.lab.report import Report, collect, document_of, make_report, read_results
from flashsmith.lab.report.page import render
from flashsmith.lab.report.sass import parse_sass
from support.paths import RESULTS
from support.report import PLAIN, SASS, Page, no_progress, text_of

BACKWARD = parse_kernel_name_into_instance("(FP16, 64, 64, 64, 4): backward+stages_1")
SUMS = parse_kernel_name_into_instance("(FP16, 64, 64, 64, 4): backward+sums+stages_1")
DECODE = parse_kernel_name_into_instance("(FP16, 64, 16, 32, 4): decode+stages_2+blocks_1")
KERNELS = (BACKWARD, SUMS, DECODE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the times of two backward kernels, and of a forward kernel beside a peer, at equal
    lengths."""
    folder = tmp_path_factory.mktemp("results")
    head = "kernel,dtype,d_head,mask,batch,heads,seq_len,ms,tflops\n"
    shape = "FP16,64,full,4,16,4096"
    (folder / "environment.json").write_text(
        json.dumps({"gpu": "NVIDIA H200", "clocks.sm": "1000 MHz"})
    )
    (folder / "backward.csv").write_text(
        f'{head}"{BACKWARD}",{shape},3.5,100\n"{SUMS}",{shape},2.5,140\ncuDNN,{shape},2,175\n'
    )
    forward = str(PLAIN).replace("128", "64", 1)
    (folder / "forward.csv").write_text(f'{head}"{forward}",{shape},1.5,90\nFA2,{shape},1,135\n')
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.NVCC.name, "/nowhere/nvcc")
        patch.setattr(collect._Collector, "_build", lambda *_: find_cuda_toolkit())
        return make_report(KERNELS, read_results(folder), "sm_90a", no_progress)


def test_each_class_has_a_group_of_its_own(report: Report) -> None:
    assert [group.title.rpartition(", ")[2] for group in report.groups] == [
        "backward of the sm80 family", "sums backward of the sm80 family",
        "decode of the sm80 family",
    ]  # fmt: skip
    assert set(report.missing) == {"registers and machine code", "roofline"}


def test_what_is_computed_tiles_and_counts_are_on_the_page(report: Report) -> None:
    html = render(report)
    text = text_of(html)
    assert Page(html).open == []
    for words in (
        "Blocks of queries accumulate dQ, blocks of keys dK and dV.",  # how it works
        "Tiles of the visited side",  # a field
        "visited rows", "statistics", "rings",  # shared memory
        "one head, 128 rows of Q, 128 of K and V", "one head, 16 rows of Q, 128 of K and V",
    ):  # fmt: skip
        assert words in text
    assert text.count("Bank conflicts, before and after") == 3
    for group in report.groups:
        (kernel,) = group.kernels
        assert kernel.counts
        assert kernel.counts.whole["mma"] > 0


def test_times_are_those_of_the_operation(report: Report) -> None:
    plain, sums, decode = report.groups
    assert plain.kernels[0].time and plain.kernels[0].time.ms == 3.5
    assert [peer.name for peer in plain.peers] == [peer.name for peer in sums.peers] == ["cuDNN"]
    assert set(plain.series) == {"cuDNN", "flashsmith sm80, best"}
    assert [round(ratio, 2) for _, ratio in plain.faster] == [1.4]  # the sums are faster
    assert decode.run == [] and decode.series == {}
    visits, cycles = 4 * 16 * 64 * 64, 132 * 1e6  # of an SM, of all in a millisecond
    assert plain.kernels[0].busy_ms == {
        "shared memory": pytest.approx((visits * 2436 + 4 * 16 * 64 * 640) / cycles),
        "tensor cores": pytest.approx(visits * 7 * 64**3 / 2048 / cycles),
        "exponentials": pytest.approx(visits * 64**2 / 16 / cycles),
        "L2 cache": pytest.approx((visits * 33280 + 4 * 16 * 64 * 49152) / 5120e6),
    }
    assert decode.kernels[0].busy_ms == {}  # nobody measured it
    document = document_of(report)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [each["operation"] for each in document["groups"]] == ["backward", "backward", "decode"]


def test_every_function_of_a_call_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function with most registers comes first, because it is the kernel's machine code."""
    used = KernelResources("_ZN10flashsmith4sm807no_loopI1aEEvT_", "sm_90a", 32, 0, 0, 0, 0, 0)
    listed = [
        used,
        replace(used, function="_ZN10flashsmith4sm806kernelI1aEEvT_", registers=168),
    ]
    module = SimpleNamespace(resources=listed)
    code = parse_sass(SASS)
    monkeypatch.setattr(collect._Collector, "_build", lambda *_: {BACKWARD: module})
    monkeypatch.setattr(
        collect,
        "read_machine_code",
        lambda *_: {
            listed[0].function: code["no_loop"],
            listed[1].function: code["kernel"],
        },
    )
    report = make_report([BACKWARD], read_results(folder), "sm_90a", no_progress)
    (kernel,) = report.groups[0].kernels
    assert [(each.name, each.registers) for each in kernel.functions] == [
        ("kernel", 168), ("no_loop", 32),
    ]  # fmt: skip
    assert kernel.resources and kernel.resources.registers == 168
    assert kernel.code == code["kernel"]
    text = text_of(render(report))
    assert "The functions of a call" in text and "Machine code of kernel" in text


@pytest.mark.parametrize("name", [SUMS.name, DECODE.name])
def test_the_command_takes_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._Collector, "_cuda_modules", lambda *_: {})
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", name, "--results", str(RESULTS), "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = text_of(out.read_text())
    assert "Shared memory" in text and "has none of these kernels" in text
