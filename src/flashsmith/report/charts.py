"""The bar charts of the page, as SVG. Each says in words what it shows; tables have the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from flashsmith.report.banks import BANKS, PHASE_ROWS, BankMap
from flashsmith.report.family import UNITS
from flashsmith.report.model import Group, KernelReport
from flashsmith.report.results import Time
from flashsmith.report.sass import CLASSES
from flashsmith.report.svg import FONT, Svg, text_width

WIDTH = 920
NARROW = 360  # of the same charts on a phone, whose numbers are in the tables beside them
_ROW = 30
_LABEL = 46  # left of the bars: the kernel's number


def time_bars(group: Group, width: int = WIDTH) -> Markup:
    """Time by kernel; the part that the step before took more is drawn as an outline."""
    measured = [kernel for kernel in group.kernels if kernel.time]
    times = [kernel.time.ms for kernel in measured if kernel.time]
    peers = sorted(group.peers, key=lambda time: time.ms)
    longest = max([*times, *(peer.ms for peer in peers)])
    left = max([_LABEL, *(text_width(peer.name) + 12 for peer in peers)])
    scale = (width - left - (270 if width == WIDTH else 70)) / longest
    svg = Svg(
        width,
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
        svg.text(left + end * scale + 6, y + 16, _time_label(group, kernel.time, width))
        previous = ms
    for i, peer in enumerate(peers, len(measured)):
        y = 4 + i * _ROW
        svg.text(left - 8, y + 16, peer.name, anchor="end")
        svg.rect(left, y, peer.ms * scale, 22, "peer", peer.name)
        svg.text(left + peer.ms * scale + 6, y + 16, _time_label(group, peer, width))
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
    most = max(1.0, *(share for kernel in shown for share in kernel.busy_share.values()))
    scale = (width - left - right) / most
    svg = Svg(
        width,
        height * len(shown) + 26,
        "Least busy time of each unit, as a share of the measured time",
        "; ".join(
            f"kernel {k.number}: {k.busiest} {100 * k.busy_share[k.busiest]:.0f}%"
            for k in shown
            if k.busiest
        ),
    )
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


def memory_bar(kernel: KernelReport, width: int = WIDTH) -> Markup:
    """A block's shared memory, part by part; parts that are too small to see have their names in
    the table alone."""
    total = sum(region.bytes for region in kernel.regions)
    scale = width / total
    svg = Svg(
        width,
        34,
        "Shared memory of a block",
        ", ".join(f"{region.name} {region.bytes} bytes" for region in kernel.regions),
    )
    x = 0.0
    for i, region in enumerate(kernel.regions):
        part = region.bytes * scale
        svg.rect(x, 4, part - 1, 26, f"mix-{i % 4}", f"{region.name}: {region.bytes} bytes")
        label = f"{region.name} {region.bytes / 1024:.0f} KiB"
        if part > text_width(label) + 6:
            svg.text(x + part / 2, 21, label, f"on-mix-{i % 4}", anchor="middle")
        x += part
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
        svg.text(
            left - 8,
            y + cell / 2 + 4,
            f"row {i}",
            "quiet",
            anchor="end",
            size=min(FONT, number_size + 2),
        )
        for bank, wavefront in enumerate(row):
            x = left + bank * cell
            if wavefront is None:
                svg.rect(x, y, cell - 2, cell - 2, "empty")
                continue
            tip = f"row {i}, bank {bank}: wavefront {wavefront + 1}"
            svg.rect(x, y, cell - 2, cell - 2, f"wave-{wavefront}", tip)
            svg.text(
                x + cell / 2 - 1,
                y + cell / 2 + number_size / 3,
                str(wavefront + 1),
                "on-wave",
                anchor="middle",
                size=number_size,
            )
    return svg.markup()


def mix_bars(kernels: Sequence[KernelReport], width: int = WIDTH) -> Markup:
    """The main loop's instructions by class, stacked."""
    loops = [(k, k.code.loop) for k in kernels if k.code and k.code.loop]
    left = _LABEL if width == WIDTH else _LABEL // 2
    scale = (width - left - 45) / max(loop.total for _, loop in loops)
    svg = Svg(
        width,
        _ROW * len(loops) + 4,
        "Instructions of the main loop by class",
        "; ".join(f"kernel {k.number}: {loop.total}" for k, loop in loops),
    )
    for i, (kernel, loop) in enumerate(loops):
        x, y = float(left), 2 + i * _ROW
        svg.text(x - 8, y + 16, str(kernel.number), anchor="end")
        for j, (name, n) in enumerate(loop.classes.items()):
            part = n * scale
            svg.rect(x, y, part - 1, 22, f"mix-{j}", f"{name}: {n}")
            if part > text_width(str(n), 11) + 6:
                svg.text(x + part / 2, y + 15, str(n), f"on-mix-{j}", anchor="middle", size=11)
            x += part
        svg.text(x + 6, y + 16, str(loop.total), "strong")
    return svg.markup()


def mix_legend(kernels: Sequence[KernelReport]) -> list[tuple[str, str, str]]:
    """(style class, name, meaning) of the classes in ``mix_bars``."""
    loops = [kernel.code.loop for kernel in kernels if kernel.code and kernel.code.loop]
    return [
        (f"mix-{i}", name, meaning)
        for i, (name, meaning) in enumerate(CLASSES.items())
        if any(loop.classes[name] for loop in loops)
    ]


def unit_legend(kernels: Sequence[KernelReport]) -> list[tuple[str, str, str]]:
    """As ``mix_legend``, of the units in ``busy_bars``."""
    return [
        (f"unit-{i}", name, meaning)
        for i, (name, meaning) in enumerate(UNITS.items())
        if any(name in kernel.busy_share for kernel in kernels)
    ]
