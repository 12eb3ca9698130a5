"""The bar charts of the page, as SVG. Each says in words what it shows; tables have the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from flashsmith.lab.report.banks import BANKS, PHASE_ROWS, BankMap
from flashsmith.lab.report.budget import UNITS
from flashsmith.lab.report.model import Group, KernelReport
from flashsmith.lab.report.results import Time
from flashsmith.lab.report.sass import CLASSES
from flashsmith.lab.report.svg import FONT, Svg, text_width

WIDTH = 920
NARROW = 360  # of the same charts on a phone, whose numbers are in the tables beside them
_Part = tuple[int, str, str]  # of a stack: its size, the text in it, and all about it
_ROW = 30
_LABEL = 46  # left of the bars: the kernel's number


def time_bars(group: Group, width: int = WIDTH) -> Markup:
    """Time by kernel; the part that the step before took more is drawn as an outline."""
    ours = [(str(k.number), k.time, "ours") for k in group.kernels if k.time]
    peers = [(time.name, time, "peer") for time in sorted(group.peers, key=lambda time: time.ms)]
    bars = [*ours, *peers]
    left = max([_LABEL, *(text_width(name) + 12 for name, *_ in peers)])
    room = width - left - (270 if width == WIDTH else 70)
    scale = room / max(time.ms for _, time, _ in bars)
    said = "; ".join(f"kernel {number}: {time.ms:.3f} ms" for number, time, _ in ours)
    svg = Svg(width, _ROW * len(bars) + 8, "Time by kernel", said)
    previous = 0.0
    for i, (label, time, css) in enumerate(bars):
        y, end = 4 + i * _ROW, time.ms
        svg.text(left - 8, y + 16, label, anchor="end")
        svg.rect(left, y, time.ms * scale, 22, css, time.name)
        if css == "ours":
            if previous > time.ms:
                svg.rect(left + time.ms * scale, y, (previous - time.ms) * scale, 22, "gone")
            end, previous = max(previous, time.ms), time.ms
        svg.text(left + end * scale + 6, y + 16, _time_label(group, time, width))
    return svg.markup()


def _time_label(group: Group, time: Time, width: int) -> str:
    if width < WIDTH:
        return f"{time.ms:.3f} ms"
    share = group.of_baseline(time)
    of_baseline = "" if share is None else f", {100 * share:.1f}% of FA2"
    return f"{time.ms:.3f} ms, {time.tflops:.1f} TFLOP/s{of_baseline}"


def busy_bars(kernels: Sequence[KernelReport], width: int = WIDTH) -> Markup:
    """For each kernel, the share of its time that each unit is busy at least."""
    shown = [kernel for kernel in kernels if kernel.busy_share]
    units = [unit for unit in UNITS if any(unit in kernel.busy_share for kernel in shown)]
    bar, gap = 13, 14
    height = len(units) * bar + gap
    left, right = (_LABEL, 200) if width == WIDTH else (_LABEL // 2, 150)
    # A bound above the time would mean a clock above the recorded one.
    maximum = max(1.0, *(share for kernel in shown for share in kernel.busy_share.values()))
    scale = (width - left - right) / maximum
    said = "; ".join(
        f"kernel {k.number}: {k.busiest} {100 * k.busy_share[k.busiest]:.0f}%"
        for k in shown
        if k.busiest
    )
    title = "Least busy time of each unit, as a share of the measured time"
    svg = Svg(width, height * len(shown) + 26, title, said)
    bottom, whole = height * len(shown), left + scale
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
            x = left + share * scale + 5
            if x <= whole + 2 and x + 1.1 * text_width(label, 11) >= whole - 4:  # bold is wider
                x = whole + 5  # beside the line of the measured time, not across it
            svg.text(x, y + bar - 3, label, weight, size=11)
    return svg.markup()


def _stack(svg: Svg, x: float, y: float, scale: float, parts: Iterable[_Part]) -> float:
    """Draws parts side by side, those that have room with a text; returns where they end."""
    for i, (size, label, tip) in enumerate(parts):
        part = size * scale
        svg.rect(x, y, part - 1, 24, f"mix-{i}", tip)
        if part > text_width(label) + 6:
            svg.text(x + part / 2, y + 16, label, f"on-mix-{i}", anchor="middle")
        x += part
    return x


def memory_bar(kernel: KernelReport, width: int = WIDTH) -> Markup:
    """Returns a block's shared memory, part by part; parts that are too small to see have their
    names in the table alone."""
    sizes = [(f"{region.name} {region.bytes} bytes", region) for region in kernel.regions]
    svg = Svg(width, 32, "Shared memory of a block", ", ".join(said for said, _ in sizes))
    scale = width / sum(region.bytes for region in kernel.regions)
    _stack(
        svg, 0, 4, scale,
        ((each.bytes, f"{each.name} {each.bytes / 1024:.0f} KiB", said) for said, each in sizes),
    )  # fmt: skip
    return svg.markup()


def bank_chart(bank_map: BankMap, reader: str, group: int, width: int = WIDTH) -> Markup:
    """32 banks across, the eight rows of one phase down; a colour and a number a wavefront.

    group: The number of the chart's group, so that a page names no two drawings alike.
    """
    cell, left, top = (26, 52, 34) if width == WIDTH else (9, 52, 34)
    number_size = 12 if width == WIDTH else 7
    kind = "with" if bank_map.swizzled else "without"
    plural = "s" if bank_map.wavefronts > 1 else ""
    svg = Svg(
        left + BANKS * cell + 4,
        top + PHASE_ROWS * cell + 4,
        f"Bank map {group} {kind} the swizzle",
        f"One phase of {reader} reads eight rows in {bank_map.wavefronts} wavefront{plural}",
    )
    for bank in range(0, BANKS, 4 if width == WIDTH else 8):
        svg.text(left + (bank + 0.5) * cell, top - 8, str(bank), "quiet", anchor="middle")
    svg.text(left - 8, top - 8, "bank", "quiet", anchor="end")
    for i, row in enumerate(bank_map.rows):
        y = top + i * cell
        size = min(FONT, number_size + 2)
        svg.text(left - 8, y + cell / 2 + 4, f"row {i}", "quiet", anchor="end", size=size)
        for bank, wavefront in enumerate(row):
            x = left + bank * cell
            if wavefront is None:
                svg.rect(x, y, cell - 2, cell - 2, "empty")
                continue
            tip = f"row {i}, bank {bank}: wavefront {wavefront + 1}"
            svg.rect(x, y, cell - 2, cell - 2, f"wave-{wavefront}", tip)
            centre = x + cell / 2 - 1, y + cell / 2 + number_size / 3
            svg.text(*centre, str(wavefront + 1), "on-wave", anchor="middle", size=number_size)
    return svg.markup()


def mix_bars(kernels: Sequence[KernelReport], width: int = WIDTH) -> Markup:
    """Returns the main loop's instructions by class, stacked."""
    loops = [(k.number, k.code.loop) for k in kernels if k.code and k.code.loop]
    left = _LABEL if width == WIDTH else _LABEL // 2
    scale = (width - left - 45) / max(loop.total for _, loop in loops)
    said = "; ".join(f"kernel {number}: {loop.total}" for number, loop in loops)
    svg = Svg(width, _ROW * len(loops) + 4, "Instructions of the main loop by class", said)
    for i, (number, loop) in enumerate(loops):
        y = 2 + i * _ROW
        svg.text(left - 8, y + 16, str(number), anchor="end")
        parts = ((n, str(n), f"{name}: {n}") for name, n in loop.classes.items())
        svg.text(_stack(svg, left, y, scale, parts) + 6, y + 16, str(loop.total), "strong")
    return svg.markup()


def mix_legend(kernels: Sequence[KernelReport]) -> list[tuple[str, str, str]]:
    """(style class, name, meaning) of the classes in ``mix_bars``."""
    loops = [kernel.code.loop for kernel in kernels if kernel.code and kernel.code.loop]
    return _legend("mix", CLASSES, lambda name: any(loop.classes[name] for loop in loops))


def unit_legend(kernels: Sequence[KernelReport]) -> list[tuple[str, str, str]]:
    """As ``mix_legend``, of the units in ``busy_bars``."""
    return _legend("unit", UNITS, lambda name: any(name in k.busy_share for k in kernels))


def _legend(
    css: str, meanings: Mapping[str, str], is_shown: Callable[[str], bool]
) -> list[tuple[str, str, str]]:
    named = enumerate(meanings.items())
    return [(f"{css}-{i}", name, meaning) for i, (name, meaning) in named if is_shown(name)]
