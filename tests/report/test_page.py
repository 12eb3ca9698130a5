"""The page of the report, parsed and in a browser."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashsmith import settings
from flashsmith.configs import (
    FlashForwardKernelConfig,
    KernelId,
    Sm90ForwardKernelConfig,
)
from flashsmith.errors import BuildError
from flashsmith.jit import KernelResources, find_cuda_toolkit, kernel_source_stamp
from flashsmith.lab.report import Report, Results, collect, make_report, read_results
from flashsmith.lab.report.budget import UNITS
from flashsmith.lab.report.document import document_of
from flashsmith.lab.report.lines import roofline, sweep_lines
from flashsmith.lab.report.page import render
from flashsmith.lab.report.sass import CLASSES, parse_sass
from flashsmith.runtime.counters import COUNTERS
from support.paths import RESULTS
from support.report import (
    LAST_SM90,
    PLAIN,
    PLAIN_SM90,
    SASS,
    SWIZZLED,
    Page,
    no_progress,
    sm80_report,
    sm90_report,
    text_of,
    with_everything,
)


@pytest.fixture(scope="module", params=["sm80", "sm90"])
def report(request: pytest.FixtureRequest) -> Report:
    return with_everything({"sm80": sm80_report, "sm90": sm90_report}[request.param]())


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(report)


def test_missing_tools_are_named(page: str) -> None:
    text = text_of(page)
    assert "Not on this page" in text
    assert "/nowhere/nvcc" in text


def test_without_results(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._Collector, "_cuda_modules", lambda *_: {})
    bare = make_report([SWIZZLED], Results(), "sm_90a", no_progress)
    assert "flashsmith bench" in bare.missing["times"]
    text = text_of(render(bare))
    assert "1 280" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "Bank conflicts" in text
    assert "Step by step" not in text


def test_a_kernel_that_the_build_refuses_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that spills, for example, is named, and the others keep their registers and machine
    code."""
    function = "kernel"
    module = SimpleNamespace(resources=[KernelResources(function, "sm_90a", 96, 0, 0, 0, 0, 0)])

    def build(_: object, instances: Sequence[KernelId]) -> dict[KernelId, SimpleNamespace]:
        if PLAIN in instances:
            raise BuildError("(FP16, ...) spills 88 bytes")
        return dict.fromkeys(instances, module)

    monkeypatch.setattr(collect._Collector, "_build", build)
    monkeypatch.setattr(collect, "read_machine_code", lambda *_: parse_sass(SASS))
    report = make_report([PLAIN, SWIZZLED], read_results(RESULTS), "sm_90a", no_progress)
    refused, built = report.groups[0].kernels
    assert "spills 88 bytes" in report.missing[f"registers and machine code of {PLAIN}"]
    assert refused.resources is None  # the results' figures belong to another text
    assert refused.code is None
    assert built.resources
    assert built.resources.registers == 96
    assert built.code == parse_sass(SASS)[function]


def test_texts_of_the_first_box_are_escaped_once() -> None:
    """Code stays code, and quotes stay quotes."""
    why = "install it, or `pip install 'flashsmith[report]'` <now>"
    html = render(replace(sm80_report(), missing={"machine code": why}))
    (box,) = re.findall(r'<li class="missing">(.*?)</li>', html)
    assert "<code>pip install &#39;flashsmith[report]&#39;</code> &lt;now&gt;" in box
    assert why.replace("`", "") in text_of(html)
    assert "&amp;#39;" not in html
    assert "&lt;code&gt;" not in html


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
    # Peers and roofline; each for a screen and for a phone, of which one is shown.
    assert len(drawings) == 2 * 2
    assert all(attrs["role"] == "img" for attrs in drawings)
    assert len({attrs["aria-label"] for attrs in drawings}) == 2
    text = text_of(page)
    assert "Not swizzled: 8 wavefronts a phase" in text
    assert "Swizzled: 1 wavefront a phase" in text
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 2 for a, b in pairwise(levels))
    assert ("html", {"lang": "en"}) in parsed.tags


def test_page_says_what_was_measured_of_sm80_kernels() -> None:
    report = with_everything(sm80_report())
    text = text_of(render(report))
    with (RESULTS / "progression.csv").open(newline="") as file:
        rows = {row["kernel"]: row for row in csv.DictReader(file)}
    for name in (PLAIN.name, SWIZZLED.name, "FA2"):
        assert f"{float(rows[name]['ms']):.3f}" in text
        assert f"{float(rows[name]['percent_of_fa2']):.1f}%" in text
    for field in fields(FlashForwardKernelConfig):
        assert text.count(field.name) >= 2
    for words in (*report.groups[0].kernels[0].busy_ms, *CLASSES):
        assert words in text


@pytest.mark.parametrize("same", [False, True])
def test_page_says_when_times_are_of_other_kernels(same: bool, tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-02"
    folder.mkdir()
    shutil.copy(RESULTS / "progression.csv", folder)
    stamp = {"gpu": "NVIDIA H200", "date": "2026-01-02", "kernels_sm80": "0"}
    stamp |= kernel_source_stamp() if same else {}
    (folder / "environment.json").write_text(json.dumps(stamp))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect._Collector, "_build", lambda *_: find_cuda_toolkit())
        patch.setenv(settings.NVCC.name, "/nowhere/nvcc")
        report = make_report([PLAIN], read_results(folder), "sm_90a", no_progress)
    note = (
        "Measured 2026-01-02 on other sm80 forward kernels than today's. "
        "All but the times is of today's kernels."
    )
    assert (note in text_of(render(report))) != same
    assert document_of(report)["groups"][0]["note"] == (None if same else note)


def test_page_says_what_was_measured_of_sm90_kernels() -> None:
    text = text_of(render(with_everything(sm90_report())))
    with (RESULTS / "sm90-bf16" / "sm90_progression.csv").open(newline="") as file:
        rows = {row["kernel"]: row for row in csv.DictReader(file) if row["mask"] == "full"}
    for name in (PLAIN_SM90.name, LAST_SM90.name, "fa4"):
        assert f"{float(rows[name]['ms']):.3f} ms, {rows[name]['tflops']} TFLOP/s" in text
    for field in fields(Sm90ForwardKernelConfig):
        assert text.count(field.name) >= 2
    for words in ("O staging", "barriers", "setmaxnreg", "mbarriers", "1 block is resident"):
        assert words in text


def counters_of(report: Report) -> set[str]:
    """Returns the counters in the tables of a report's page."""
    html = render(report)
    table = html[html.index("<h3>Counted on the emulator</h3>") :]
    return {c.heading for c in COUNTERS.values() if f"<tr><th>{c.heading}</th>" in table}


def test_counters_of_the_other_family_are_left_out() -> None:
    sm80, sm90 = counters_of(sm80_report()), counters_of(sm90_report())
    assert {"mma", "ldmatrix", "cp.async", "smem wavefronts"} <= sm80
    assert {"wgmma", "TMA load B", "mbarrier waits", "ldmatrix", "smem wavefronts"} <= sm90
    assert not sm80 & {"wgmma", "TMA loads", "mbarrier waits", "named barriers"}
    assert not sm90 & {"mma", "cp.async", "load B"}


def test_the_faster_family_is_said() -> None:
    text = text_of(render(sm80_report()))
    said = re.findall(r"flashsmith has a faster kernel (.*?) times as fast", text)
    assert len(said) == 2
    assert "async+eager" in said[0]  # of this family and dtype, but not one of these kernels
    assert "of the sm80 family" in said[0]
    assert said[1].startswith("for this shape in BF16: (BF16, 128, ")  # on a page of FP16
    assert "of the sm90 family" in said[1]
    assert "Against peers (BF16)" in text
    assert "flashsmith sm90, best, another run" in text
    assert "flashsmith sm80, best" in text


def test_only_what_is_faster_is_said() -> None:
    """The sm90 page mentions the family's best kernel, which is not in the progression."""
    (group,) = sm90_report().groups
    ((time, ratio),) = group.faster
    assert time.workload == group.workload
    assert 1 < ratio < 1.2
    text = text_of(render(sm90_report()))
    assert "Against peers (" not in text
    assert "flashsmith sm80" not in text


def test_bars_are_as_long_as_their_numbers_say() -> None:
    """Widths are percentages of the longest time, the measured time, the largest loop, and all
    bytes."""
    report = with_everything(sm80_report())
    (group,) = report.groups
    bars = [attrs for tag, attrs in Page(render(report)).tags if tag == "i" and "style" in attrs]

    def widths(css: str, tip: str) -> list[float]:
        found = [a["style"] or "" for a in bars if (a["class"], a["title"]) == (css, tip)]
        return [float(style.removeprefix("width:").removesuffix("%")) for style in found]

    longest = max(time.ms for time in group.run)
    for kernel in group.kernels:
        assert kernel.time
        assert widths("ours", kernel.name) == [
            pytest.approx(100 * kernel.time.ms / longest, abs=0.01)
        ]
        for i, share in enumerate(kernel.busy_share.values()):
            css = f"unit-{list(UNITS).index(list(kernel.busy_share)[i])}"
            assert widths(css, kernel.name) == [pytest.approx(100 * share, abs=0.01)]
    (loop,) = {
        kernel.code.loop.total for kernel in group.kernels if kernel.code and kernel.code.loop
    }
    assert widths("mix-0", "tensor: 1") == [pytest.approx(100 / loop, abs=0.01)] * 2
    sizes = PLAIN.config.shared_memory_parts
    first = next(iter(sizes))
    expected = 100 * sizes[first] / PLAIN.config.shared_memory_bytes
    assert (
        widths("mix-0", f"{first} {sizes[first]} bytes") == [pytest.approx(expected, abs=0.01)] * 2
    )


def test_kernels_of_the_roofline_have_their_numbers() -> None:
    (group,) = sm90_report().groups
    plot = roofline(group, {"matmul_tflops": 686.0, "copy_gb_per_s": 4264.0})
    numbers = {text: y for _, y, text, css, *_ in plot.texts if css == "strong"}
    assert set(numbers) == {"1", "2"}
    assert abs(numbers["1"] - numbers["2"]) > 10
    assert any("cuBLAS" in text and "686" in text for _, _, text, *_ in plot.texts)


def test_axes_have_their_units() -> None:
    (group,) = sm80_report().groups
    assert "sequence length" in {text for _, _, text, *_ in sweep_lines(group).texts}
    assert 'font-size="12">TFLOP/s</text>' in render(sm80_report())


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


# This script is appended to the page, and reports what only a browser knows. Text of a drawing is
# inside it if its box is within the drawing's, give or take a pixel.
_PROBE = """<script>
const box = e => e.getBoundingClientRect();
const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .04045 ? v / 12.92
  : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const contrast = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + .05) / (low + .05); };
document.querySelectorAll('details').forEach(d => d.open = true);
const drawings = [...document.querySelectorAll('svg')].filter(s => s.getClientRects().length);
const background = getComputedStyle(document.body).backgroundColor;
const report = {
  overflow: document.scrollingElement.scrollWidth - innerWidth,
  empty: drawings.filter(s => box(s).width < 100 || box(s).height < 20).length,
  drawings: drawings.length,
  scrolling: [...document.querySelectorAll('figure')].filter(
    f => f.scrollWidth > f.clientWidth + 1).length,
  cut: drawings.flatMap(s => [...s.querySelectorAll('text')]).filter(t => {
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
    assert found["drawings"] == 2
    assert found["scrolling"] == 0
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
