"""The families of forward kernels: what is asked of one beside its single configurations.

A family is one operation on one architecture. This list is the only one: whoever needs to know
which families there are, which of them run on a GPU, or what one would choose, asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith.configs.dtype import DType
from flashsmith.configs.kernel_id import ForwardKernelConfig
from flashsmith.configs.sm80 import forward_space as sm80
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig
from flashsmith.configs.sm90 import forward_space as sm90
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.gpus import get_gpu_architecture

Capability = tuple[int, int]


@dataclass(frozen=True)
class Family:
    """One family.

    Args:
        config: The class of its configurations, which says what a single one can do.
        progression_set: The key of the set that shows one idea a step.
        tuning_set: The key of the set that the tuner tries.
        plain_only: Whether all of its kernels want k shaped as q, and give no log-sum-exp.
        rule: (dtype, d_head, seq_len) -> what serves well where nothing was measured. Raises
            ValueError that names what the family does not take.
        rule_in_words: For people who ask why a kernel was chosen.
    """

    config: type[ForwardKernelConfig]
    progression_set: str
    tuning_set: str
    plain_only: bool
    rule: Callable[[DType, int, int], ForwardKernelConfig]
    rule_in_words: str

    @property
    def name(self) -> str:
        return self.config.family

    def runs_on(self, capability: Capability) -> bool:
        """Whether GPUs of this compute capability have its instructions."""
        own = get_gpu_architecture(self.config.minimum_gpu).compute_capability
        return capability == own if self.config.exact_arch else capability >= own


SM80_FORWARD = Family(
    config=FlashForwardKernelConfig,
    progression_set="prog",
    tuning_set="tune",
    plain_only=True,
    rule=sm80.rule,
    rule_in_words="B_r 128 where it divides the length, else 64; B_c 64; all knobs on",
)
SM90_FORWARD = Family(
    config=Sm90ForwardKernelConfig,
    progression_set="sm90-prog",
    tuning_set="sm90-tune",
    plain_only=False,
    rule=sm90.rule,
    rule_in_words="one configuration of the sm90 family for each d_head",
)
FAMILIES = (SM80_FORWARD, SM90_FORWARD)  # from the plainest


def family_of(config: ForwardKernelConfig) -> Family:
    return next(family for family in FAMILIES if type(config) is family.config)


def families_on(capability: Capability | None) -> tuple[Family, ...]:
    """Those that run on a GPU, the newest first; None: on the emulator, the plainest first."""
    if capability is None:
        return FAMILIES
    return tuple(family for family in reversed(FAMILIES) if family.runs_on(capability))


def families_for(gpu: str | None, capability: Capability | None = None) -> tuple[Family, ...]:
    """``families_on`` the GPU, or architecture, of this name; None: the emulator.

    capability: The GPU's, where it is known; None: going by its name.

    Raises:
        ValueError: No GPU of this name is known.
    """
    if gpu is None:
        return families_on(None)
    return families_on(capability or get_gpu_architecture(gpu).compute_capability)


def serves(
    config: ForwardKernelConfig, families: Sequence[Family], seq_len_k: int, *, plain: bool = True
) -> bool:
    """Whether a configuration is of one of ``families``, and takes the problem.

    plain: k is shaped as q, and no log-sum-exp is wanted.
    """
    return family_of(config) in families and config.takes(seq_len_k, plain=plain)


def rule_config(
    families: Sequence[Family],
    dtype: DType,
    d_head: int,
    seq_len: int,
    *,
    plain: bool = True,
) -> ForwardKernelConfig:
    """What the first of ``families`` that takes the problem chooses for it by rule.

    seq_len: Of k.

    Raises:
        ValueError: None of them takes it; says what the newest does not take.
    """
    errors: dict[int, ValueError] = {}
    for family in families:
        try:
            config = family.rule(dtype, d_head, seq_len)
        except ValueError as error:
            errors[family.config.family_number] = error
            continue
        if config.takes(seq_len, plain=plain):
            return config
    if errors:
        raise errors[max(errors)]
    raise ValueError(
        f"no kernel of the {' and '.join(family.name for family in families)} family takes k of "
        "another shape than q or gives the log-sum-exp"
    )
