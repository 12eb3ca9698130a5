"""A family of kernels: the heuristic, sets and cost model that its configurations share."""

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

_CLEARLY = 0.95  # a cost model's difference counts from 5% on


@dataclass(frozen=True)
class DeclaredSets(Generic[C]):
    """The named sets of configurations of a family.

    Args:
        keys: The names of the sets.
        progression: Configurations that add one idea a step.
        tuning_space: (d_heads=) The configurations that the tuner tries, for the usual d_heads or
            for these.
        block_values: The fields of block sizes with all of their values, if these vary
            independently of all other fields.
    """

    keys: settings.FamilySets
    progression: Callable[[], Sequence[C]]
    tuning_space: Callable[..., Sequence[C]]
    block_values: tuple[tuple[str, tuple[int, ...]], ...] = ()


def _nothing(_: AnyWorkload) -> tuple[()]:
    return ()


def _always(_: AnyWorkload) -> bool:
    return True


def as_chosen(config: C, _: AnyWorkload) -> C:
    """Returns the configuration as it was chosen."""
    return config


def no_others(_config: KernelConfig, _workload: AnyWorkload) -> tuple[()]:
    """Returns no other version of a configuration."""
    return ()


@dataclass(frozen=True)
class Family(Generic[W, C]):
    """The kernels that do one operation on one architecture in one way.

    Args:
        config: The class of its configurations.
        heuristic: Returns a good configuration for a workload that was not measured and
            fills the GPU. Raises ValueError that names what the family does not support.
        heuristic_in_words: The explanation for people who ask why a kernel was chosen.
        answers: (dtype, d_head) -> workloads that stand for all others: one for each result of the
            heuristic.
        tuning_space: The configurations that the tuner tries for a workload on an architecture.
        d_heads: The head dimensions that it supports.
        smaller: Alternatives to the heuristic's configuration, best first: for a GPU without room
            for it, or for a workload with too few of its tiles.
        cost: (configuration, workload, num_sms) -> the time by the family's cost model;
            None: there is no model, and the first configuration with room is taken.
        suited: (configuration, workload) -> the chosen configuration, adapted to the variant, with
            the knobs that pay at the workload's sizes.
        other_versions: (configuration, workload) -> the same tiles with other knobs that come into
            question at the workload's sizes, though a table may not have them.
        schedule_cost: (configuration, workload, num_sms) -> the time of the tiles in their order,
            which carries measured times over to other workloads; None for a workload whose tiles
            are not known. None: the family's times cannot be carried over.
        window_rank: configuration -> its rank, least first, among kernels whose measured times are
            equal without a window, where a window hides most keys. None: their order does not
            change.
        is_for: Whether the family comes into question for a workload: for others a plainer family's
            kernels are as fast, or it has none.
        minimum: The min compute capability for which it comes into question.
        is_rival: Whether it may be the fastest where a newer family runs, so that the tuner has to
            try it.
        declared_sets: The named sets of a forward family.
    """

    config: type[C]
    heuristic: Callable[[W], C]
    heuristic_in_words: str
    answers: Callable[[DType, int], Sequence[W]]
    tuning_space: Callable[[W, GpuArchitecture], Sequence[C]]
    d_heads: tuple[int, ...] = D_HEADS
    smaller: Callable[[W], Sequence[C]] = _nothing
    cost: Callable[[C, W, int], float] | None = None
    suited: Callable[[C, W], C] = as_chosen
    other_versions: Callable[[C, W], Sequence[C]] = no_others
    schedule_cost: Callable[[C, W, int], float | None] | None = None
    window_rank: Callable[[C], tuple[int, ...]] | None = None
    is_for: Callable[[W], bool] = _always
    minimum: Capability = (8, 0)
    is_rival: bool = True
    declared_sets: DeclaredSets[C] | None = None

    @property
    def name(self) -> str:
        return self.config.family

    @property
    def sets(self) -> DeclaredSets[C]:
        """Returns ``declared_sets``, which each forward family has."""
        assert self.declared_sets is not None, self.config
        return self.declared_sets

    def runs_on(self, capability: Capability) -> bool:
        """Returns whether GPUs of this compute capability have its instructions."""
        return self.config.runs_on(capability) and capability >= self.minimum

    def choose(self, workload: W, num_sms: int | None, architecture: str | None = None) -> C:
        """Chooses by heuristic, and by the cost model for a GPU's number of SMs; None: the
        emulator.

        architecture: The GPU's architecture; configurations that do not fit there are skipped.
            None: a configuration fits if it has room on the plainest GPU that it runs on.

        Raises:
            ValueError: The family does not support the workload; the message says why.
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
        """Lists all configurations that it may choose by heuristic, each once."""
        workloads = self.answers(dtype, d_head)
        found = dict.fromkeys(self.heuristic(workload) for workload in workloads)
        return list(found | dict.fromkeys(c for w in workloads for c in self.smaller(w)))
