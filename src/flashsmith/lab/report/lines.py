"""The charts of many measurements: rates over sequence lengths, and under the GPU's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from flashsmith.lab.report.model import Group
from flashsmith.lab.report.results import Time

Point = tuple[float, float]
WIDTH = 920
NARROW = 360  # the width on a phone; the page's tables have the numbers, too
FONT = 12  # px
_LEFT = 62
_NAMES = 250  # space for the names of series, which are below a narrow chart
_MIN_GAP = 13  # px between the numbers of kernels


class Plot:
    """The content of templates/plot.svg.j2: two axes, and the names of series.

    lines: (points, style class). dots: (x, y, style class, tooltip). texts: (x, y, text, style
    class, anchor, size).
    """

    left = _LEFT

    def __init__(self, group: Group, width: int, bottom: int, title: str, said: str) -> None:
        self.group, self.width, self.bottom = group, width, bottom
        self.right = width - _NAMES if width == WIDTH else width - 10
        # The name of the axis needs room, and in a narrow chart the names of the series.
        self.height = bottom + 40 + (0 if width == WIDTH else 16 * len(group.series) + 4)
        self.title, self.said = f"{title}, {group.title}", said
        self.lines: list[tuple[list[Point], str]] = []
        self.dots: list[tuple[float, float, str, str]] = []
        self.texts: list[tuple[float, float, str, str, str, int]] = []

    def text(
        self, x: float, y: float, text: str, css: str = "", anchor: str = "start", size: int = FONT
    ) -> None:
        self.texts.append((x, y, text, css, anchor, size))

    def axes(
        self, top: float, across: str, xs: Mapping[str, float], ys: Mapping[str, float], grid: bool
    ) -> None:
        """Draws the ticks by their texts and the name of the x axis; ``grid`` adds vertical
        lines."""
        for text, x in xs.items():
            if grid:
                self.lines.append(([(x, top), (x, self.bottom)], "grid"))
            self.text(x, self.bottom + 18, text, "quiet", "middle")
        for text, y in ys.items():
            self.lines.append(([(self.left, y), (self.right, y)], "grid"))
            self.text(self.left - 6, y + 4, text, "quiet", "end")
        self.text((self.left + self.right) / 2, self.bottom + 36, across, "quiet", "middle")
        self.middle = (top + self.bottom) / 2

    def series(self, place: Callable[[Time], Point], joined: bool) -> None:
        """Draws a dot for each time. Names are beside the last points, with a minimum distance, or
        below the axis of a narrow chart."""
        ends = []
        for i, (name, points) in enumerate(self.group.series.items()):
            css = self._css(name, i)
            times = [points[n] for n in sorted(points)]
            if joined:
                self.lines.append(([place(time) for time in times], f"{css} series"))
            for time in times:
                tip = f"{time.name}, {time.workload.problem.seq_len_k}: {time.tflops:.1f} TFLOP/s"
                self.dots.append((*place(time), css, tip))
            ends.append((place(times[-1])[1], name, css))
        at, x = -math.inf, self.right - 8.0
        for i, (y, name, css) in enumerate(sorted(ends)):
            at = max(at + 15, y + 4)
            if self.width < WIDTH:
                at, x = self.bottom + 56 + 16 * i, self.left - 20.0
            self.dots.append((x + 20, at - 4, css, name))
            self.text(x + 30, at, name, size=11)

    def _css(self, name: str, i: int) -> str:
        """Returns the style class of a series: the page's family has its own colour."""
        if not name.startswith("flashsmith"):
            return f"line-{i % 6}"
        return "ours" if f" {self.group.family}," in name else "other-family"


def sweep_lines(group: Group, width: int = WIDTH) -> Plot:
    """Draws TFLOP/s by sequence length."""
    found = [list(points.values()) for points in group.series.values()]
    lengths = sorted({length for points in group.series.values() for length in points})
    rates = [[time.tflops for time in times] for times in found]
    top, bottom, highest = 14, 290, max(map(max, rates))
    step = next(each for each in (10, 20, 50, 100, 200, 500, 1000) if highest / each <= 6)
    maximum = math.ceil(highest / step) * step
    said = (f"{n}: {min(r):.0f} to {max(r):.0f}" for n, r in zip(group.series, rates, strict=True))
    plot = Plot(group, width, bottom, "TFLOP/s by sequence length", "; ".join(said))
    span = (plot.right - plot.left - 40) / max(len(lengths) - 1, 1)
    xs = {n: plot.left + 20 + i * span for i, n in enumerate(lengths)}

    def up(rate: float) -> float:
        return bottom - rate / maximum * (bottom - top)

    ticks = {str(tick): up(tick) for tick in range(0, maximum + 1, step)}
    plot.axes(top, "sequence length", {str(n): x for n, x in xs.items()}, ticks, grid=False)
    plot.series(lambda t: (xs[t.workload.problem.seq_len_k], up(t.tflops)), joined=True)
    return plot


def _log_scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Returns a logarithmic scale from the minimum of the values to the maximum."""
    low, high = min(values), max(values)
    return lambda x: start + math.log(x / low) / math.log(high / low) * (end - start)


def roofline(group: Group, ceiling: dict[str, float], width: int = WIDTH) -> Plot:
    """Draws TFLOP/s over FLOP per byte of DRAM traffic on logarithmic axes, with the measured rates
    of a copy and of a large matrix product."""
    matmul, copy = ceiling["matmul_tflops"], ceiling["copy_gb_per_s"]
    ridge = matmul * 1e3 / copy
    own = [(kernel.number, kernel.time) for kernel in group.kernels if kernel.time]
    times = [time for found in group.series.values() for time in found.values()]
    times += [time for _, time in own]
    intensities = [time.workload.intensity for time in times]
    rates = [time.tflops for time in times]
    low_x, high_x = min([ridge / 4, *intensities]) / 1.3, max([ridge * 4, *intensities]) * 1.3
    low_y, high_y = min([matmul / 10, *rates]) / 1.3, max([matmul, *rates]) * 1.5
    said = f"cuBLAS {matmul:.0f} TFLOP/s, copy {copy:.0f} GB/s"
    if min(intensities) > ridge:
        said += f"; all points lie right of the ridge at {ridge:.0f} FLOP a byte"
    top, bottom = 10, 330
    plot = Plot(group, width, bottom, "Roofline", said)
    across = _log_scale((low_x, high_x), plot.left, plot.right)
    up = _log_scale((low_y, high_y), bottom, top)
    exponents = range(math.ceil(math.log2(low_x)), math.floor(math.log2(high_x)) + 1, 2)
    ticks = [n for n in (10, 20, 50, 100, 200, 500, 1000, 2000) if low_y < n < high_y]
    xs = {str(2**exponent): across(2**exponent) for exponent in exponents}
    plot.axes(top, "FLOP a byte of Q, K, V, O", xs, {str(n): up(n) for n in ticks}, grid=True)
    start = max(low_x, low_y * 1e3 / copy)
    corner = across(ridge), up(matmul)
    plot.lines.append(([(across(start), up(start * copy / 1e3)), corner], "roof"))
    plot.lines.append(([corner, (across(high_x), corner[1])], "rate"))
    rate = f"cuBLAS, 8192\N{SUPERSCRIPT THREE}: {matmul:.0f}"
    plot.text(plot.left + 4, corner[1] - 6, rate, "quiet")

    def place(time: Time) -> Point:
        return across(time.workload.intensity), up(time.tflops)

    _number_kernels(plot, place, own)
    plot.series(place, joined=False)
    return plot


def _number_kernels(
    plot: Plot, place: Callable[[Time], Point], own: Sequence[tuple[int, Time]]
) -> None:
    """Draws the page's kernels with their numbers to the left; numbers that would touch are moved
    apart and connected to their dots."""
    at = -math.inf
    for number, time in sorted(own, key=lambda each: -each[1].tflops):
        x, y = place(time)
        at = max(at + _MIN_GAP, y)
        plot.lines.append(([(x, y), (x - 22, at)], "tie"))
        tip = f"kernel {number}, {time.name}: {time.tflops:.1f} TFLOP/s"
        plot.dots.append((x, y, "ours", tip))
        plot.text(x - 25, at + 4, str(number), "strong", "end", 11)
