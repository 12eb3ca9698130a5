"""The best configuration of decode for each workload, from what a lab measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from flashsmith.configs import DecodeKernelConfig, DType, parse_kernel_name_into_config
from flashsmith.configs.base import Capability
from flashsmith.configs.decode import KINDS_OF_CACHE, as_tuned, rows_of_kernels
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.lab.tuning.decode_lab import DecodePlan, Measurements
from flashsmith.lab.tuning.journal import Journal
from flashsmith.lab.tuning.session import held, known_so_far
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.decode_tables import DecodeEntry, DecodeTable, row_of

Progress = Callable[[int, int, str], None]  # done, in all, what comes now


class Lab(Protocol):
    """See ``DecodeLab``."""

    def measure(
        self, workload: DecodeWorkload, configs: Sequence[DecodeKernelConfig], repeats: int
    ) -> Measurements: ...

    def soak(self, config: DecodeKernelConfig) -> str | None: ...


@dataclass(frozen=True)
class Found:
    """What came of one workload.

    excluded: Configurations with what is wrong with them.
    """

    entry: DecodeEntry
    excluded: Mapping[str, str]


def workloads_of(
    dtypes: Iterable[DType], d_heads: Iterable[int], capability: Capability
) -> list[DecodeWorkload]:
    """All that tables tell apart on a GPU."""
    families = DECODE.families_on(capability)
    asked = (
        DecodeWorkload(dtype, d_head, rows, *kind, many_tiles, in_boxes)
        for dtype, d_head, kind, rows, many_tiles, in_boxes in product(
            dtypes, d_heads, KINDS_OF_CACHE, rows_of_kernels(families), (False, True), (False, True)
        )
    )
    return list(dict.fromkeys(as_tuned(workload, families) for workload in asked))


def tune_decode(
    plan: DecodePlan,
    lab: Lab,
    out: Path,
    stamp: Mapping[str, str],
    progress: Progress,
    repeats: int,
    fresh: bool = False,
) -> list[Found]:
    """Searches, and writes the table at ``out`` with the new entries beside those that it has.

    Args:
        plan: Candidates of each workload, the rule's choice last.
        stamp: Of this machine, by ``environment_stamp``.
        fresh: Discard a table, and a journal, that are there.

    Raises:
        TuningError: No candidate of a workload gives a right result; another process tunes for
            this file; what is there is damaged, or of another GPU, driver or kernel sources.
        GpuLostError: A kernel took the GPU with it. The journal remembers which, so a new process
            goes on without it.
    """
    with held(out):
        before, journal = known_so_far(out, stamp, fresh, DecodeTable.read)
        found = []
        for done, (workload, configs) in enumerate(plan.items()):
            progress(done, len(plan), f"{words_of(workload)}: {len(configs)} kernels")
            found.append(_search_one(workload, configs, lab, journal, repeats))
        progress(len(plan), len(plan), "")
        entries = before | {each.entry.workload: each.entry for each in found}
        DecodeTable(stamp, entries).write(out)
        journal.remove()
        forget_tables()
    return found


def words_of(workload: DecodeWorkload) -> str:
    """`BF16 d 128, up to 16 rows, few tiles, fp8`."""
    cache = "fp8 with scales of tokens" if workload.token_scales else "fp8"
    words = [
        f"{workload.dtype} d {workload.d_head}, up to {workload.rows} rows",
        "many tiles" if workload.many_tiles else "few tiles",
        *([cache] if workload.fp8_cache else []),
        *(["in boxes"] if workload.in_boxes else []),
    ]
    return ", ".join(words)


def _search_one(
    workload: DecodeWorkload,
    configs: Sequence[DecodeKernelConfig],
    lab: Lab,
    journal: Journal,
    repeats: int,
) -> Found:
    excluded, microseconds = _measured(workload, configs, lab, journal, repeats)
    for name in sorted(microseconds, key=lambda name: (microseconds[name], name)):
        if why := _soaked(name, lab, journal):
            excluded[name] = f"soak: {why}"
            continue
        config = parse_kernel_name_into_config(name)
        assert isinstance(config, DecodeKernelConfig)
        best, rule = microseconds[name], configs[-1].short_form()
        ratio = None
        if rule in microseconds and rule not in excluded:
            ratio = round(microseconds[rule] / best, 4)
        numbers = round(best, 3), ratio, len(configs), len(excluded)
        return Found(DecodeEntry(workload, config, *numbers), excluded)
    reasons = "; ".join(f"{name}: {why}" for name, why in list(excluded.items())[:3])
    raise TuningError(f"no kernel can be tuned for {words_of(workload)}: {reasons}")


def _measured(
    workload: DecodeWorkload,
    configs: Sequence[DecodeKernelConfig],
    lab: Lab,
    journal: Journal,
    repeats: int,
) -> tuple[dict[str, str], dict[str, float]]:
    """By names: why some are wrong, and the others' microseconds."""
    row = row_of(workload)
    lost: dict[str, str] = journal.recall(decode=row, lost=True) or {}
    left = [config for config in configs if config.short_form() not in lost]
    names = [config.short_form() for config in left]
    question: dict[str, Any] = {"decode": row, "configs": names, "repeats": repeats}
    answer = journal.recall(**question)
    if answer is None:
        try:
            found = lab.measure(workload, left, repeats)
        except GpuLostError as error:
            journal.add({**lost, error.culprit: str(error)}, decode=row, lost=True)
            raise
        answer = [{config.short_form(): told for config, told in of.items()} for of in found]
        journal.add(answer, **question)
    wrong, microseconds = answer
    return {**lost, **wrong}, microseconds


def _soaked(name: str, lab: Lab, journal: Journal) -> str | None:
    """What is wrong with a configuration, of which each is soaked once."""
    question = {"soak": name}
    answer: str | None = journal.recall(**question)
    if answer is None:
        config = parse_kernel_name_into_config(name)
        assert isinstance(config, DecodeKernelConfig)
        try:
            answer = lab.soak(config) or ""
        except GpuLostError as error:
            journal.add(str(error), **question)
            raise
        journal.add(answer, **question)
    return answer or None
