"""A benchmark's folder, which keeps the arguments, the environment and the results so far."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashsmith.lab.bench.ceilings import Ceilings
from flashsmith.lab.bench.stamp import differences

ENVIRONMENT = "environment.json"
_ARGUMENTS = "arguments"
_CEILINGS = "ceilings"


class Session:
    """The stamp of the results in a folder."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self._document = document

    @classmethod
    def open(
        cls,
        folder: Path,
        environment: Mapping[str, Any],
        arguments: Mapping[str, Any],
        *,
        results: Sequence[str],
        stamp: str = ENVIRONMENT,
        force: bool = False,
    ) -> Session:
        """Begins in a folder, or goes on in one that the same benchmark began.

        Args:
            environment: An environment_stamp() with the peers' builds.
            arguments: The arguments of the benchmark, as JSON values.
            results: The names of the files with rows.
            stamp: The name of the file with the environment and the arguments.
            force: Whether to delete earlier results.

        Raises:
            ValueError: The folder's results are of another environment or of other arguments.
        """
        document = {**environment, _ARGUMENTS: dict(arguments)}
        path = folder / stamp
        rows = [folder / name for name in results]
        if force:
            for each in rows:
                each.unlink(missing_ok=True)
        has_rows = any(each.exists() for each in rows)
        if has_rows:
            document |= {_CEILINGS: cls._check(path, document).get(_CEILINGS, {})}
        folder.mkdir(parents=True, exist_ok=True)
        session = cls(path, document)
        if not (has_rows and path.exists()):  # otherwise keep the stamp of the beginning
            session._write()
        return session

    @classmethod
    def _check(cls, path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
        folder = path.parent
        try:
            before: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{folder} has results and no readable {path.name} ({error}); "
                "choose another --out, or --force to begin anew"
            ) from None
        ours = {k: v for k, v in document.items() if k != _ARGUMENTS}
        theirs = {k: v for k, v in before.items() if k not in (_ARGUMENTS, _CEILINGS)}
        found = differences(theirs, ours)
        found += differences(before.get(_ARGUMENTS, {}), document[_ARGUMENTS])
        if found:
            raise ValueError(
                f"{folder} has results that these cannot be added to: {'; '.join(found)}; "
                "choose another --out, or --force to begin anew"
            )
        return before

    @property
    def document(self) -> dict[str, Any]:
        return dict(self._document)

    @property
    def ceilings(self) -> dict[str, Ceilings]:
        """The ceilings that were measured so far, by dtype."""
        recorded = self._document.get(_CEILINGS, {})
        return {dtype: Ceilings(**values) for dtype, values in recorded.items()}

    def add_ceilings(self, ceilings: Ceilings) -> None:
        self._document.setdefault(_CEILINGS, {})[ceilings.dtype] = asdict(ceilings)
        self._write()

    def _write(self) -> None:
        path = self.path
        staged = path.with_name(path.name + ".new")
        staged.write_text(json.dumps(self._document, indent=1) + "\n")
        staged.replace(path)
