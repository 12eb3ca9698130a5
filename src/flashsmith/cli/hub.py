"""`flashsmith hub`: package and kernels -> a kernel of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli.cache import folder_bytes
from flashsmith.cli.options import JsonOption
from flashsmith.cli.tables import note, print_json, print_table
from flashsmith.jit import KernelCache
from flashsmith.lab.commands.hub import write_hub

_OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="The repository's folder. Its other variants and its README.md stay as they are.",
    ),
]
_FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="A folder that `flashsmith build --out` filled. Default: all kernels that were built.",
    ),
]


def hub(out: _OutOption, source: _FromOption = None, as_json: JsonOption = False) -> None:
    """Write the package with built kernels as a kernel of the Hugging Face Hub.

    `kernels.get_local_kernel` loads the folder, and transformers takes it as attn_implementation.
    """
    if source is not None and not source.is_dir():
        raise ValueError(
            f"--from {source} is no folder; name one that `flashsmith build --out` filled"
        )
    caches = None if source is None else [KernelCache(source)]
    for cache in caches or ():
        cache.check()
    variants = write_hub(out, caches)
    if as_json:
        rows = [
            {
                "variant": each.folder.name,
                "archs": each.archs,
                "kernels": each.kernels,
                "bytes": folder_bytes(each.folder),
            }
            for each in variants
        ]
        print_json({"folder": out, "variants": rows})
        return
    print_table(
        ("variant", "compute capabilities", "kernels", "MB"),
        [
            (
                each.folder.name,
                ", ".join(each.archs),
                each.kernels,
                f"{folder_bytes(each.folder) / 1e6:.1f}",
            )
            for each in variants
        ],
    )
    note(f"in {out}")
