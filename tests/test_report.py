"""`flashsmith report`: its figures against hand calculation, the emulator and the compiler; its
page parsed, and in a browser."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flashsmith import settings
from flashsmith.build import Target, build_library, find_cuda_toolkit, find_cxx
from flashsmith.build.disassembler import find_cuobjdump
from flashsmith.cli import app
from flashsmith.configs import (
    CAUSAL,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    get_gpu_architecture,
    get_hopper_kernel_progression_configs,
    get_kernel_progression_configs,
)
from flashsmith.errors import ToolchainError
from flashsmith.report import Report, Results, collect, make_report, read_results, render
from flashsmith.report.banks import bank_map
from flashsmith.report.budget import UNITS, busy_ms, find_machine
from flashsmith.report.counts import count, load_emulated, mma_per_visit, n_visits
from flashsmith.report.measured import BASELINE, best_run, best_sweep, find_results
from flashsmith.report.model import Step
from flashsmith.report.occupancy import compute_occupancy
from flashsmith.report.sass import CLASSES, parse_sass, read_machine_code

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "2026-11-21"
PLAIN, SWIZZLED = (ForwardKernelInstance(config) for config in get_kernel_progression_configs()[:2])


def no_progress(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared", "blocks", "limits"),
    [
        ("sm_90a", 255, 128, 49152, 2, ["registers"]),
        ("sm_90a", 168, 128, 49152, 3, ["registers"]),
        ("sm_90a", 169, 128, 49152, 2, ["registers"]),  # units of 256: 169 count as 176
        ("sm_80", 128, 128, 49152, 3, ["shared memory"]),  # 164 KiB / 49 KiB
        ("sm_86", 32, 128, 0, 12, ["threads"]),
        ("sm_80", 32, 256, 0, 8, ["registers", "threads"]),
        ("sm_80", 16, 32, 0, 32, ["block slots"]),
        ("sm_80", 255, 288, 0, 0, ["registers"]),  # 9 warps are checked as if they were 12
        ("sm_90a", 255, 256, 65536, 1, ["registers"]),
        ("sm_80", 32, 32, 163 * 1024, 1, ["shared memory"]),  # with the driver's 1 KiB just all
        ("sm_80", 40, 96, 0, 16, ["registers"]),
    ],
)
def test_occupancy(
    arch: str, registers: int, threads: int, shared: int, blocks: int, limits: list[str]
) -> None:
    occupancy = compute_occupancy(arch, registers, threads, shared)
    assert (occupancy.blocks, occupancy.limits) == (blocks, limits)
    assert occupancy.warps == blocks * -(-threads // 32)


_NVIDIA_OCCUPANCY = """
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, max_threads, registers, threads;
  long shared, shared_per_sm;
  while (std::scanf("%d %d %d %ld %d %d %ld", &major, &minor, &max_threads, &shared_per_sm,
                    &registers, &threads, &shared) == 7) {
    cudaOccDeviceProp device{};
    device.computeMajor = major, device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = max_threads;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.warpSize = 32;
    device.sharedMemPerMultiprocessor = shared_per_sm, device.sharedMemPerBlock = 49152;
    device.sharedMemPerBlockOptin = shared_per_sm - 1024, device.reservedSharedMemPerBlock = 1024;
    device.numSms = 100;
    cudaOccFuncAttributes kernel{};
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers;
    kernel.maxDynamicSharedSizeBytes = shared;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    cudaOccDeviceState state{};
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result{};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared))
      return 1;
    std::printf("%d\\n", result.activeBlocksPerMultiprocessor);
  }
}
"""


def test_occupancy_agrees_with_nvidia(tmp_path: Path) -> None:
    """Over a grid of kernels, with the calculator that the CUDA toolkit has as a C++ header."""
    try:
        include = find_cuda_toolkit().include
    except ToolchainError as error:
        pytest.skip(str(error))
    if not (include / "cuda_occupancy.h").is_file():
        pytest.skip(f"{include} has no cuda_occupancy.h")
    (tmp_path / "main.cpp").write_text(_NVIDIA_OCCUPANCY)
    program = str(tmp_path / "main")
    compiler = str(find_cxx().path)
    subprocess.run(
        [compiler, "-w", f"-I{include}", "-o", program, str(tmp_path / "main.cpp")], check=True
    )
    lines, ours = [], []
    grid = product(
        ("sm_80", "sm_86", "sm_89", "sm_90"),
        (16, 40, 64, 96, 128, 160, 168, 169, 200, 255),
        (32, 96, 128, 256, 288, 1024),
        (0, 1, 16384, 32768, 49152, 65536, 98304),
    )
    for arch, registers, threads, shared in grid:
        gpu = get_gpu_architecture(arch)
        occupancy = compute_occupancy(arch, registers, threads, shared)
        ours.append(occupancy.blocks)
        numbers = (
            *gpu.compute_capability, occupancy.max_warps * 32, gpu.shared_memory_per_sm_bytes,
            registers, threads, shared,
        )  # fmt: skip
        lines.append(" ".join(map(str, numbers)))
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = list(map(int, done.stdout.split()))
    differing = [case for case in zip(lines, ours, theirs, strict=True) if case[1] != case[2]]
    assert differing == []


def test_occupancy_refuses() -> None:
    with pytest.raises(ValueError, match="sm_75"):
        compute_occupancy("sm_75", 32, 128, 0)
    with pytest.raises(ValueError, match="registers is 0"):
        compute_occupancy("sm_80", 0, 128, 0)


@pytest.fixture(scope="module")
def report() -> Report:
    """Two kernels without nvcc, as on most laptops; times of the H200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.NVCC.name, "/nowhere/nvcc")
        # Not a library that the cache has.
        patch.setattr(collect._Collector, "_cuda_library", lambda *_: find_cuda_toolkit())
        return make_report([PLAIN, SWIZZLED], read_results(RESULTS), "sm_90a", no_progress)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(with_everything(report))


def with_everything(report: Report) -> Report:
    """With machine code and ceilings, which the fixture has not."""
    code = parse_sass(SASS)["kernel"]
    (group,) = report.groups
    kernels = [replace(kernel, code=code) for kernel in group.kernels]
    ceiling = {"matmul_tflops": 700.0, "copy_gb_per_s": 4200.0}
    ceilings = {dtype: {"dtype": dtype, **ceiling} for dtype in ("FP16", "BF16")}
    environment = report.results.environment | {"ceilings": ceilings}
    return replace(
        report,
        groups=[replace(group, kernels=kernels)],
        results=replace(report.results, environment=environment),
    )


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("chunk", range(8))
def test_bank_map(d_head: int, chunk: int) -> None:
    config = replace(PLAIN.config, d_head=d_head)
    plain, swizzled = (bank_map(config, swizzled=s, chunk=chunk) for s in (False, True))
    # Rows of 128 or 256 bytes begin at the same bank.
    assert (plain.wavefronts, swizzled.wavefronts) == (8, 1)
    for rows in (plain.rows, swizzled.rows):
        assert all(sum(cell is not None for cell in row) == 4 for row in rows)
    used = [bank for row in swizzled.rows for bank, cell in enumerate(row) if cell is not None]
    assert sorted(used) == list(range(32))


def test_bank_map_agrees_with_the_emulator(report: Report) -> None:
    """A visit's conflicts are those of its ldmatrix, of four phases each."""
    for kernel in report.groups[0].kernels:
        assert kernel.counts
        phase = bank_map(kernel.instance.config, swizzled=kernel.instance.config.swizzled)
        expected = kernel.counts.per_visit["ldmatrix"] * 4 * (phase.wavefronts - 1)
        assert kernel.counts.conflicts == expected


def test_counts_of_a_visit(report: Report) -> None:
    counts = report.groups[0].kernels[1].counts
    assert counts
    tile = 64 * 128 * 2
    wavefronts = 2 * (4 * tile + tile) // 128  # K and V: each warp reads all, the copies write once
    assert counts.per_visit["shared_wavefronts"] == wavefronts
    assert counts.per_visit["mma"] == mma_per_visit(SWIZZLED) == 512
    assert counts.per_visit["global_load_bytes"] == 2 * tile
    # Beside visits: Q in and to the registers, O to shared memory and out.
    assert counts.per_block["shared_wavefronts"] == 4 * tile // 128
    assert counts.per_block["global_store_bytes"] == tile
    assert counts.per_block["mma"] == 0


def test_counts_of_a_causal_kernel() -> None:
    causal = ForwardKernelInstance(SWIZZLED.config, CAUSAL)
    load_emulated([causal], no_progress)
    assert n_visits(causal, 256) == 1 + 2 + 3 + 4
    counts = count(causal)
    assert counts.per_visit["mma"] == 512
    assert counts.whole["mma"] == 512 * n_visits(causal, 256)


# Two loops with matrix products, of which the first masks, too; one without; a trap at the end.
SASS = """
		Function : kernel
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;  /* 0x1 */
        /*0020*/              @!P0 BRA 0x10 ;                        /* 0x1 */
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0040*/                   FSEL R3, R4, -INF , P1 ;          /* 0x1 */
        /*0050*/               @P2 BRA 0x30 ;                        /* 0x1 */
        /*0060*/                   LDSM.16.M88.4 R4, [R20] ;         /* 0x1 */
        /*0070*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0080*/                   MUFU.EX2 R3, R3 ;                 /* 0x1 */
        /*0090*/                   IMAD.MOV.U32 R3, RZ, RZ, R4 ;     /* 0x1 */
        /*00a0*/                   IMAD.WIDE R4, R3, 0x2, R6 ;       /* 0x1 */
        /*00b0*/               @P0 BRA 0xd0 ;                        /* 0x1 */
        /*00c0*/                   EXIT ;                            /* 0x1 */
        /*00d0*/             @!UP0 UIADD3 UR4, UR4, -0x1, URZ ;      /* 0x1 */
        /*00e0*/              @!P3 BRA 0x60 ;                        /* 0x1 */
        /*00f0*/                   STL [R1], R3 ;                    /* 0x1 */
        /*0100*/                   EXIT ;                            /* 0x1 */
        /*0110*/                   BRA 0x110;                        /* 0x1 */
		..........


		Function : no_loop
        /*0000*/                   EXIT ;                            /* 0x1 */
        /*0010*/                   BRA 0x10;                         /* 0x1 */
"""


def test_sass_of_a_causal_kernel() -> None:
    code = parse_sass(SASS)
    assert list(code) == ["kernel", "no_loop"]
    assert code["no_loop"].loop is None
    whole, masked = code["kernel"].whole, code["kernel"].loop
    assert whole.total == 18
    assert whole.classes["spills"] == 1
    assert masked
    assert masked.total == 3  # of two loops with one mma each, the shorter
    only_one = SASS.replace("/*0040*/                   FSEL", "/*0040*/                   HMMA")
    assert (parse_sass(only_one)["kernel"].loop or whole).classes["tensor"] == 2
    unmasked = parse_sass(SASS.replace("@P2 BRA 0x30", "@P2 BRA 0x90"))["kernel"].loop
    assert unmasked
    found = {name: n for name, n in unmasked.classes.items() if n}
    assert found == {
        "tensor": 1, "shared loads": 1, "exp": 1, "moves": 1, "address": 2, "control": 3,
    }  # fmt: skip
    assert unmasked.ex2 == 1
    assert list(unmasked.classes) == list(CLASSES)


def test_sass_of_a_compiled_kernel() -> None:
    """The main loop is a visit: it has as many mma as the emulator counts."""
    try:
        find_cuda_toolkit()
        find_cuobjdump()
    except ToolchainError as error:
        pytest.skip(str(error))
    library = build_library([SWIZZLED], Target.cuda("sm_90a"))
    (code,) = read_machine_code(library, "sm_90a").values()
    assert code.loop
    assert code.loop.classes["tensor"] == mma_per_visit(SWIZZLED) // SWIZZLED.config.n_warps
    assert code.loop.classes["address"] < 0.15 * code.loop.total  # few are unknown
    assert code.loop.ex2 >= 64 * 64 // 128
    assert code.whole.classes["tensor"] == code.loop.classes["tensor"]


def test_cuobjdump_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flashsmith.build.disassembler._tool_folders", lambda: iter([tmp_path]))
    with pytest.raises(ToolchainError, match=r"pip install 'flashsmith\[report\]'"):
        find_cuobjdump()


def test_best_run_is_one_run_with_most_kernels() -> None:
    results = read_results(RESULTS)
    run = best_run(results.times, [PLAIN, SWIZZLED])
    assert {(time.run, time.shape.seq_len) for time in run} == {("progression.csv", 4096)}
    assert BASELINE in {time.candidate for time in run}
    assert best_run(results.times, [PLAIN], seq_len=512) == []
    sweep = best_sweep(results.times, ("FP16", 64, "causal"), [])
    assert {time.shape.seq_len for time in sweep} == {512, 1024, 2048, 4096, 8192, 16384}
    assert best_sweep(results.times, ("FP16", 80, "full"), []) == []


def test_sweep_is_of_the_family_of_the_kernels() -> None:
    results = read_results(RESULTS)
    hopper = ForwardKernelInstance(get_hopper_kernel_progression_configs()[0])
    for instance in (PLAIN, hopper):
        sweep = best_sweep(results.times, ("BF16", 128, "full"), [instance])
        ours = [t.candidate for t in sweep if isinstance(t.candidate, ForwardKernelInstance)]
        assert {each.config.family for each in ours} == {instance.config.family}


def test_sm90_kernels_are_refused_before_anything_is_built() -> None:
    instances = [PLAIN, ForwardKernelInstance(get_hopper_kernel_progression_configs()[0])]
    with pytest.raises(ValueError, match=r"wgmma\+stages_2 is of the sm90 family; the report"):
        make_report(instances, Results(), "sm_90a", lambda *_: None)


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


def test_results_with_gaps_and_clocks(tmp_path: Path) -> None:
    """As `flashsmith bench` writes them: no time for what failed, a clock for what ran."""
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
    assert results.ceiling("FP16") == {"matmul_tflops": 700.0}
    assert results.ceiling("BF16") is None


def test_newest_results_are_found(tmp_path: Path) -> None:
    for gpu, date in (("h200", "2026-01-02"), ("h200", "2026-01-10"), ("a100", "2026-02-01")):
        (tmp_path / gpu / date).mkdir(parents=True)
        stamp = json.dumps({"gpu": f"NVIDIA {gpu.upper()}"})
        (tmp_path / gpu / date / "environment.json").write_text(stamp)
    assert find_results(root=tmp_path) == tmp_path / "a100" / "2026-02-01"
    assert find_results("NVIDIA H200", tmp_path) == tmp_path / "h200" / "2026-01-10"
    assert find_results("B200", tmp_path) is None


def test_busy_time_is_work_over_speed(report: Report) -> None:
    plain = report.groups[0].kernels[0]
    assert plain.time
    assert plain.counts
    machine = find_machine("NVIDIA H200", "sm_90a", 1000.0)
    assert machine
    loop = parse_sass(SASS)["kernel"].loop
    busy = busy_ms(PLAIN, plain.time.shape, machine, plain.counts, loop)
    assert list(busy) == list(UNITS)
    visits = 4 * 16 * 64 * 64
    cycles = (visits * 8448 + 4 * 16 * 64 * plain.counts.per_block["shared_wavefronts"]) / 132
    assert busy["shared memory"] == pytest.approx(cycles / 1e6)
    flop = 4 * 4 * 16 * 4096**2 * 128
    assert busy["tensor cores"] == pytest.approx(flop / (132 * 4096 * 1e9) * 1e3)
    assert busy["issue slots"] == pytest.approx(visits * 3 / 132 / 1e6)  # 4 warps, 3 instructions
    assert find_machine("NVIDIA H200", "sm_90a", None) is None
    assert find_machine("Some GPU", "sm_90a", 1000.0) is None


def test_bank_conflicts_explain_the_first_step(report: Report) -> None:
    """Shared memory is what kernel 1 waits for, and nothing is busy for longer than it took."""
    (group,) = report.groups
    (step,) = group.steps
    assert step.changes == ["swizzled off to on"]
    assert step.headline == "5.9 times as fast"
    assert step.before.busiest == "shared memory"
    assert 0.9 < step.before.busy_share["shared memory"] < 1
    assert "85% less work" in step.reason
    told = {name: (before, after) for name, before, after in step.quantities}
    assert told["of these bank conflicts"] == (7168, 0)
    assert all(share < 1 for kernel in group.kernels for share in kernel.busy_share.values())


def test_emulator_counts_the_bank_conflicts_that_ncu_measures(report: Report) -> None:
    """On the H200, of the same launch: within 1%."""
    plain, swizzled = report.groups[0].kernels
    assert plain.profile
    assert swizzled.profile
    assert plain.profiled_conflicts == pytest.approx(
        plain.profile.metrics["bank_conflicts"], rel=0.01
    )
    assert swizzled.profiled_conflicts == 0
    assert swizzled.profile.metrics["bank_conflicts"] < plain.profiled_conflicts / 5000
    assert next(iter(plain.profile.stalls)) == "short_scoreboard"


def test_steps_between_tiles_compare_the_same_work(report: Report) -> None:
    kernel = report.groups[0].kernels[1]
    large = ForwardKernelInstance(replace(SWIZZLED.config, B_r=128))
    assert mma_per_visit(large) == 2 * mma_per_visit(SWIZZLED)
    told = Step(kernel, replace(kernel, instance=large)).quantities
    # The same counts for twice the mma.
    name = "shared-memory wavefronts for 1000 mma"
    assert (name, 1280 / 512 * 1000, 1280 / 1024 * 1000) in told


def test_missing_tools_are_named(report: Report) -> None:
    assert "/nowhere/nvcc" in report.missing["registers and machine code"]
    # Registers as the results have them.
    used = report.groups[0].kernels[1].resources
    assert used
    assert used.occupancy.blocks == 3
    text = text_of(render(report))
    assert "Not on this page" in text
    assert "/nowhere/nvcc" in text


def test_without_results(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._Collector, "_cuda_library", lambda *_: None)
    bare = make_report([SWIZZLED], Results(), "sm_90a", no_progress)
    assert "flashsmith bench" in bare.missing["times"]
    text = text_of(render(bare))
    assert "1 280" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "Bank conflicts" in text
    assert "Step by step" not in text


class Page(HTMLParser):
    """What the tests ask of a page: its tags, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", "".join(Page(html).text))


def test_page_is_well_formed_and_stands_alone(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in parsed.tags:
        assert tag not in ("script", "link", "img", "iframe")
        assert "src" not in attrs
        if "href" in attrs:
            assert (attrs["href"] or "").removeprefix("#") in ids
    assert not re.search(r"url\(|@import|https?://", page)


def test_page_is_accessible(page: str) -> None:
    parsed = Page(page)
    drawings = [attrs for tag, attrs in parsed.tags if tag == "svg"]
    # Time, busy time, two bank maps, instructions, peers, roofline.
    assert len(drawings) == 7
    labels = [attrs["aria-label"] or "" for attrs in drawings]
    assert all(attrs["role"] == "img" for attrs in drawings)
    assert len(set(labels)) == len(labels)
    assert any("in 8 wavefronts" in label for label in labels)
    assert any("in 1 wavefront" in label for label in labels)
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 2 for a, b in pairwise(levels))
    assert ("html", {"lang": "en"}) in parsed.tags


def test_page_says_what_was_measured(page: str) -> None:
    text = text_of(page)
    with (RESULTS / "progression.csv").open(newline="") as file:
        rows = {row["kernel"]: row for row in csv.DictReader(file)}
    for name in (PLAIN.name, SWIZZLED.name, "FA2"):
        assert f"{float(rows[name]['ms']):.3f}" in text
        assert f"{float(rows[name]['percent_of_fa2']):.1f}%" in text
    for field in fields(FlashForwardKernelConfig):
        assert text.count(field.name) >= 2
    for unit in (*UNITS, *CLASSES):
        assert unit in text


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


# Appended to the page: reports what only a browser knows. Text of a drawing is inside it if its
# box is within the drawing's, give or take a pixel.
_PROBE = """<script>
const box = e => e.getBoundingClientRect();
const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .04045 ? v / 12.92
  : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const contrast = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + .05) / (low + .05); };
document.querySelectorAll('details').forEach(d => d.open = true);
const background = getComputedStyle(document.body).backgroundColor;
const report = {
  overflow: document.scrollingElement.scrollWidth - innerWidth,
  empty: [...document.querySelectorAll('svg')].filter(
    s => box(s).width < 100 || box(s).height < 20).length,
  cut: [...document.querySelectorAll('svg text')].filter(t => {
    const a = box(t), b = box(t.closest('svg'));
    return a.left < b.left - 1 || a.right > b.right + 1
      || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  }).map(t => t.textContent),
  requests: performance.getEntriesByType('resource').length,
  background: light(background),
  text: contrast(getComputedStyle(document.body).color, background),
  quiet: contrast(getComputedStyle(document.querySelector('.quiet')).color, background),
};
document.title = 'probe ' + JSON.stringify(report);
</script>"""


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (400, False)])
def test_page_in_a_browser(page: str, tmp_path: Path, width: int, dark: bool) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium is installed (Debian: apt install chromium)")
    (tmp_path / "page.html").write_text(page.replace("</body>", f"{_PROBE}</body>"))
    found = probe(chromium, tmp_path, width, dark)
    assert found["requests"] == 0
    assert found["overflow"] <= 0
    assert found["empty"] == 0
    assert found["cut"] == []
    assert (found["background"] < 0.05) == dark
    assert found["text"] >= 7
    assert found["quiet"] >= 4.5


def probe(chromium: str, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    flags = [
        f"--{name}"
        for name in (
            "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
            "disable-background-networking", "disable-component-update", "dump-dom",
        )
    ]  # fmt: skip
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [
            chromium, *flags, *theme, f"--window-size={width},900",
            f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    match = re.search(r"<title>probe (.*?)</title>", done.stdout)
    assert match, done.stderr
    answer: dict[str, Any] = json.loads(match[1].replace("&gt;", ">").replace("&amp;", "&"))
    return answer


def test_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._Collector, "_cuda_library", lambda *_: None)
    out = tmp_path / "deep" / "page.html"
    arguments = ["report", PLAIN.name, SWIZZLED.name, "--results", str(RESULTS), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "5.9 times as fast" in text_of(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["--arch", "sm_10"], "sm_10"),
        (["--results", "/nowhere"], "/nowhere"),
        (["--results", str(RESULTS), "--gpu", "B200"], "B200"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["report", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
