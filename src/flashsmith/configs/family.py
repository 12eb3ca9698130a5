"""A family of kernels answers what its single configurations do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flashsmith import settings
from flashsmith.configs.base import Capability, KernelConfig
from flashsmith.configs.kernel_id import require_buildable
from flashsmith.configs.workload import D_HEADS, AnyWorkload
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture

W = TypeVar("W", bound=AnyWorkload)
C = TypeVar("C", bound=KernelConfig)

_CLEARLY = 0.95  # what a cost model says counts from 5% on


@dataclass(frozen=True)
class DeclaredSets(Generic[C]):
    """A family declares the sets that words name.

    Args:
        keys: What they are called.
        progression: The configurations that show one idea a step.
        tuning_space: (d_heads=) The configurations that the tuner tries, of the usual d_heads or of
            these.
        block_values: Fields of its block sizes with all of their values, where these vary by
            themselves, without other fields that go with them.
    """

    keys: settings.FamilySets
    progression: Callable[[], Sequence[C]]
    tuning_space: Callable[..., Sequence[C]]
    block_values: tuple[tuple[str, tuple[int, ...]], ...] = ()


def _nothing(_: AnyWorkload) -> tuple[()]:
    return ()


def _always(_: AnyWorkload) -> bool:
    return True


@dataclass(frozen=True)
class Family(Generic[W, C]):
    """A family does one operation on one architecture in one way.

    Args:
        config: The class of its configurations, which says what a single one can do.
        heuristic: What serves a workload well where nothing was measured and the grid fills the
            GPU. Raises ValueError that names what the family does not take.
        heuristic_in_words: For people who ask why a kernel was chosen.
        answers: (dtype, d_head) -> workloads that stand for all others: one for each answer of the
            heuristic.
        tuning_space: What the tuner tries for a workload on an architecture.
        d_heads: The head dimensions that it has.
        smaller: What may serve a workload in place of the heuristic's answer, the best first: where
            the GPU has no room for that, or where its tiles are too few.
        cost: (configuration, workload, num_sms) -> the time by a model that tells tiles of
            the family apart; None: there is none, and what has room is taken in its order.
        is_for: Whether it is to be asked for a workload: for others a plainer family's kernels are
            as fast, or it has none.
        minimum: The compute capability from which on it is asked.
        is_rival: Whether it may be the fastest where a newer family runs, so that the tuner has to
            try it.
        declared_sets: Those that words name, of a family of the forward.
    """

    config: type[C]
    heuristic: Callable[[W], C]
    heuristic_in_words: str
    answers: Callable[[DType, int], Sequence[W]]
    tuning_space: Callable[[W, GpuArchitecture], Sequence[C]]
    d_heads: tuple[int, ...] = D_HEADS
    smaller: Callable[[W], Sequence[C]] = _nothing
    cost: Callable[[C, W, int], float] | None = None
    is_for: Callable[[W], bool] = _always
    minimum: Capability = (8, 0)
    is_rival: bool = True
    declared_sets: DeclaredSets[C] | None = None

    @property
    def name(self) -> str:
        return self.config.family

    @property
    def sets(self) -> DeclaredSets[C]:
        """Returns ``declared_sets``, which each family of the forward has."""
        assert self.declared_sets is not None, self.config
        return self.declared_sets

    def runs_on(self, capability: Capability) -> bool:
        """Says whether GPUs of this compute capability have its instructions."""
        return self.config.runs_on(capability) and capability >= self.minimum

    def choose(self, workload: W, num_sms: int | None, architecture: str | None = None) -> C:
        """Chooses by heuristic, and by the cost model on a GPU of so many SMs; None: on the
        emulator.

        architecture: The GPU's: what does not fit there is passed over. None: everything fits that
            has room on the plainest GPU of its own.

        Raises:
            ValueError: Names what the family does not take.
        """
        usual = self.heuristic(workload)
        options = [usual, *self.smaller(workload)]
        fitting = [cfg for cfg in options if cfg.is_buildable(architecture)]
        if not fitting:
            require_buildable(usual, architecture)
        first = fitting[0]
        if self.cost is None or num_sms is None:
            return first
        costs = {cfg: self.cost(cfg, workload, num_sms) for cfg in fitting}
        best = min(costs, key=lambda cfg: costs[cfg])
        return best if costs[best] < _CLEARLY * costs[first] else first

    def heuristic_configs(self, dtype: DType, d_head: int) -> list[C]:
        """Lists all that it may choose by heuristic, each once."""
        workloads = self.answers(dtype, d_head)
        found = dict.fromkeys(self.heuristic(workload) for workload in workloads)
        return list(found | dict.fromkeys(c for w in workloads for c in self.smaller(w)))
