"""Why a shape gets the kernel it gets, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashsmith.bench.grid import Problem
from flashsmith.cli.tables import note, print_list, print_table
from flashsmith.configs.families import (
    Capability,
    Family,
    families_for,
    rule_config,
    serves,
)
from flashsmith.selection.choose import Source, choose
from flashsmith.selection.tables import LENGTH_BUCKETS, Entry, Measured, length_bucket

RULE = "rule"
_RATES = (
    "the tuner's, which pauses before each run so that power limits no candidate: higher than "
    "under steady load, and than what `flashsmith bench` measures beside peers"
)


@dataclass(frozen=True)
class Explanation:
    """A choice in words; what was measured only if it comes from a table."""

    shape: str
    gpu: str | None
    kernel: str
    source: str  # your table, shipped table, or rule
    reason: str
    ms: float | None = None
    tflops: float | None = None
    measured: str | None = None
    next_best: str | None = None
    rule: str | None = None
    passed_over: tuple[str, ...] = ()


def explain(problem: Problem, gpu: str | None, capability: Capability | None = None) -> Explanation:
    """Why ``attention`` takes which kernel for a problem on the GPU of this name (None: a CPU).

    capability: The GPU's; None: going by its name.
    """
    causal = problem.variant.causal
    shape = (problem.dtype, problem.d_head, problem.seq_len, causal)
    choice = choose(*shape, gpu, capability=capability)
    words = Explanation(
        shape=str(problem),
        gpu=gpu,
        kernel=choice.config.short_form(),
        source=RULE,
        reason=choice.reason,
        passed_over=choice.passed_over,
    )
    if not (gpu and choice.source and choice.entry and choice.measured):
        return words
    entry, row, families = choice.entry, choice.measured, families_for(gpu, capability)
    measured = (
        f"{row.described()}; in turn 20th to 80th percentile {row.ms_p20} to {row.ms_p80} ms and "
        f"{row.tflops} TFLOP/s, at batch {entry.batch}, heads {entry.heads}, length {entry.seq_len}"
    )
    return replace(
        words,
        source=choice.source.title,
        reason=_reason(problem, choice.source, entry, row),
        ms=row.ms,
        tflops=row.tflops,
        measured=measured,
        next_best=_next_best(entry, row, problem.seq_len, families),
        rule=_rule(entry, row, problem.seq_len, families),
    )


def print_one(words: Explanation) -> None:
    rows = [
        ("shape", f"{words.shape} (batch x heads x length), on {words.gpu or 'the emulator'}"),
        ("kernel", words.kernel),
        ("because", words.reason),
        ("measured", words.measured),
        ("these rates", words.measured and _RATES),
        ("next best", words.next_best),
        ("the rule", words.rule),
        *(("passed over", text) for text in words.passed_over),
    ]
    print_list([row for row in rows if row[1] is not None])


def print_many(all_words: Sequence[Explanation]) -> None:
    rows = [
        (words.shape, words.kernel, words.source, words.ms, words.tflops) for words in all_words
    ]
    print_table(("shape", "kernel", "from", "ms", "TFLOP/s"), rows)
    note("one shape at a time (--dtype, --d-head, --mask, --seq-len) is told with reasons")
    if any(words.measured for words in all_words):
        note(f"TFLOP/s are {_RATES}")
    for text in dict.fromkeys(text for words in all_words for text in words.passed_over):
        note(f"passed over: {text}")


def _reason(problem: Problem, source: Source, entry: Entry, row: Measured) -> str:
    stamp = source.table.stamp
    text = (
        f"{source.title} {source.path} ({stamp.get('date')}, "
        f"flashsmith {stamp.get('flashsmith')}, driver {stamp.get('driver_version')}): "
    )
    if row is entry.ranked[0]:
        text += f"the fastest of {entry.tried}, {_lengths(entry.seq_len)}"
    else:
        fastest = entry.ranked[0].config
        text += (
            f"the fastest whose blocks divide {problem.seq_len}; {fastest}, the fastest of "
            f"{entry.tried} for this bucket, has B_r {fastest.B_r} and B_c {fastest.B_c}"
        )
    if entry.dtype != problem.dtype:
        text += f"; measured for {entry.dtype}, {problem.dtype} takes the same tiles"
    return text


def _lengths(seq_len: int) -> str:
    """Which lengths share the entry."""
    bucket = length_bucket(seq_len)
    i = LENGTH_BUCKETS.index(bucket)
    if i == 0:
        return f"for lengths up to {bucket}"
    if i == len(LENGTH_BUCKETS) - 1:
        return f"for lengths above {LENGTH_BUCKETS[i - 1]}"
    return f"for lengths {LENGTH_BUCKETS[i - 1] + 1} to {bucket}"


def _next_best(entry: Entry, row: Measured, seq_len: int, families: Sequence[Family]) -> str | None:
    after = entry.ranked[entry.ranked.index(row) + 1 :]
    fitting = next((o for o in after if serves(o.config, families, seq_len)), None)
    return None if fitting is None else _compared(fitting, row)


def _rule(entry: Entry, row: Measured, seq_len: int, families: Sequence[Family]) -> str:
    rule = rule_config(families, entry.dtype, entry.d_head, seq_len)
    if rule == row.config:
        return "would choose the same"
    measured = next((other for other in entry.ranked if other.config == rule), None)
    if measured is None:
        return f"would choose {rule}, which was slower or wrong before the last round"
    return f"would choose {_compared(measured, row)}"


def _compared(other: Measured, row: Measured) -> str:
    slower = 100 * (other.cost / row.cost - 1)
    return f"{other.config}: {other.described()}, {slower:.1f} % slower"
