"""A line on the terminal while a kernel is built on demand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from flashsmith.configs import KernelId
from flashsmith.jit import Progress


@contextmanager
def announce_build(instance: KernelId) -> Iterator[Progress]:
    """Yields a progress callback; says on stderr what is built and how long it took."""
    console = Console(stderr=True)
    start = time.monotonic()
    announced = False

    def progress(done: int, total: int, name: str) -> None:
        nonlocal announced
        if not announced:
            announced = True
            console.print(
                f"flashsmith: building {instance.name}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    yield progress
    if announced:
        console.print(f"flashsmith: built in {time.monotonic() - start:.1f} s", highlight=False)
