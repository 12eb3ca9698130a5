"""docs/tuning.md says of predicted choices what the committed measurements say."""

from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from flashsmith.gpus import count_sms
from flashsmith.selection.carried_over import CLEARLY, carried_over_ms
from flashsmith.selection.entries import Entry
from flashsmith.selection.tables import Table, shipped_table_path
from support.paths import RESULTS, ROOT

PAGE = ROOT / "docs" / "tuning.md"


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_predicted_choices_gain_was_measured() -> None:
    text = " ".join(PAGE.read_text().split())
    times: dict[str, list[float]] = {}  # of the kernel that is predicted, then of the measured one
    for row in read_rows(RESULTS.parent / "2026-11-28" / "choices" / "forward.csv"):
        if "window" not in row["case"] and row["candidate"].startswith("("):
            times.setdefault(row["case"], []).append(float(row["in_turn_us"]))
    gains = [measured / predicted for predicted, measured in times.values()]
    assert (
        f"of {len(gains)} shapes where the prediction changes the choice "
        f"{sum(gain > 1 for gain in gains)} became faster, by {geometric_mean(gains):.2f} on "
        "geometric mean"
    ) in text
    assert f"in turn; {max(gains):.2f} at most, {min(gains):.2f} at least" in text


def test_what_predictions_lose_between_measured_grids_is_in_the_table() -> None:
    """One grid of two is taken for unknown: its kernels are ranked by the times of the other, as
    they are or carried over."""
    text = " ".join(PAGE.read_text().split())
    table = Table.read(shipped_table_path("NVIDIA H200"))
    for mask, said in (("full", "{} at another for full masks"), ("causal", "{} for causal ones")):
        losses = [loss for pair in like_grids(table, mask) for loss in losses_between(*pair)]
        measured, predicted = (fmean(each) - 1 for each in zip(*losses, strict=True))
        assert said.format(f"{measured:.1%}") in text
        assert f"{predicted:.1%}" in text.partition("the predicted ranking")[2][:20]


def like_grids(table: Table[Any, Any], mask: str) -> list[tuple[Entry[Any, Any], ...]]:
    """Returns pairs of square grids of 1024 queries or more, whose lengths are near."""
    entries = [
        entry
        for entry in table.entries.values()
        if entry.workload.problem.is_square
        and entry.workload.variant.name == mask
        and entry.workload.problem.seq_len_k >= 1024
    ]
    return [
        (one, other)
        for one, other in permutations(entries, 2)
        if one.workload.kind == other.workload.kind
        and 0.4 < one.workload.problem.seq_len_k / other.workload.problem.seq_len_k < 2.5
    ]


def losses_between(known: Entry[Any, Any], asked: Entry[Any, Any]) -> list[tuple[float, float]]:
    """Returns the time of the kernel that the measured and the predicted ranking choose, relative
    to the best; nothing if fewer than two kernels were measured at both grids."""
    times = {row.config: row.ms for row in asked.ranked}
    rows = [row for row in known.ranked if row.config in times]
    if len(rows) < 2:
        return []
    sms = count_sms("NVIDIA H200")
    predicted = {
        row.config: carried_over_ms(row, known.workload, asked.workload, sms) or 0.0 for row in rows
    }
    first, fastest = rows[0].config, min(predicted, key=predicted.__getitem__)
    chosen = fastest if predicted[fastest] < CLEARLY * predicted[first] else first
    best = min(times[row.config] for row in rows)
    return [(times[first] / best, times[chosen] / best)]
