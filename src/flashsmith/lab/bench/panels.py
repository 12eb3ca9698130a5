"""Arranges rows of times for reading: by (dtype, d_head, mask), sequence length and candidate."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.lab.bench.results import KERNEL, OK, TimeRow

OURS = "flashsmith"  # the best of our kernels
Panel = tuple[str, int, str]  # dtype, d_head, mask


def panels(rows: Sequence[TimeRow]) -> dict[Panel, dict[int, dict[str, TimeRow]]]:
    """Returns the timed rows by (dtype, d_head, mask), sequence length, and peer or OURS.

    All rows must be of one regime, because times of two regimes are not compared.
    """
    found: dict[Panel, dict[int, dict[str, TimeRow]]] = {}
    for row in rows:
        if row.status != OK or row.ms is None:
            continue
        by_length = found.setdefault(row.workload.kind, {})
        candidates = by_length.setdefault(row.workload.problem.seq_len_q, {})
        name = OURS if row.kind == KERNEL else row.kernel
        best = candidates.get(name)
        if best is None or best.ms is None or row.ms < best.ms:
            candidates[name] = row
    return found


def series(rows: Sequence[TimeRow]) -> list[str]:
    """Returns the names in ``panels``: the peers in the order of their rows, then OURS."""
    names = dict.fromkeys(row.kernel for row in rows if row.kind != KERNEL and row.status == OK)
    has_ours = any(row.kind == KERNEL and row.status == OK for row in rows)
    return [*names, *([OURS] if has_ours else [])]


def title_of(panel: Panel) -> str:
    dtype, d_head, mask = panel
    return f"{dtype}, d_head {d_head}, {mask}"
