"""The charts of many measurements: rates over sequence lengths, and under the card's limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from flashsmith.report.charts import WIDTH
from flashsmith.report.model import Group
from flashsmith.report.results import Time
from flashsmith.report.svg import Svg

_LEFT = 62
_NAMES = 250  # of the series, to the right; below where there is no room
_LEAST_GAP = 13  # px between the numbers of kernels


def _css(name: str, i: int, group: Group) -> str:
    """The family of the page in its colour, the others in colours of their own."""
    if not name.startswith("flashsmith"):
        return f"line-{i % 6}"
    return "ours" if f" {group.family.name}," in name else "other-family"


def _right_of(width: int) -> int:
    return width - _NAMES if width == WIDTH else width - 10


def _height(bottom: float, n_series: int, width: int) -> float:
    """With the axis' names, and those of the series where they stand below."""
    return bottom + 40 + (0 if width == WIDTH else 16 * n_series + 4)


def sweep_lines(group: Group, width: int = WIDTH) -> Markup:
    """TFLOP/s by sequence length."""
    series = group.series
    lengths = sorted({length for points in series.values() for length in points})
    rates = [time.tflops for points in series.values() for time in points.values()]
    left, top, right, bottom = _LEFT, 14, _right_of(width), 290
    step = _nice_step(max(rates))
    most = math.ceil(max(rates) / step) * step
    svg = Svg(
        width,
        _height(bottom, len(series), width),
        f"TFLOP/s by sequence length, {group.title}",
        "; ".join(
            f"{name}: {min(t.tflops for t in points.values()):.0f} to "
            f"{max(t.tflops for t in points.values()):.0f}"
            for name, points in series.items()
        ),
    )
    for tick in range(0, most + 1, step):
        y = bottom - tick / most * (bottom - top)
        svg.line([(left, y), (right, y)], "grid")
        svg.text(left - 6, y + 4, str(tick), "quiet", anchor="end")
    svg.vertical_text(14, (top + bottom) / 2, "TFLOP/s", "quiet")
    span = max(len(lengths) - 1, 1)
    xs = {n: left + 20 + i / span * (right - left - 40) for i, n in enumerate(lengths)}
    for length, x in xs.items():
        svg.text(x, bottom + 18, str(length), "quiet", anchor="middle")
    svg.text((left + right) / 2, bottom + 36, "sequence length", "quiet", anchor="middle")
    ends = []
    for i, (name, points) in enumerate(series.items()):
        css = _css(name, i, group)
        times = [points[n] for n in sorted(points)]
        placed = [
            (xs[t.workload.problem.seq_len_k], bottom - t.tflops / most * (bottom - top))
            for t in times
        ]
        svg.line(placed, f"{css} series")
        for (x, y), time in zip(placed, times, strict=True):
            svg.dot(x, y, 4, css, f"{time.name}: {time.tflops:.1f} TFLOP/s")
        ends.append((placed[-1][1], name, css))
    _label_ends(svg, width, bottom, ends)
    return svg.markup()


class _Plane:
    """Both axes logarithmic: FLOP a byte across, TFLOP/s up."""

    left, top, bottom = _LEFT, 10, 330

    def __init__(self, width: int, times: Sequence[Time], matmul: float, ridge: float) -> None:
        self.right = _right_of(width)
        xs = [time.workload.intensity for time in times]
        ys = [time.tflops for time in times]
        self.low_x, self.high_x = min([ridge / 4, *xs]) / 1.3, max([ridge * 4, *xs]) * 1.3
        self.low_y, self.high_y = min([matmul / 10, *ys]) / 1.3, max([matmul, *ys]) * 1.5

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.low_x) / math.log(self.high_x / self.low_x)
        up = math.log(y / self.low_y) / math.log(self.high_y / self.low_y)
        return (
            self.left + across * (self.right - self.left),
            self.bottom - up * (self.bottom - self.top),
        )

    def draw_axes(self, svg: Svg) -> None:
        first, last = math.ceil(math.log2(self.low_x)), math.floor(math.log2(self.high_x))
        for exponent in range(first, last + 1, 2):
            x, _ = self.place(2**exponent, self.low_y)
            svg.line([(x, self.top), (x, self.bottom)], "grid")
            svg.text(x, self.bottom + 18, str(2**exponent), "quiet", anchor="middle")
        for tick in (10, 20, 50, 100, 200, 500, 1000, 2000):
            if not self.low_y < tick < self.high_y:
                continue
            _, y = self.place(self.low_x, tick)
            svg.line([(self.left, y), (self.right, y)], "grid")
            svg.text(self.left - 6, y + 4, str(tick), "quiet", anchor="end")
        middle = (self.left + self.right) / 2
        svg.text(middle, self.bottom + 36, "FLOP a byte of Q, K, V, O", "quiet", "middle")
        svg.vertical_text(14, (self.top + self.bottom) / 2, "TFLOP/s", "quiet")


def roofline(group: Group, ceiling: dict[str, float], width: int = WIDTH) -> Markup:
    """TFLOP/s over FLOP per byte of DRAM traffic, with the rates of a copy and of a large matrix
    product that were measured with them."""
    matmul, copy = ceiling["matmul_tflops"], ceiling["copy_gb_per_s"]
    ridge = matmul * 1e3 / copy
    series = group.series
    own = [(kernel.number, kernel.time) for kernel in group.kernels if kernel.time]
    times = [time for found in series.values() for time in found.values()]
    times += [time for _, time in own]
    plane = _Plane(width, times, matmul, ridge)
    rates = f"cuBLAS {matmul:.0f} TFLOP/s, copy {copy:.0f} GB/s"
    at_right = all(time.workload.intensity > ridge for time in times)
    svg = Svg(
        width,
        _height(plane.bottom, len(series), width),
        f"Roofline, {group.title}",
        f"{rates}; all points lie right of the ridge at {ridge:.0f} FLOP a byte"
        if at_right
        else rates,
    )
    plane.draw_axes(svg)
    start = max(plane.low_x, plane.low_y * 1e3 / copy)
    corner = plane.place(ridge, matmul)
    svg.line([plane.place(start, start * copy / 1e3), corner], "roof")
    svg.line([corner, plane.place(plane.high_x, matmul)], "rate")
    svg.text(
        plane.left + 4, corner[1] - 6, f"cuBLAS, 8192\N{SUPERSCRIPT THREE}: {matmul:.0f}", "quiet"
    )
    ends = []
    for i, (name, found) in enumerate(series.items()):
        css = _css(name, i, group)
        for time in found.values():
            x, y = plane.place(time.workload.intensity, time.tflops)
            seq_len = time.workload.problem.seq_len_k
            svg.dot(x, y, 4, css, f"{time.name}, {seq_len}: {time.tflops:.1f} TFLOP/s")
        ends.append((y, name, css))
    _number_kernels(svg, plane, own)
    _label_ends(svg, width, plane.bottom, ends)
    return svg.markup()


def _number_kernels(svg: Svg, plane: _Plane, own: Sequence[tuple[int, Time]]) -> None:
    """The page's kernels, each with its number to the left; numbers that would touch are moved
    apart, and tied to their dots."""
    at = -math.inf
    for number, time in sorted(own, key=lambda each: -each[1].tflops):
        x, y = plane.place(time.workload.intensity, time.tflops)
        at = max(at + _LEAST_GAP, y)
        svg.line([(x, y), (x - 22, at)], "tie")
        svg.dot(x, y, 4, "ours", f"kernel {number}, {time.name}: {time.tflops:.1f} TFLOP/s")
        svg.text(x - 25, at + 4, str(number), "strong", anchor="end", size=11)


def _label_ends(
    svg: Svg, width: int, bottom: float, ends: Sequence[tuple[float, str, str]]
) -> None:
    """Names beside the last points, moved apart where they would touch; or below the axis."""
    at, x = -math.inf, _right_of(width) - 8.0
    for i, (y, name, css) in enumerate(sorted(ends)):
        at = max(at + 15, y + 4)
        if width < WIDTH:
            at, x = bottom + 56 + 16 * i, _LEFT - 20.0
        svg.dot(x + 20, at - 4, 4, css, name)
        svg.text(x + 30, at, name, size=11)


def _nice_step(most: float) -> int:
    """A round distance between at most about six ticks."""
    return next(step for step in (10, 20, 50, 100, 200, 500, 1000) if most / step <= 6)
