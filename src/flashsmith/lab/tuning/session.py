"""One run of the tuner: lock, resume, search, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashsmith.errors import TuningError
from flashsmith.gpus import count_multiprocessors
from flashsmith.jit.locks import FileLock
from flashsmith.lab.tuning.journal import Journal, refuse_mismatch
from flashsmith.lab.tuning.portfolio import with_portfolios
from flashsmith.lab.tuning.search import REPEATS, Lab, Plan, Progress, search
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.tables import Table


def journal_path(out: Path) -> Path:
    """Where the journal of the table at ``out`` is while it is not finished."""
    return out.with_name(f"{out.name}.journal.jsonl")


@contextmanager
def tuning_session(
    out: Path, stamp: Mapping[str, str], fresh: bool = False
) -> Iterator[TuningSession]:
    """Holds the table at ``out``.

    Args:
        out: Where the table is, or will be. Its entries for other shapes stay.
        stamp: Of this machine, by ``environment_stamp``.
        fresh: Discard a table and a journal that are there.

    Raises:
        TuningError: Another process tunes for this file; what is there is damaged, or of another
            GPU, driver major version or kernel sources.
    """
    with held(out):
        yield TuningSession(out, stamp, fresh)


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keeps other processes from tuning for ``out``. Raises TuningError: Another does."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    if not lock.acquire(wait=False):
        raise TuningError(f"another process is tuning for {out}; choose another --out")
    try:
        yield
    finally:
        lock.release()


def known_so_far(
    out: Path, stamp: Mapping[str, str], fresh: bool, read: Callable[[Path], Any]
) -> tuple[dict[Any, Any], Journal]:
    """The entries of the table at ``out``, which ``read`` reads, and its journal; both are empty
    if ``fresh``. Raises as ``tuning_session``."""
    if fresh:
        journal_path(out).unlink(missing_ok=True)
    entries = {}
    if out.exists() and not fresh:
        table = read(out)
        refuse_mismatch(out, table.stamp, stamp)
        entries = dict(table.entries)
    return entries, Journal(journal_path(out), stamp)


class TuningSession:
    """A table in the making; see ``tuning_session``."""

    def __init__(self, out: Path, stamp: Mapping[str, str], fresh: bool) -> None:
        self.out, self._stamp = out, stamp
        self._before, self.journal = known_so_far(out, stamp, fresh, Table.read)

    def run(self, plan: Plan, lab: Lab, progress: Progress, repeats: int = REPEATS) -> Table:
        """Searches, and writes the table with the new entries and new portfolios.

        Returns: The new entries alone.

        Raises: as ``search``. What was measured until then is in the journal.
        """
        multiprocessors = count_multiprocessors(self._stamp["gpu"])
        entries = search(plan, lab, self.journal, progress, repeats, multiprocessors)
        found = Table.of(self._stamp, entries).entries
        whole = with_portfolios(Table(self._stamp, {**self._before, **found}))
        whole.write(self.out)
        self.journal.remove()
        forget_tables()
        return Table(self._stamp, {key: whole.entries[key] for key in found})
