"""What is asked of a family of kernels, beside its single configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith import settings
from flashsmith.configs.base import Capability, ForwardKernelConfig
from flashsmith.configs.kernel_id import require_buildable
from flashsmith.configs.waves import grid_cost
from flashsmith.configs.workload import Workload, padded_d_head
from flashsmith.dtype import DType
from flashsmith.errors import DeviceError

_CLEARLY = 0.95  # what the model says counts from 5% on


@dataclass(frozen=True)
class Family:
    """One family.

    Args:
        config: The class of its configurations, which says what a single one can do.
        d_heads: The head dimensions that it has.
        sets: The keys of its sets.
        progression: The configurations that show one idea a step.
        tuning_space: The configurations that the tuner tries, of some d_heads; by ``d_heads=`` of
            others.
        rule: (dtype, d_head, about how many keys a query sees) -> what serves well where nothing
            was measured and the grid fills the GPU. Raises ValueError that names what the family
            does not take.
        small_tiles: (dtype, d_head) -> what may serve in its place where its tiles are too few.
        rule_lengths: Numbers of keys that stand for all others: one for each answer of the rule.
        rule_in_words: For people who ask why a kernel was chosen.
        block_values: Fields of its block sizes with all of their values, where these vary by
            themselves, without other fields that go with them.
    """

    config: type[ForwardKernelConfig]
    d_heads: tuple[int, ...]
    sets: settings.FamilySets
    progression: Callable[[], Sequence[ForwardKernelConfig]]
    tuning_space: Callable[..., Sequence[ForwardKernelConfig]]
    rule: Callable[[DType, int, int], ForwardKernelConfig]
    small_tiles: Callable[[DType, int], Sequence[ForwardKernelConfig]]
    rule_lengths: tuple[int, ...]
    rule_in_words: str
    block_values: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def name(self) -> str:
        return self.config.family

    def runs_on(self, capability: Capability) -> bool:
        """Whether GPUs of this compute capability have its instructions."""
        return self.config.runs_on(capability)

    def choose(
        self, workload: Workload, multiprocessors: int | None, architecture: str | None = None
    ) -> ForwardKernelConfig:
        """By rule, and by the model of waves on a GPU of so many; None: on the emulator.

        architecture: The GPU's: what does not fit there is passed over. None: everything fits.

        Raises:
            ValueError: Names what the family does not take.
        """
        problem = workload.problem
        d_head = padded_d_head(problem)
        usual = self.rule(problem.dtype, d_head, workload.keys_per_query)
        if multiprocessors is None:
            return usual
        small = self.small_tiles(problem.dtype, d_head)
        fitting = [cfg for cfg in (usual, *small) if cfg.is_buildable(architecture)]
        if not fitting:
            require_buildable(usual, architecture)
        usual = fitting[0]
        costs = {cfg: grid_cost(cfg, problem, multiprocessors) for cfg in fitting}
        best = min(costs, key=lambda cfg: costs[cfg])
        return best if costs[best] < _CLEARLY * costs[usual] else usual

    def rule_configs(self, dtype: DType, d_head: int) -> list[ForwardKernelConfig]:
        """All that it may choose by rule, each once."""
        usual = [self.rule(dtype, d_head, n_keys) for n_keys in self.rule_lengths]
        return list(dict.fromkeys([*usual, *self.small_tiles(dtype, d_head)]))


def too_old(gpu: str, capability: Capability) -> DeviceError:
    """What is raised where no family runs on a GPU."""
    version = ".".join(map(str, capability))
    return DeviceError(f"{gpu} has compute capability {version}; the kernels need 8.0 or newer")
