"""Markdown, ratios and plots of results measured on an H200."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from flashsmith.configs import FULL, DType, Workload, parse_kernel_name_into_instance
from flashsmith.lab.bench import plots, summary
from flashsmith.lab.bench.ratios import ratio_sentence, ratio_table
from flashsmith.lab.bench.results import (
    BACK_TO_BACK,
    FAILED,
    IN_TURN,
    KERNEL,
    TimeRow,
    read_csv,
    to_csv,
)
from flashsmith.lab.report import read_results
from flashsmith.lab.report.comparison import best_run, best_sweep
from support.bench import CEILINGS, FITTING, PLAIN, SMALL, svg_texts, time_row
from support.paths import RESULTS
from support.workloads import changed


def recorded_rows() -> list[TimeRow]:
    with (RESULTS / "tuning.csv").open() as file:
        records = list(csv.DictReader(file))
    return [
        time_row(
            "fa2" if r["kernel"] == "FA2" else r["kernel"],
            float(r["ms"]),
            Workload.from_row(r),
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
        (r for r in rows if r.kind == KERNEL and r.workload.variant == FULL
         and r.workload.problem.q_shape == (1, 16384, 16, 128)),
        key=lambda row: row.ms or math.inf,
    )  # fmt: skip
    (line,) = [line for line in text.splitlines() if f"{fastest.ms:.4g} (" in line]
    assert line.startswith(f"| 16384 | `{fastest.kernel}` |")
    assert f"| {fastest.tflops:.1f} |" in line
    assert f"**{fastest.tflops:.1f}**" in text  # faster than FA2
    assert f"| `{PLAIN}` | {SMALL} | failed | a \\| b |" in text


def test_ratios_by_shape_and_in_one_number() -> None:
    rows = read_csv(TimeRow, RESULTS / "sm90-bf16" / "forward.csv")
    lines = ratio_table(rows).splitlines()
    assert lines[0] == (
        "| ratio to the best peer | 512 | 1024 | 2048 | 4096 | 8192 | 16384 | geometric mean |"
    )
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| d {d_head}, {mask}" for d_head in (64, 128, 256) for mask in ("causal", "full")
    ]
    of_ours = [row.ratio_to_best_peer for row in rows if row.kind == KERNEL]
    logs = [math.log(ratio) for ratio in of_ours if ratio is not None]
    mean, minimum = math.exp(sum(logs) / len(logs)), math.exp(min(logs))
    sentence = ratio_sentence(rows)
    assert f"Geometric mean of 36 shapes: **{mean:.3f}**; least: {minimum:.3f} (BF16" in sentence
    assert sentence.endswith("0 below 1.")


def test_ratios_below_one_are_counted_and_gaps_are_dashes() -> None:
    long = changed(SMALL, seq_len=128)
    other = changed(SMALL, mask="causal")
    rows = [
        *(time_row("fa2", 1.0, workload) for workload in (SMALL, long, other)),
        time_row(FITTING, 1.25, ratio_to_best_peer=0.8),
        time_row(PLAIN, 1.5, ratio_to_best_peer=0.67),  # not our best kernel
        time_row(FITTING, 0.5, long, ratio_to_best_peer=2.0),
        time_row(FITTING, 1.0, other, ratio_to_best_peer=1.0),
        time_row("fa3", None, status=FAILED),
    ]
    assert ratio_table(rows).splitlines()[2:] == [
        "| d 64, causal | 1.00 | - | **1.000** |",
        "| d 64, full | 0.80 | 2.00 | **1.265** |",
    ]
    assert ratio_sentence(rows).endswith(f"least: 0.800 ({SMALL}); 1 below 1.")
    both = [*rows, time_row(FITTING, 1.0, changed(SMALL, dtype=DType.BF16), ratio_to_best_peer=1.5)]
    assert "| BF16, d 64, full | 1.50 |" in ratio_table(both)


def test_no_table_without_a_peer() -> None:
    assert ratio_table([time_row(FITTING, 1.0)]) == ""
    assert "Ratio" not in summary.times_markdown([time_row(FITTING, 1.0)], {"gpu": "GPU"})


def test_a_report_of_both_regimes_shows_the_times_in_turn(tmp_path: Path) -> None:
    """The report does not mix in the higher rates of a warm L2."""
    (tmp_path / "environment.json").write_text('{"gpu": "NVIDIA H200"}')
    for name, ms, regime in (
        ("forward", 2.0, IN_TURN),
        ("forward_back_to_back", 1.0, BACK_TO_BACK),  # has more peers, so it would be preferred
    ):
        peers = ["fa2", "fa3", "cudnn"] if regime == BACK_TO_BACK else ["fa2"]
        rows = [time_row(name, ms, regime=regime) for name in (*peers, FITTING)]
        (tmp_path / f"{name}.csv").write_text(to_csv(TimeRow, rows))
    results = read_results(tmp_path)
    assert {time.ms for time in results.times} == {2.0}
    ours = parse_kernel_name_into_instance(FITTING, SMALL.problem.d_head)
    for chosen in (
        best_run(results.times, SMALL.kind, [ours]),
        best_sweep(results.times, SMALL.kind, [ours]),
    ):
        assert [time.ms for time in chosen] == [2.0, 2.0]


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
        assert "NVIDIA H200, in turn, L2 flushed" in texts
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
