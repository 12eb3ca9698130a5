"""An operation, as the runner sees it: how its tensors are made, and who computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from flashsmith.lab.bench.cases import Case
from flashsmith.reference import Comparison

OURS = "flashsmith"  # begins the names of all candidates of ours that are no kernels' names
Run = Callable[[], Any]


class Given(ABC):
    """The tensors of a case on a device, and the truth of them.

    Attributes:
        flop, n_bytes: Of the problem, not of what a candidate does; 0 where nobody asks.
        tolerance: The largest error that is right.
    """

    flop = n_bytes = tolerance = 0.0

    @abstractmethod
    def error_of(self, result: Any) -> float:
        """Returns how far what a candidate's run gave is off; NaN where that has one."""

    def compare(self, result: Any) -> Comparison:
        return Comparison(self.error_of(result), self.tolerance, worst="")

    def counters(self) -> Mapping[str, int]:
        """Returns what the emulator counted of the latest run, where somebody asks."""
        return {}


class Package(Protocol):
    """The software that peers come with: why it cannot be used here, "" if it can, and which one is
    here."""

    @property
    def why_missing(self) -> Callable[[], str]: ...
    @property
    def build(self) -> Callable[[], str]: ...


G = TypeVar("G", bound=Given)
Make = Callable[[G], Run | None]  # None: it does not take such a problem


@dataclass(frozen=True)
class OperationPeer(Generic[G]):
    """Another implementation. What is planned once for many layers is done in ``make``."""

    package: Package
    make: Make[G]


@dataclass(frozen=True)
class OperationBench(Generic[G]):
    """One operation.

    Attributes:
        prepare: (case, device) -> what its candidates are given.
        ours: What is chosen, and other ways to call us, by their names.
        kernels: Of which operation kernels are that a case has by their names.
        of_config: (configuration, given) -> the run of such a kernel.
        peers: By their names.
        beside: Whom one of ours is compared with, if not with the best of the peers.
        head_start, pause: As ``time_interleaved`` takes them.
        first_calls_compile: Whether kernels are not loaded before.
    """

    prepare: Callable[[Case, str], G]
    ours: Mapping[str, Make[G]]
    kernels: str
    of_config: Callable[[Any, G], Run | None]
    peers: Mapping[str, OperationPeer[G]]
    beside: Mapping[str, str] = field(default_factory=dict)
    head_start: float = 0.0
    pause: float = 0.0
    first_calls_compile: bool = True
