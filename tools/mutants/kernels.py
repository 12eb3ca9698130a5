"""Shares kernels that were built without a mutant with sandboxes that would build the same ones.

An entry of the package's cache is named by a hash of its sources, so a mutant of a source builds
new ones. Entries are linked, not copied, because they never change once they exist.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_KINDS = ("libraries", "objects")


def link_entries(source: Path, target: Path) -> None:
    """Links the entries of a cache that another one lacks; each appears whole."""
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
