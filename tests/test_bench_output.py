"""Markdown, ratios and plots, of what was measured on the H200."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from bench_helpers import CEILINGS, H200, PLAIN, SMALL, svg_texts, time_row
from flashsmith.bench import Problem, plots, summary
from flashsmith.bench.results import FAILED, KERNEL, TimeRow
from flashsmith.configs import DType


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
