"""The runner's view of an operation: how its tensors are made, and which candidates compute it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.timer import HEAD_START
from flashsmith.reference import Comparison

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

OURS = "flashsmith"  # begins the names of our candidates, unless they are kernels
Run = Callable[[], Any]


class Given(ABC):
    """The tensors of a case on a device, and the true result.

    Attributes:
        flop, n_bytes: FLOP and bytes of the problem, whatever a candidate does; 0 if not used.
        tolerance: The largest error of a right result.
    """

    flop = n_bytes = tolerance = 0.0

    @abstractmethod
    def error_of(self, result: Any) -> float:
        """Returns the error of a candidate's result; NaN if the result has a NaN."""

    def compare(self, result: Any) -> Comparison:
        return Comparison(self.error_of(result), self.tolerance, worst="")

    def layers(self) -> Sequence[Self]:
        """Returns these inputs, and as many others of the same sizes as it takes until L2 cannot
        hold them. The calls of a CUDA graph take turns with them."""
        return (self,)

    def counters(self) -> Mapping[str, int]:
        """Returns the emulator's counts of the latest run, if the operation has them."""
        return {}


class Package(Protocol):
    """The software of a peer. ``why_missing`` returns why it cannot be used here, "" if it can;
    ``build`` returns the installed version."""

    @property
    def why_missing(self) -> Callable[[], str]: ...
    @property
    def build(self) -> Callable[[], str]: ...


G = TypeVar("G", bound=Given)
Make = Callable[[G], Run | None]  # None: the candidate does not support the problem


@dataclass(frozen=True)
class OperationPeer(Generic[G]):
    """Another implementation; ``make`` does the planning that a model does once for all layers."""

    package: Package
    make: Make[G]


@dataclass(frozen=True)
class OperationBench(Generic[G]):
    """One operation.

    Attributes:
        prepare: Returns the candidates' inputs for a case and a device.
        ours: Our candidates by name: the default call, and other ways to call flashsmith.
        kernels: The operation of the kernels that a case may name as candidates.
        of_config: Returns the run of such a kernel for a configuration and the inputs.
        peers: The peers by name.
        beside: The peers of which the fastest is compared with one of our candidates; all if none
            of them was timed, and by default.
        head_start, pause: Arguments of ``time_interleaved``.
        first_calls_compile: Whether first calls build kernels, as none are loaded before.
    """

    prepare: Callable[[Case, str], G]
    ours: Mapping[str, Make[G]]
    kernels: str
    of_config: Callable[[Any, G], Run | None]
    peers: Mapping[str, OperationPeer[G]]
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    head_start: float = HEAD_START
    pause: float = 0.0
    first_calls_compile: bool = True
