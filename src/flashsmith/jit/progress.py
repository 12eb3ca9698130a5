"""Shows the progress of a build on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from flashsmith.jit.compile import Progress

if TYPE_CHECKING:  # a call whose kernel is built already must not need rich
    from rich.console import Console

_UNITS_A_LINE = 10


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yields a callback that draws a bar on a terminal, and prints a line every ten units
    elsewhere. Nothing is shown before the first call."""
    show: Progress | None = None
    with ExitStack() as stack:

        def progress(done: int, total: int, name: str) -> None:
            nonlocal show
            if show is None:
                from rich.console import Console

                console = Console(stderr=True, markup=False, emoji=False, highlight=False)
                show = _bar(console, stack) if console.is_terminal else _lines(console)
            show(done, total, name)

        yield progress


def _bar(console: Console, stack: ExitStack) -> Progress:
    """Draws a bar, which ``stack`` removes when it closes."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    bar = stack.enter_context(Bar(*columns, console=console, transient=True))
    task = bar.add_task("", total=None)
    return lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


def _lines(console: Console) -> Progress:
    """Prints a line every ten units, and each message between two units, such as that the build
    waits for another process."""
    before = -1

    def progress(done: int, total: int, name: str) -> None:
        nonlocal before
        is_due = done // _UNITS_A_LINE > before // _UNITS_A_LINE or done in (before, total)
        before = done
        if is_due:
            console.print(f"[{done}/{total}] {name}", soft_wrap=True)

    return progress
