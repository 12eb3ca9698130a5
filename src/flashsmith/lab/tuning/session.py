"""Runs the tuner once: locks the table, resumes or searches, and writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Generic

from flashsmith.configs.family import C, W
from flashsmith.configs.operation import Operation
from flashsmith.configs.workload import TuningKey
from flashsmith.errors import TuningError
from flashsmith.gpus import count_sms
from flashsmith.jit.locks import FileLock
from flashsmith.lab.tuning.journal import Journal, refuse_mismatch
from flashsmith.lab.tuning.portfolio import with_portfolios
from flashsmith.lab.tuning.search import (
    ONE_ROUND,
    REPEATS,
    ROUNDS,
    Lab,
    Plan,
    Progress,
    search,
)
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.entries import Entry
from flashsmith.selection.tables import Table


def journal_path(out: Path) -> Path:
    """Returns the path of the journal of an unfinished table at ``out``."""
    return out.with_name(f"{out.name}.journal.jsonl")


@contextmanager
def tuning_session(
    operation: Operation[W, C],
    out: Path,
    stamp: Mapping[str, str],
    fresh: bool = False,
    *,
    again: bool = False,
) -> Iterator[TuningSession[W, C]]:
    """Locks the table of an operation at ``out`` for a run of the tuner.

    Args:
        out: The table's file, which may not exist yet. Its entries for other shapes are kept.
        stamp: The stamp of this machine, from ``environment_stamp``.
        fresh: Discard an existing table and journal.
        again: All that a table had is measured anew, in one round: discard the table alone.

    Raises:
        TuningError: Another process tunes for this file; or the file is damaged, or of another
            operation, GPU, driver major version or kernel sources.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    if not lock.acquire(wait=False):
        raise TuningError(f"another process is tuning for {out}; choose another --out")
    try:
        yield TuningSession(operation, out, stamp, fresh, again)
    finally:
        lock.release()


class TuningSession(Generic[W, C]):
    """A table in the making; see ``tuning_session``."""

    def __init__(
        self,
        operation: Operation[W, C],
        out: Path,
        stamp: Mapping[str, str],
        fresh: bool,
        again: bool,
    ) -> None:
        self.operation, self.out, self._stamp = operation, out, stamp
        self._rounds = ONE_ROUND if again else ROUNDS
        self._before: Mapping[TuningKey, Entry[W, C]] = {}
        if fresh:
            journal_path(out).unlink(missing_ok=True)
        elif out.exists() and not again:
            table = Table.read(out)
            if table.operation is not operation:
                raise TuningError(
                    f"{out} is a table of {table.operation.name} kernels; choose another --out"
                )
            refuse_mismatch(out, table.stamp, stamp)
            self._before = table.entries
        self.journal = Journal(journal_path(out), stamp)

    def run(
        self, plan: Plan[W, C], lab: Lab[W, C], progress: Progress, repeats: int = REPEATS
    ) -> Table[W, C]:
        """Searches, and writes the table with the new entries and new portfolios.

        Returns: The new entries alone.

        Raises: as ``search``. The journal keeps all measurements made before.
        """
        num_sms = count_sms(self._stamp["gpu"])
        entries = search(plan, lab, self.journal, progress, repeats, num_sms, self._rounds)
        found = Table.of(self.operation, self._stamp, entries).entries
        whole = with_portfolios(Table(self.operation, self._stamp, {**self._before, **found}))
        whole.write(self.out)
        self.journal.remove()
        forget_tables()
        return replace(whole, entries={key: whole.entries[key] for key in found})
