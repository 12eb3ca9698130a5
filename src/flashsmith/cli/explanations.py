"""Prints `flashsmith tune --explain` without loading torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from flashsmith.cli.tables import note, print_json, print_list, print_table
from flashsmith.lab.commands.explanation import Explanation

_EXPLAINED_IN_FULL = 4  # max shapes; more are a table
_RATES = (
    "the tuner's, which pauses before each run so that power limits no candidate: higher than "
    "under steady load, and than what `flashsmith bench` measures beside peers"
)


def print_explained(explained: Sequence[Explanation], as_json: bool) -> None:
    if as_json:
        print_json([asdict(item) for item in explained])
    elif len(explained) <= _EXPLAINED_IN_FULL:
        for i, item in enumerate(explained):
            if i > 0:
                typer.echo()  # a blank line between two shapes
            _print_one(item)
    else:
        _print_many(explained)


def _print_one(words: Explanation) -> None:
    rows = [
        ("shape", f"{words.shape} (batch x heads x length), on {words.gpu or 'the emulator'}"),
        ("kernel", words.kernel),
        ("because", words.reason),
        ("measured", words.measured),
        ("these rates", words.measured and _RATES),
        ("next best", words.next_best),
        ("the heuristic", words.heuristic),
        ("built", words.portfolio),
        *(("passed over", text) for text in words.passed_over),
    ]
    print_list([row for row in rows if row[1] is not None])


def _print_many(all_words: Sequence[Explanation]) -> None:
    rows = [
        (words.shape, words.kernel, words.source, words.ms, words.tflops) for words in all_words
    ]
    print_table(("shape", "kernel", "from", "ms", "TFLOP/s"), rows)
    note("one shape at a time (--dtype, --d-head, --mask, --seq-len) is told with reasons")
    if any(words.measured for words in all_words):
        note("ms are of the shape that the table has for a bucket, not of the shape asked for")
        note(f"TFLOP/s are {_RATES}")
    for text in dict.fromkeys(text for words in all_words for text in words.passed_over):
        note(f"passed over: {text}")
