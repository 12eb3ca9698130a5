"""Messages on stderr while a call waits for its kernel."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flashsmith.configs import KernelId
from flashsmith.jit import KernelCache, Progress, show_progress


@contextmanager
def announce_build(instance: KernelId) -> Iterator[Progress]:
    """Yields a progress callback, which first says what is built and why it happens once.

    If nothing is built, the callback is never called and nothing is printed.
    """
    begin: float | None = None
    with show_progress() as show:

        def progress(done: int, total: int, name: str) -> None:
            nonlocal begin
            if begin is None:
                begin = time.monotonic()
                _say(
                    f"building {instance.name}; this happens once on this machine, because the "
                    f"kernel is kept in {KernelCache().root}"
                )
            show(done, total, name)

        yield progress
    if begin is not None:
        _say(f"built in {time.monotonic() - begin:.1f} s")


def _say(text: str) -> None:
    print(f"flashsmith: {text}", file=sys.stderr)
