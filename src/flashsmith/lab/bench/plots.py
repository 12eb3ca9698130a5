"""The plots of a benchmark, each as PNG and SVG. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from flashsmith.lab.bench.ceilings import Ceilings
from flashsmith.lab.bench.panels import OURS, panels, series, title_of
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.results import OK, CountRow, TimeRow, with_regime
from flashsmith.lab.bench.summary import REGIME_TITLES, bank_conflicts

# Colour-blind readers can tell Okabe and Ito's colours apart, too; ours is the strongest.
_COLORS = {
    OURS: "#d55e00",
    "fa2": "#56b4e9",
    "cudnn": "#009e73",
    "fa3": "#0072b2",
    "fa4": "#cc79a7",
    "flex": "#999999",
}
_IDEAL, _CONFLICTS = "#0072b2", "#d55e00"
_CEILING = "#333333"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titleweight": "bold",
    "grid.color": "#e6e6e6",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "flashsmith",  # the same rows give the same file
}
_LABELLED_BARS = 48  # with more in a panel the numbers would touch


def plot_times(
    rows: Sequence[TimeRow], ceilings: Mapping[str, Ceilings], gpu: str, folder: Path
) -> list[Path]:
    """Plots bars of TFLOP/s by sequence length, and the roofline; returns the written files.

    Args:
        rows: Rows of one regime.
    """
    if not any(row.status == OK for row in rows):
        return []
    regime = rows[0].regime
    where = f"{gpu}, {REGIME_TITLES[regime]}"
    with rc_context(_STYLE):
        return [
            *_save(_bars(rows, ceilings, where), folder / with_regime("tflops", regime)),
            *_save(_roofline(rows, ceilings, where), folder / with_regime("roofline", regime)),
        ]


def plot_counts(rows: Sequence[CountRow], folder: Path) -> list[Path]:
    """Plots wavefronts of shared memory by kernel, a panel for each shape; returns the files."""
    counted = [row for row in rows if row.status == OK]
    if not counted:
        return []
    with rc_context(_STYLE):
        return _save(_wavefronts(counted), folder / "wavefronts")


def _bars(rows: Sequence[TimeRow], ceilings: Mapping[str, Ceilings], where: str) -> Figure:
    found = panels(rows)
    names = series(rows)
    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(7.2 * columns, 3.9 * lines + 0.9), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for ax, (panel, by_length) in zip(axes, found.items(), strict=False):
        lengths = sorted(by_length)
        width = 0.84 / len(names)
        for i, name in enumerate(names):
            offset = (i - (len(names) - 1) / 2) * width
            points = [
                (x, by_length[n][name]) for x, n in enumerate(lengths) if name in by_length[n]
            ]
            rates = [row.tflops or 0 for _, row in points]
            bars = ax.bar(
                [x + offset for x, _ in points],
                rates,
                width * 0.94,
                color=_color(name),
                yerr=_spread([row for _, row in points]),
                error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
            )
            if len(lengths) * len(names) <= _LABELLED_BARS:
                labels = [f"{rate:.0f}" for rate in rates]
                ax.bar_label(bars, labels, padding=2, fontsize=7, rotation=90)
        if panel[0] in ceilings:
            ceiling = ceilings[panel[0]].matmul_tflops
            ax.axhline(ceiling, color=_CEILING, linestyle="--", linewidth=1)
            ax.annotate(
                f"matrix product of 8192: {ceiling:.0f}",
                (0.005, ceiling),  # over the short sequences, whose bars end below
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="left",
                fontsize=8,
                color=_CEILING,
            )
        ax.set_title(title_of(panel), loc="left")
        ax.set_xticks(range(len(lengths)), [str(n) for n in lengths])
        ax.grid(axis="x", visible=False)
        ax.margins(x=0.02, y=0.14)
    for i, ax in enumerate(axes):
        ax.set_visible(i < len(found))
        ax.set_ylabel("TFLOP/s" if i % columns == 0 else "")
        ax.set_xlabel("sequence length" if i + columns >= len(found) else "")
    figure.suptitle(f"Forward attention on {where}", fontweight="bold", fontsize=13)
    handles = [
        Line2D([], [], marker="s", linestyle="", color=_color(n), markersize=9) for n in names
    ]
    labels = [_label(name, rows) for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _roofline(rows: Sequence[TimeRow], ceilings: Mapping[str, Ceilings], where: str) -> Figure:
    """Draws a panel for each dtype and d_head; filled markers are full attention, hollow ones
    causal."""
    found = panels(rows)
    names = series(rows)
    kinds = list(dict.fromkeys((dtype, d_head) for dtype, d_head, _ in found))
    figure = Figure(figsize=(6.4 * len(kinds), 5.6), layout="constrained")
    axes = figure.subplots(1, len(kinds), squeeze=False, sharey=True).flatten()
    for ax, (dtype, d_head) in zip(axes, kinds, strict=True):
        intensities = []
        for (panel_dtype, panel_d_head, mask), by_length in found.items():
            if (panel_dtype, panel_d_head) != (dtype, d_head):
                continue
            for name in names:
                points = [at[name] for _, at in sorted(by_length.items()) if name in at]
                x = [row.workload.intensity for row in points]
                intensities += x
                ax.plot(
                    x,
                    [row.tflops for row in points],
                    marker="o" if mask == "full" else "^",
                    color=_color(name),
                    markerfacecolor=_color(name) if mask == "full" else "white",
                    markersize=6,
                    linewidth=1.0,
                    linestyle="-" if mask == "full" else ":",
                    zorder=3 if name == OURS else 2,
                )
        if dtype in ceilings:
            _draw_roof(ax, ceilings[dtype], intensities)
        ax.set_title(f"{dtype}, d_head {d_head}", loc="left")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        ax.yaxis.set_minor_locator(NullLocator())
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_xlabel("FLOP for each byte of DRAM traffic (Q, K, V, O moved once)")
    axes[0].set_ylabel("TFLOP/s")
    figure.suptitle(f"Roofline of forward attention on {where}", fontweight="bold", fontsize=13)
    handles = [
        *(Line2D([], [], marker="s", linestyle="", color=_color(n), markersize=9) for n in names),
        Line2D([], [], marker="o", color=_CEILING),
        Line2D([], [], marker="^", color=_CEILING, markerfacecolor="white", linestyle=":"),
    ]
    labels = [*(_label(name, rows) for name in names), "full", "causal"]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_roof(ax: Axes, ceilings: Ceilings, intensities: Sequence[float]) -> None:
    ridge = ceilings.matmul_tflops * 1e3 / ceilings.copy_gb_per_s
    low, high = min([ridge / 4, *intensities]) / 1.4, max([ridge * 4, *intensities]) * 1.4
    xs = [low, ridge, high]
    ax.plot(xs, [ceilings.at(x) for x in xs], color=_CEILING, linewidth=1.6)
    ax.set_xlim(low, high)
    ax.annotate(
        f"matrix product {ceilings.matmul_tflops:.0f} TFLOP/s",
        (high, ceilings.matmul_tflops),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    ax.annotate(
        f"copy {ceilings.copy_gb_per_s:.0f} GB/s",
        (ridge, ceilings.matmul_tflops),
        xytext=(-6, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def _wavefronts(rows: Sequence[CountRow]) -> Figure:
    workloads = list(dict.fromkeys(row.workload for row in rows))
    heights = [0.7 + 0.3 * sum(row.workload == each for row in rows) for each in workloads]
    figure = Figure(figsize=(11, sum(heights) + 1.2), layout="constrained")
    axes = figure.subplots(
        len(workloads), 1, squeeze=False, sharex=True, height_ratios=heights
    ).flatten()
    for ax, workload in zip(axes, workloads, strict=True):
        shown = [row for row in rows if row.workload == workload][::-1]
        names = [row.kernel for row in shown]
        ideal = [row.shared_wavefronts_ideal or 0 for row in shown]
        conflicts = [bank_conflicts(row) or 0 for row in shown]
        ax.barh(names, ideal, 0.7, color=_IDEAL, label="without conflicts")
        ax.barh(names, conflicts, 0.7, left=ideal, color=_CONFLICTS, label="bank conflicts")
        ax.set_title(str(workload), loc="left")
        ax.tick_params(axis="y", labelsize=8)
        ax.grid(axis="y", visible=False)
    axes[-1].set_xlabel("wavefronts of shared memory")
    figure.suptitle("Emulator counts", fontweight="bold", fontsize=13)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _spread(rows: Sequence[TimeRow]) -> list[list[float]]:
    """Returns the distances of the rates at the 80th and 20th percentile of the times from the
    rate at the median."""
    low, high = [], []
    for row in rows:
        assert row.ms is not None
        assert row.tflops is not None
        low.append(max(0.0, row.tflops - row.tflops * row.ms / (row.ms_p80 or row.ms)))
        high.append(max(0.0, row.tflops * row.ms / (row.ms_p20 or row.ms) - row.tflops))
    return [low, high]


def _color(name: str) -> str:
    return _COLORS.get(name, "#666666")


def _label(name: str, rows: Sequence[TimeRow]) -> str:
    if name != OURS:
        return PEERS[name].full_title if name in PEERS else name
    n_kernels = len({row.kernel for row in rows if row.kind == "kernel" and row.status == OK})
    return OURS if n_kernels == 1 else f"{OURS} (best of {n_kernels} kernels)"


def _save(figure: Figure, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=144)
    figure.savefig(paths[1], metadata={"Date": None})
    return paths
