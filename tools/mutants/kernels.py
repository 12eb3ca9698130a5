"""Kernels that were built without a mutant, for sandboxes that would build the same.

An entry of the package's cache is named by what it is made of, so that a mutant of a source builds
its own. Entries are linked, not copied: they are never changed once they are there.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_KINDS = ("libraries", "objects")


def link_entries(source: Path, target: Path) -> None:
    """Those of a cache that another lacks; each appears at once."""
    for kind in _KINDS:
        if not (source / kind).is_dir():
            continue
        (target / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {path.name for path in (target / kind).iterdir()}
        for entry in (source / kind).iterdir():
            if entry.name not in known and (entry / "manifest.json").exists():
                _link(entry, target / kind / entry.name)


def _link(entry: Path, target: Path) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with suppress(OSError):  # another process may be doing the same
        shutil.copytree(entry, beside, copy_function=os.link)
        beside.rename(target)
    shutil.rmtree(beside, ignore_errors=True)
