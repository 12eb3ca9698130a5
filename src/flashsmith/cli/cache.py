"""`flashsmith cache`: prints the folder of compiled kernels, and clears it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

import typer

from flashsmith.cli.options import JsonOption
from flashsmith.cli.tables import note, print_json
from flashsmith.jit import KernelCache

app = typer.Typer(
    name="cache",
    help="Where the compiled kernels are (configs --built lists them), and how to clear them.",
)


@app.command()
def path(as_json: JsonOption = False) -> None:
    """Print the folder of the cache."""
    root = KernelCache().root
    if as_json:
        print_json({"path": root})
    else:
        typer.echo(root)


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove all compiled kernels. Fails while another process is building."""
    cache = KernelCache()
    cache.check()
    entries = [
        entry
        for folder in (cache.kernels, cache.hosts, cache.objects, cache.failed)
        for entry in cache.entries(folder)
    ]
    freed = folder_bytes(cache.root)
    if entries and not yes:
        if as_json or not sys.stdin.isatty():
            raise ValueError("clear asks first, and there is nobody to ask; pass --yes")
        typer.confirm(f"Remove {len(entries)} entries of {cache.root}?", abort=True)
    if entries:
        cache.create()  # remove() renames into its staging folder
    for entry in entries:
        cache.remove(entry)
    with cache.disk_errors():
        cache.remove_leftovers()
    freed -= folder_bytes(cache.root)
    if as_json:
        print_json({"path": cache.root, "entries": len(entries), "freed_bytes": freed})
    else:
        note(f"{len(entries)} entries removed from {cache.root}, {freed / 1e6:.1f} MB")


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of all files under ``folder``; 0 if there is none."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # a builder removed it meanwhile
            status = path.lstat()
            total += status.st_size if S_ISREG(status.st_mode) else 0
    return total
