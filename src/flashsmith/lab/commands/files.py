"""Writes files that a user names: none is overwritten without --force, and each appears whole."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path


def check_output(
    option: str,
    path: Path,
    *,
    force: bool,
    input_file: Path | None = None,
    is_own: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Raises ValueError if a command may not write the file ``path``; called before any work.

    Args:
        option: The option that named the file, like `--output`.
        force: Whether an existing file may be overwritten, even the input.
        input_file: The command's input; the message says so if it is the same file.
        is_own: Says whether an existing file has the format that the command writes, and may then
            be updated without ``force``.

    Raises:
        ValueError: ``path`` is not a file, exists already, or cannot be written. Nothing is left
            behind.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{option} {path} is not a file")
    if path.exists() and not force and not is_own(path):
        if input_file is not None and input_file.exists() and path.samefile(input_file):
            raise ValueError(
                f"{option} {path} is the input, whose tensors would be lost; choose another file, "
                "or pass --force"
            )
        raise ValueError(f"{option} {path} exists; choose another file, or pass --force")
    try:
        with tempfile.NamedTemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written: {error.strerror}") from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Has ``write`` make a file beside ``path``, then renames it: readers see the old or the new.

    If ``write`` raises, ``path`` keeps its content. A symbolic link remains one: its target is
    replaced.
    """
    path = path.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as staging:
        staged = Path(staging) / path.name
        write(staged)
        staged.replace(path)
