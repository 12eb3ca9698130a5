"""The measurements of a benchmark, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flashsmith.configs import Workload
from flashsmith.lab.bench.markdown import table
from flashsmith.lab.bench.panels import OURS, panels, series, title_of
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.ratios import ratio_sentence, ratio_table
from flashsmith.lab.bench.results import (
    BACK_TO_BACK,
    IN_TURN,
    OK,
    CountRow,
    Row,
    TimeRow,
)
from flashsmith.runtime.counters import explain_headings, table_of, with_conflicts

REGIME_TITLES = {IN_TURN: "in turn, L2 flushed", BACK_TO_BACK: "back to back"}


def times_markdown(rows: Sequence[TimeRow], environment: Mapping[str, object]) -> str:
    """Returns TFLOP/s by shape and candidate, our best kernel of each shape, and what did not run.

    Args:
        rows: Rows of one regime, at least one.
    """
    regime = REGIME_TITLES[rows[0].regime]
    parts = [f"# Forward attention, {regime}", _conditions(environment)]
    if ratios := ratio_table(rows):
        parts += ["## Ratio to the best peer", ratios, ratio_sentence(rows)]
    names = series(rows)
    for panel, by_length in panels(rows).items():
        body = [[length, *_rates(found, names)] for length, found in sorted(by_length.items())]
        parts += [f"## {title_of(panel)}, TFLOP/s", table(["seq_len", *names], body)]
        best = [
            [
                length,
                f"`{row.kernel}`",
                f"{row.ms:.4g} ({row.ms_p20:.4g} to {row.ms_p80:.4g})",
                f"{row.tflops:.1f}",
                _percent(row.share_of_ceiling),
                _percent(row.ratio_to_best_peer),
                row.sm_clock_mhz,
            ]
            for length, found in sorted(by_length.items())
            if (row := found.get(OURS))
        ]
        if best:
            headers = [
                *("seq_len", "best kernel", "ms (20% to 80%)", "TFLOP/s"),
                *("of ceiling", "of best peer", "SM MHz"),
            ]
            parts.append(table(headers, best))
    return "\n\n".join([*parts, *_not_run(rows)]) + "\n"


def counts_markdown(rows: Sequence[CountRow], environment: Mapping[str, object]) -> str:
    """Returns the emulator's counts by shape and kernel."""
    parts = ["# Forward attention: emulator counts, no times", _conditions(environment)]
    by_workload: dict[Workload, list[CountRow]] = {}
    for row in rows:
        if row.status == OK:
            by_workload.setdefault(row.workload, []).append(row)
    for workload, counted in by_workload.items():
        headings, cells = table_of([row.counts for row in counted])
        body = [[f"`{row.kernel}`", *found] for row, found in zip(counted, cells, strict=True)]
        parts += [f"## {workload}", table(["kernel", *headings], body)]
        parts.append(f"{explain_headings(headings)}.")
    return "\n\n".join([*parts, *_not_run(rows)]) + "\n"


def bank_conflicts(row: CountRow) -> int | None:
    """Returns the number of wavefronts of shared memory that bank conflicts add."""
    return with_conflicts(row.counts).get("bank_conflicts")


def _rates(found: Mapping[str, TimeRow], names: Iterable[str]) -> list[str]:
    """Returns a rate for each name, the highest in bold."""
    best = max(row.tflops or 0 for row in found.values())
    cells = []
    for name in names:
        tflops = found[name].tflops if name in found else None
        text = "-" if tflops is None else f"{tflops:.1f}"
        cells.append(f"**{text}**" if tflops == best else text)
    return cells


def _conditions(environment: Mapping[str, object]) -> str:
    plain = [f"{k} {v}" for k, v in environment.items() if isinstance(v, str)]
    lines = [f"Measured with: {', '.join(plain)}."]
    builds = environment.get("peers")
    if isinstance(builds, Mapping) and builds:
        peers = (f"{PEERS[name].full_title}: {build}" for name, build in builds.items())
        lines.append(f"Peers: {'; '.join(peers)}.")
    ceilings = environment.get("ceilings")
    if isinstance(ceilings, Mapping):
        lines += [
            f"Ceilings in the same run: {dtype} matrix product {found['matmul_tflops']:.0f} "
            f"TFLOP/s, copy {found['copy_gb_per_s']:.0f} GB/s."
            for dtype, found in ceilings.items()
        ]
    return "\n".join(lines)


def _not_run(rows: Sequence[Row]) -> list[str]:
    body = [
        [f"`{row.kernel}`", row.workload, row.status, row.reason]
        for row in rows
        if row.status != OK
    ]
    if not body:
        return []
    return ["## Without a number", table(["candidate", "shape", "status", "reason"], body)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
