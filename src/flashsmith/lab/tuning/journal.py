"""The journal of a search: what an interrupted run has measured, so that it is not repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashsmith.errors import TuningError
from flashsmith.selection.tables import mismatches

_STAMP = "stamp"


class Journal:
    """Questions and their answers, one JSON line each, written to disk as soon as they are known.

    The first line is the stamp of the machine. A line that a crash cut off counts as not written.
    """

    def __init__(self, path: Path, stamp: Mapping[str, str]) -> None:
        """Opens the journal, or begins it.

        Raises:
            TuningError: The journal is of another GPU, driver or kernel sources, or the file is not
                a journal.
        """
        self.path = path
        self._answers: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._load(stamp)
        if not path.exists():
            self._append({_STAMP: dict(stamp)})

    def __len__(self) -> int:
        return len(self._answers)

    def recall(self, **question: Any) -> Any:
        """Returns the answer, or None if the question has no answer yet."""
        return self._answers.get(_key(question))

    def add(self, answer: Any, **question: Any) -> None:
        self._answers[_key(question)] = answer
        self._append({"question": question, "answer": answer})

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _load(self, stamp: Mapping[str, str]) -> None:
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        try:
            records = [json.loads(line) for line in whole.splitlines()]
            found = records[0][_STAMP] if records else None
            answers = {_key(record["question"]): record["answer"] for record in records[1:]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TuningError(
                f"{self.path} is not a tuning journal ({error}); remove it, or pass --force"
            ) from None
        if found is None:  # the file was cut off within its first line
            self.path.unlink()
            return
        refuse_mismatch(self.path, found, stamp)
        self._answers = answers
        os.truncate(self.path, len(whole) + 1)

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def refuse_mismatch(path: Path, stamp: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raises TuningError that says how ``stamp``, of the measurements, differs from ``here``."""
    if differing := mismatches(stamp, here):
        raise TuningError(
            f"{path} is of another environment, whose measurements do not mix with this one's: "
            f"{'; '.join(differing)}. Choose another --out, or pass --force to discard it."
        )


def _key(question: Mapping[str, Any]) -> str:
    return json.dumps(question, sort_keys=True)
