"""Settings of the emulator for this thread's launches, and what a launch counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from flashsmith.runtime.loaded import LoadedKernel


class Site(NamedTuple):
    """A synchronisation instruction in the kernel's source."""

    kind: str
    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.file}:{self.line}"


@dataclass(frozen=True)
class Emulation:
    """The emulator, after calls of one kernel."""

    kernel: LoadedKernel

    def counters(self) -> dict[str, int]:
        """Returns the counts of the last call's launches (csrc/emulator/launch.h names each)."""
        return {
            str(name): int(count) for name, count in self.kernel.module.emulator_counters().items()
        }

    def sites(self) -> list[Site]:
        """Returns the synchronisation sites that ran in the last call."""
        return [
            Site(str(kind), str(file), int(line), int(column))
            for kind, file, line, column in self.kernel.module.emulator_sites()
        ]


@contextmanager
def emulation(
    kernel: LoadedKernel,
    *,
    seed: int = 0,
    dropped: Site | None = None,
    count: bool = True,
    workers: int = 0,
    num_sms: int = 0,
) -> Iterator[Emulation]:
    """Runs this thread's emulated launches inside the block with these settings.

    Args:
        seed: The seed of the order in which warps run.
        dropped: The synchronisation site that does nothing, to inject a fault.
        count: Whether to count memory wavefronts and sectors too, which costs time.
        workers: The number of host threads that share the grid; 0: one a core.
        num_sms: The number of the emulated GPU's SMs, for which launches are planned; 0: four.
    """
    configure = kernel.module.emulator_configure
    configure(seed, [dropped] if dropped else [], count, workers, num_sms)
    try:
        yield Emulation(kernel)
    finally:
        configure(0, [], True, 0, 0)
