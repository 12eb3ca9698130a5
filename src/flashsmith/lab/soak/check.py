"""Checks one kernel on one case: right results, no stray writes, and the same bits every time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from flashsmith.configs import KernelConfig, KernelId
from flashsmith.errors import GpuLostError
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.launches import Prepared, SoakLaunch, make_launch
from flashsmith.lab.soak.load import CardLoad
from flashsmith.runtime.device import gpu_answers

RERUNS = 12  # alone, and again beside other work for the GPU
# The first poison is for the first run, the second for reruns of deterministic kernels: where the
# right result is NaN, only another number shows an element that was not written.
_POISONS = (math.nan, 30_000.0)
_REASON_LENGTH = 400


@dataclass(frozen=True)
class Verdict:
    """The result of one kernel on one case.

    Attributes:
        failure: What is wrong, in words; empty if nothing is.
        refused: Whether the kernel refused the case, as it should, with its typed error.
        ratios: The error of each result, as a share of the allowed error.
        reruns: The number of reruns.
    """

    instance: KernelId
    case: SoakCase
    failure: str = ""
    refused: bool = False
    ratios: dict[str, float] = field(default_factory=dict)
    reruns: int = 0

    @property
    def ok(self) -> bool:
        return not self.failure

    @property
    def sentence(self) -> str:
        if self.refused:
            return f"{self.instance} refuses {self.case}, as it should"
        if self.failure:
            return f"{self.instance} is wrong on {self.case}: {self.failure}"
        equal = "bitwise equal" if self.instance.config.is_deterministic else "right"
        errors = ", ".join(f"{ratio:.2f} in {name}" for name, ratio in self.ratios.items())
        return (
            f"{self.instance} is right on {self.case}: of the error allowed {errors}; "
            f"{self.reruns} reruns {equal}"
        )


def takes(config: KernelConfig, case: SoakCase) -> bool:
    """Returns whether a configuration's kernel has to run a case; otherwise it has to refuse it."""
    problem, varlen = case.problem, case.varlen
    no_queries = problem.seq_len_q == 0 and varlen.lengths_q is None
    no_keys = problem.seq_len_k == 0 and varlen.lengths_k is None
    no_keys = no_keys and config.operation != "decode"  # a KV cache may be empty
    return config.has_room_for(problem) and (no_queries or not no_keys)


def check(
    instance: KernelId,
    prepared: Prepared,
    *,
    reruns: int = RERUNS,
    load: CardLoad | None = None,
) -> Verdict:
    """Runs a kernel into poisoned memory, compares its results, and runs it many times more.

    Args:
        reruns: Number of reruns; on the emulator, each with another order of warps.
        load: If given, the reruns are repeated beside this load.

    Raises:
        GpuLostError: The kernel broke this process's GPU context.
        ToolchainError, BuildError, CacheError: The kernel cannot be had.
    """
    launch = make_launch(instance, prepared)
    if not takes(instance.config, launch.case):
        return _check_refusal(instance, launch)
    try:
        return _check(instance, launch, reruns, load)
    except (RuntimeError, ValueError, TypeError) as error:  # from the kernel or the GPU
        reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
        if launch.device.type == "cuda" and not gpu_answers():
            raise GpuLostError(instance.name, f"{launch.case}: {reason}") from error
        return Verdict(instance, launch.case, reason)


def _check_refusal(instance: KernelId, launch: SoakLaunch) -> Verdict:
    case, results = launch.case, launch.results
    results.poison(_POISONS[0])
    try:
        launch.run()
    except ValueError:
        if results.are_nan():
            return Verdict(instance, case, refused=True)
        names = " or ".join(results.tensors)
        return Verdict(instance, case, f"it is refused, but {names} was written before")
    return Verdict(instance, case, "it should be refused with a ValueError, and is not")


def _check(instance: KernelId, launch: SoakLaunch, reruns: int, load: CardLoad | None) -> Verdict:
    launch.results.poison(_POISONS[0])
    workspace = launch.run()
    compared = launch.compare()
    failure = "".join(
        f"{name} {comparison.worst}, error {comparison.error:.3g} where "
        f"{comparison.tolerance:.3g} is allowed; "
        for name, comparison in compared.items()
        if not comparison.ok
    )
    if launch.results.n_overwritten():
        failure += f"memory around {' or '.join(launch.results.tensors)} was written; "
    if not failure and (reruns or load):
        failure = _rerun(instance, launch, reruns, load)
    if workspace is not None and workspace.any():
        failure += "the workspace was left dirty; "
    if not all(_same(now, before) for now, before in launch.read.values()):
        *names, last = launch.read
        failure += f"{', '.join(names)} or {last} was written; "
    done = 0 if failure else reruns * (1 if load is None else 2)
    ratios = {name: comparison.ratio for name, comparison in compared.items()}
    return Verdict(instance, launch.case, failure.rstrip("; "), False, ratios, done)


def _rerun(instance: KernelId, launch: SoakLaunch, reruns: int, load: CardLoad | None) -> str:
    """Returns what was wrong with the runs after the first, in words; empty if nothing was.

    Rows that no sequence uses must keep the poison.
    """
    first, deterministic = _as_every_time(launch), instance.config.is_deterministic
    for beside in (None, load)[: 1 if load is None else 2]:
        differing = torch.zeros((), dtype=torch.int64, device=launch.device)
        for i in range(reruns):
            if beside is not None:
                beside.add()
            launch.results.fill(_POISONS[1 if deterministic else 0])
            launch.run(seed=i + 1)
            if deterministic:
                differing += ~_has_the_bits(launch, first)
            else:
                differing += not all(comparison.ok for comparison in launch.compare().values())
        if beside is not None:
            beside.wait()
        if n := int(differing):
            how = "" if beside is None else " beside another stream"
            what = "gave other bits than the first run" if deterministic else "were wrong"
            return f"{n} of {reruns} reruns{how} {what}"
    return ""


def _as_every_time(launch: SoakLaunch) -> dict[str, torch.Tensor]:
    """Returns the results that a rerun should leave; unused rows keep the second poison."""
    first = {name: t.clone() for name, t in launch.results.tensors.items()}
    for name, used in launch.used.items():
        first[name].masked_fill_(~used, _POISONS[1])
    return first


def _has_the_bits(launch: SoakLaunch, first: dict[str, torch.Tensor]) -> torch.Tensor:
    same = [_bits(t) == _bits(first[name]) for name, t in launch.results.tensors.items()]
    return torch.stack([each.all() for each in same]).all()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()])


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_bits(a), _bits(b))
