"""The charts of the page, as SVG. Each says in words what it shows; the page has the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from flashsmith.report.banks import BANKS, PHASE_ROWS, BankMap
from flashsmith.report.budget import UNITS
from flashsmith.report.measured import Time
from flashsmith.report.model import Group, KernelReport
from flashsmith.report.sass import CLASSES
from flashsmith.report.svg import Svg, text_width

WIDTH = 920
_ROW = 30
_LABEL = 46  # left of the bars: the kernel's number
OURS = "best of this run's flashsmith kernels"


def time_bars(group: Group) -> Markup:
    """Time by kernel; the part that the step before took more is drawn as an outline."""
    measured = [kernel for kernel in group.kernels if kernel.time]
    times = [kernel.time.ms for kernel in measured if kernel.time]
    peers = sorted(group.peers, key=lambda time: time.ms)
    longest = max([*times, *(peer.ms for peer in peers)])
    left = max([_LABEL, *(text_width(peer.name) + 12 for peer in peers)])
    scale = (WIDTH - left - 270) / longest
    svg = Svg(
        WIDTH,
        _ROW * (len(measured) + len(peers)) + 8,
        "Time by kernel",
        "; ".join(f"kernel {k.number}: {k.time.ms:.3f} ms" for k in measured if k.time),
    )
    previous = None
    for i, kernel in enumerate(measured):
        assert kernel.time
        y, ms = 4 + i * _ROW, kernel.time.ms
        svg.text(left - 8, y + 16, str(kernel.number), anchor="end")
        svg.rect(left, y, ms * scale, 22, "ours", kernel.name)
        end = ms
        if previous and previous > ms:
            svg.rect(left + ms * scale, y, (previous - ms) * scale, 22, "gone")
            end = previous
        svg.text(left + end * scale + 6, y + 16, _time_label(group, kernel.time))
        previous = ms
    for i, peer in enumerate(peers, len(measured)):
        y = 4 + i * _ROW
        svg.text(left - 8, y + 16, peer.name, anchor="end")
        svg.rect(left, y, peer.ms * scale, 22, "peer", peer.name)
        svg.text(left + peer.ms * scale + 6, y + 16, _time_label(group, peer))
    return svg.markup()


def _time_label(group: Group, time: Time) -> str:
    share = group.of_baseline(time)
    of_baseline = "" if share is None else f", {100 * share:.1f}% of FA2"
    return f"{time.ms:.3f} ms, {time.tflops:.1f} TFLOP/s{of_baseline}"


def busy_bars(kernels: Sequence[KernelReport]) -> Markup:
    """For each kernel, the share of its time that each unit is busy at least."""
    shown = [kernel for kernel in kernels if kernel.busy_share]
    bar, gap = 13, 14
    height = len(UNITS) * bar + gap
    left, right = _LABEL, 200
    # A bound above the time would mean a clock above the recorded one.
    most = max(1.0, *(share for kernel in shown for share in kernel.busy_share.values()))
    scale = (WIDTH - left - right) / most
    svg = Svg(
        WIDTH,
        height * len(shown) + 26,
        "Least busy time of each unit, as a share of the measured time",
        "; ".join(
            f"kernel {k.number}: {k.busiest} {100 * k.busy_share[k.busiest]:.0f}%"
            for k in shown
            if k.busiest
        ),
    )
    bottom = height * len(shown)
    for tick in range(0, 101, 25):
        x = left + tick / 100 * scale
        svg.line([(x, 0), (x, bottom)], "time-line" if tick == 100 else "grid")
        svg.text(x, bottom + 16, f"{tick}%", "quiet", anchor="middle")
    for i, kernel in enumerate(shown):
        top = i * height
        svg.text(left - 8, top + height / 2, str(kernel.number), anchor="end")
        for j, (unit, share) in enumerate(kernel.busy_share.items()):
            y = top + 4 + j * bar
            css = f"unit-{list(UNITS).index(unit)}"
            svg.rect(left, y, share * scale, bar - 2, css, f"{kernel.name}: {unit}")
            label = f"{unit} {100 * share:.0f}%"
            weight = "strong" if unit == kernel.busiest else ""
            svg.text(left + share * scale + 5, y + bar - 3, label, weight, size=11)
    return svg.markup()


def bank_chart(bank_map: BankMap) -> Markup:
    """32 banks across, the eight rows of one phase down; a colour and a number a wavefront."""
    cell, left, top = 26, 52, 34
    kind = "with" if bank_map.swizzled else "without"
    plural = "s" if bank_map.wavefronts > 1 else ""
    svg = Svg(
        left + BANKS * cell + 4,
        top + PHASE_ROWS * cell + 4,
        f"Bank map {kind} the swizzle",
        f"One phase of ldmatrix reads eight rows in {bank_map.wavefronts} wavefront{plural}",
    )
    for bank in range(0, BANKS, 4):
        svg.text(left + (bank + 0.5) * cell, top - 8, str(bank), "quiet", anchor="middle")
    svg.text(left - 8, top - 8, "bank", "quiet", anchor="end")
    for i, row in enumerate(bank_map.rows):
        y = top + i * cell
        svg.text(left - 8, y + 17, f"row {i}", "quiet", anchor="end")
        for bank, wavefront in enumerate(row):
            x = left + bank * cell
            if wavefront is None:
                svg.rect(x, y, cell - 2, cell - 2, "empty")
                continue
            tip = f"row {i}, bank {bank}: wavefront {wavefront + 1}"
            svg.rect(x, y, cell - 2, cell - 2, f"wave-{wavefront}", tip)
            svg.text(x + cell / 2 - 1, y + 17, str(wavefront + 1), "on-wave", anchor="middle")
    return svg.markup()


def mix_bars(kernels: Sequence[KernelReport]) -> Markup:
    """The main loop's instructions by class, stacked."""
    loops = [(k, k.code.loop) for k in kernels if k.code and k.code.loop]
    scale = (WIDTH - _LABEL - 60) / max(loop.total for _, loop in loops)
    svg = Svg(
        WIDTH,
        _ROW * len(loops) + 4,
        "Instructions of the main loop by class",
        "; ".join(f"kernel {k.number}: {loop.total}" for k, loop in loops),
    )
    for i, (kernel, loop) in enumerate(loops):
        x, y = float(_LABEL), 2 + i * _ROW
        svg.text(x - 8, y + 16, str(kernel.number), anchor="end")
        for j, (name, n) in enumerate(loop.classes.items()):
            width = n * scale
            svg.rect(x, y, width - 1, 22, f"mix-{j}", f"{name}: {n}")
            if width > text_width(str(n), 11) + 6:
                svg.text(x + width / 2, y + 15, str(n), f"on-mix-{j}", anchor="middle", size=11)
            x += width
        svg.text(x + 6, y + 16, str(loop.total), "strong")
    return svg.markup()


def mix_legend() -> list[tuple[str, str, str]]:
    """(style class, name, meaning) of the classes in ``mix_bars``."""
    return [(f"mix-{i}", name, meaning) for i, (name, meaning) in enumerate(CLASSES.items())]


def unit_legend() -> list[tuple[str, str, str]]:
    return [(f"unit-{i}", name, meaning) for i, (name, meaning) in enumerate(UNITS.items())]


def sweep_series(group: Group) -> dict[str, dict[int, Time]]:
    """By candidate and length: the peers, the best flashsmith kernel, and the group's kernels if
    they are few."""
    series: dict[str, dict[int, Time]] = {}
    best: dict[int, Time] = {}
    for time in group.sweep:
        length = time.shape.seq_len
        if isinstance(time.candidate, str):
            series.setdefault(time.name, {})[length] = time
        elif length not in best or time.ms < best[length].ms:
            best[length] = time
    return series | ({OURS: best} if best else {})


def sweep_lines(group: Group) -> Markup:
    """TFLOP/s by sequence length."""
    series = sweep_series(group)
    lengths = sorted({length for points in series.values() for length in points})
    rates = [time.tflops for points in series.values() for time in points.values()]
    left, top, right, bottom = 50, 14, WIDTH - 250, 290
    step = _nice_step(max(rates))
    most = math.ceil(max(rates) / step) * step
    svg = Svg(
        WIDTH,
        bottom + 40,
        "TFLOP/s by sequence length",
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
    span = max(len(lengths) - 1, 1)
    xs = {n: left + 20 + i / span * (right - left - 40) for i, n in enumerate(lengths)}
    for length, x in xs.items():
        svg.text(x, bottom + 18, str(length), "quiet", anchor="middle")
    svg.text((left + right) / 2, bottom + 36, "sequence length", "quiet", anchor="middle")
    ends = []
    for i, (name, points) in enumerate(series.items()):
        css = "ours" if name == OURS else f"line-{i % 6}"
        placed = [
            (xs[n], bottom - time.tflops / most * (bottom - top))
            for n, time in sorted(points.items())
        ]
        svg.line(placed, f"{css} series")
        for (x, y), time in zip(placed, (t for _, t in sorted(points.items())), strict=True):
            svg.dot(x, y, 4, css, f"{time.name}: {time.tflops:.1f} TFLOP/s")
        ends.append((placed[-1][1], name, css))
    _label_ends(svg, right - 8, ends)
    return svg.markup()


def roofline(group: Group, ceiling: dict[str, float]) -> Markup:
    """TFLOP/s over FLOP per byte of DRAM traffic, under the ceilings measured with it."""
    matmul, copy = ceiling["matmul_tflops"], ceiling["copy_gb_per_s"]
    ridge = matmul * 1e3 / copy
    series = sweep_series(group)
    if own := {str(k.number): k.time for k in group.kernels if k.time}:
        series |= {f"kernel {name}": {0: time} for name, time in own.items()}
    points = [time for found in series.values() for time in found.values()]
    xs = [time.shape.flop_per_byte for time in points]
    low_x, high_x = min([ridge / 4, *xs]) / 1.3, max([ridge * 4, *xs]) * 1.3
    low_y = min([matmul / 10, *(time.tflops for time in points)]) / 1.3
    high_y = matmul * 1.5
    left, top, right, bottom = 50, 10, WIDTH - 250, 330

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(y / low_y) / math.log(high_y / low_y)
        return left + across * (right - left), bottom - up * (bottom - top)

    svg = Svg(
        WIDTH,
        bottom + 40,
        "Roofline",
        f"Matrix product {matmul:.0f} TFLOP/s, copy {copy:.0f} GB/s; all points lie right of the "
        f"ridge at {ridge:.0f} FLOP a byte"
        if min(xs) > ridge
        else f"Matrix product {matmul:.0f} TFLOP/s, copy {copy:.0f} GB/s",
    )
    for exponent in range(math.ceil(math.log2(low_x)), math.floor(math.log2(high_x)) + 1, 2):
        x, _ = place(2**exponent, low_y)
        svg.line([(x, top), (x, bottom)], "grid")
        svg.text(x, bottom + 18, str(2**exponent), "quiet", anchor="middle")
    for tick in (t for t in (10, 20, 50, 100, 200, 500, 1000, 2000) if low_y < t < high_y):
        _, y = place(low_x, tick)
        svg.line([(left, y), (right, y)], "grid")
        svg.text(left - 6, y + 4, str(tick), "quiet", anchor="end")
    svg.text((left + right) / 2, bottom + 36, "FLOP a byte of Q, K, V, O", "quiet", "middle")
    start = max(low_x, low_y * 1e3 / copy)
    roof = [place(start, start * copy / 1e3), place(ridge, matmul), place(high_x, matmul)]
    svg.line(roof, "roof")
    svg.text(right - 4, roof[-1][1] - 6, f"matrix product {matmul:.0f}", "quiet", anchor="end")
    ends = []
    for i, (name, found) in enumerate(series.items()):
        css = "ours" if name == OURS or name.startswith("kernel ") else f"line-{i % 6}"
        for time in found.values():
            x, y = place(time.shape.flop_per_byte, time.tflops)
            svg.dot(x, y, 4, css, f"{time.name}, {time.shape.seq_len}: {time.tflops:.1f} TFLOP/s")
        ends.append((y, name, css))
    _label_ends(svg, right - 8, ends)
    return svg.markup()


def _label_ends(svg: Svg, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the last points, moved apart where they would touch."""
    at = -math.inf
    for y, name, css in sorted(ends):
        at = max(at + 15, y + 4)
        svg.dot(x + 20, at - 4, 4, css, name)
        svg.text(x + 30, at, name, size=11)


def _nice_step(most: float) -> int:
    """A round distance between at most about six ticks."""
    return next(step for step in (10, 20, 50, 100, 200, 500, 1000) if most / step <= 6)
