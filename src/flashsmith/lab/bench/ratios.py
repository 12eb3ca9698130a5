"""The ratio of our rate to the best peer's, for each shape and as one mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from flashsmith.lab.bench.markdown import table
from flashsmith.lab.bench.panels import OURS, Panel, panels
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.results import TimeRow


def ratios(rows: Sequence[TimeRow]) -> dict[Panel, dict[int, TimeRow]]:
    """Returns our best row for each (dtype, d_head, mask) and length with a peer, sorted."""
    found = {
        panel: {
            seq_len: by_name[OURS]
            for seq_len, by_name in sorted(by_length.items())
            if OURS in by_name and by_name[OURS].ratio_to_best_peer is not None
        }
        for panel, by_length in sorted(panels(rows).items())
    }
    return {panel: by_length for panel, by_length in found.items() if by_length}


def ratio_table(rows: Sequence[TimeRow]) -> str:
    """Returns a table with a line for each (dtype, d_head, mask) and a column for each length; ""
    if there is no ratio."""
    found = ratios(rows)
    if not found:
        return ""
    lengths = _lengths(found)
    body = [
        [
            _label(panel, found),
            *(_ratio(by_length.get(length), 2) for length in lengths),
            _mean(by_length.values()),
        ]
        for panel, by_length in found.items()
    ]
    return table(["ratio to the best peer", *map(str, lengths), "geometric mean"], body)


def rate_table(rows: Sequence[TimeRow]) -> str:
    """Returns a table with three lines for each (dtype, d_head, mask): the best peer's TFLOP/s,
    ours, and the ratio."""
    found, everything = ratios(rows), panels(rows)
    lengths = _lengths(found)
    body: list[list[str]] = []
    for panel, by_length in found.items():
        peers, ours = [], []
        for length in lengths:
            row = by_length.get(length)
            peers.append(_best_peer(everything[panel].get(length, {})) if row else "-")
            ours.append(f"{row.tflops:.0f}" if row else "-")
        ratio = [_ratio(by_length.get(length), 3) for length in lengths]
        label = _label(panel, found).replace("d ", "").replace(",", "")
        body.append([label, "best peer", *peers, ""])
        body.append(["", "flashsmith", *ours, ""])
        body.append(["", "ratio", *ratio, _mean(by_length.values())])
    return table(["d_head, mask", "", *map(str, lengths), "mean"], body)


def ratio_sentence(rows: Sequence[TimeRow]) -> str:
    """Returns a sentence with the geometric mean over all shapes, and the minimum with its
    shape."""
    ours = [row for by_length in ratios(rows).values() for row in by_length.values()]
    minimum = min(ours, key=lambda row: row.ratio_to_best_peer or 0)
    below = sum((row.ratio_to_best_peer or 0) < 1 for row in ours)
    return (
        f"Geometric mean of {len(ours)} shapes: {_mean(ours)}; least: "
        f"{_ratio(minimum, 3)} ({minimum.workload}); {below} below 1."
    )


def _best_peer(by_name: dict[str, TimeRow]) -> str:
    peers = [row for name, row in by_name.items() if name != OURS]
    best = max(peers, key=lambda row: row.tflops or 0)
    peer = PEERS.get(best.kernel)
    return f"{best.tflops:.0f} {peer.short_title if peer else best.kernel}"


def _lengths(found: dict[Panel, dict[int, TimeRow]]) -> list[int]:
    return sorted({length for by_length in found.values() for length in by_length})


def _label(panel: Panel, among: dict[Panel, dict[int, TimeRow]]) -> str:
    dtype, d_head, mask = panel
    one_dtype = len({dtype for dtype, _, _ in among}) == 1
    return f"d {d_head}, {mask}" if one_dtype else f"{dtype}, d {d_head}, {mask}"


def _ratio(row: TimeRow | None, digits: int) -> str:
    return "-" if row is None else f"{row.ratio_to_best_peer:.{digits}f}"


def _mean(ours: Iterable[TimeRow]) -> str:
    return f"**{geometric_mean(row.ratio_to_best_peer or 0 for row in ours):.3f}**"
