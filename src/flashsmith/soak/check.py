"""One kernel on one case: right, within its memory, and the same every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
)
from flashsmith.errors import GpuLostError
from flashsmith.ops.launch import kernel_for
from flashsmith.reference import Comparison
from flashsmith.runtime import Kernel, emulation
from flashsmith.runtime.device import gpu_answers
from flashsmith.runtime.workspace import workspace_for
from flashsmith.soak.case import SoakCase
from flashsmith.soak.load import CardLoad
from flashsmith.soak.prepared import PreparedCase, Truth

RERUNS = 12  # with and without other work for the card
# Of the first run, then of the reruns: where NaN is right, it alone would hide what nobody wrote.
_POISONS = (math.nan, 30_000.0)
_REASON_LENGTH = 400
_DENSE = 4  # dimensions
# More than the largest relative error of the polynomials that some configurations use for 2^x.
_POLYNOMIAL_ERROR = 2.0**-13
# Kernels whose reference may lag far behind a maximum round what lies between them, a few times.
_STALE_ERROR = 2.0**-22


@dataclass(frozen=True)
class Verdict:
    """What came of one kernel on one case."""

    instance: KernelId
    case: SoakCase
    failure: str = ""  # what is wrong, in words; empty: nothing
    refused: bool = False  # rightly, with its typed error
    o_ratio: float = 0.0  # error of o / what is allowed
    lse_ratio: float = 0.0
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
        return (
            f"{self.instance} is right on {self.case}: {self.o_ratio:.2f} of the error allowed in "
            f"o, {self.lse_ratio:.2f} in lse, {self.reruns} reruns bitwise equal"
        )


def takes(config: ForwardKernelConfig, case: SoakCase) -> bool:
    """Whether the library has to run a case with this configuration; else it has to refuse it."""
    problem, ragged = case.problem, case.ragged
    no_queries = problem.seq_len_q == 0 and ragged.lengths_q is None
    no_keys = problem.seq_len_k == 0 and ragged.lengths_k is None
    return config.has_room_for(problem) and (no_queries or not no_keys)


def check(
    instance: KernelId,
    prepared: PreparedCase,
    *,
    reruns: int = RERUNS,
    load: CardLoad | None = None,
) -> Verdict:
    """Runs a kernel into poisoned memory, compares o and lse, and runs it again and again.

    Args:
        reruns: How often; on the emulator each with another order of warps.
        load: If given, the reruns are done once more beside this.

    Raises:
        GpuLostError: The kernel broke the GPU's state for this process.
        ToolchainError, BuildError, CacheError: There is no kernel.
    """
    kernel = kernel_for(instance.config, instance.variant, prepared.placed.q.device)
    launch = _Launch(kernel, prepared)
    if not takes(instance.config, prepared.case):
        return _check_refusal(instance, launch)
    try:
        return _check(instance, launch, reruns, load)
    except (RuntimeError, ValueError, TypeError) as error:  # of the kernel, or of the GPU
        reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
        if prepared.placed.q.is_cuda and not gpu_answers():
            raise GpuLostError(instance.name, f"{prepared.case}: {reason}") from error
        return Verdict(instance, prepared.case, reason)


def compare_result(
    config: ForwardKernelConfig, truth: Truth, o: torch.Tensor, lse: torch.Tensor
) -> tuple[Comparison, Comparison]:
    """Of o and of lse, into memory that was NaN, with what a configuration's ways may cost."""
    return truth.compare(
        o,
        lse,
        error_of_exp=_POLYNOMIAL_ERROR if config.has_polynomials else 0.0,
        error_of_range=_STALE_ERROR if getattr(config, "stale_maximum", False) else 0.0,
    )


class _Launch(NamedTuple):
    kernel: Kernel
    prepared: PreparedCase

    def run(self, seed: int = 0) -> torch.Tensor | None:
        """Launches; what has to be zero of the workspace, if there is one."""
        placed, extras = self.prepared.placed, self.prepared.extras
        # Packed tensors are those of a batch of 1 to a kernel.
        q, k, v, o = (
            t if t.ndim == _DENSE else t.unsqueeze(0)
            for t in (placed.q, placed.k, placed.v, placed.o)
        )
        lse = placed.lse if placed.q.ndim == _DENSE else placed.lse.unsqueeze(0)
        plan = self.kernel.plan(q, k, v, o, lse=lse, extras=extras)
        workspace = workspace_for(plan, q.device)
        scale = self.prepared.case.scale
        if q.is_cuda:
            self.kernel(q, k, v, o, scale, lse=lse, workspace=workspace, extras=extras)
        else:
            with emulation(self.kernel, seed=seed, count=False):
                self.kernel(q, k, v, o, scale, lse=lse, workspace=workspace, extras=extras)
        return None if workspace is None else workspace[: plan.zeroed_bytes]


def _check_refusal(instance: KernelId, launch: _Launch) -> Verdict:
    case, placed = launch.prepared.case, launch.prepared.placed
    placed.poison(_POISONS[0])
    try:
        launch.run()
    except ValueError:
        if placed.o.isnan().all() and placed.lse.isnan().all():
            return Verdict(instance, case, refused=True)
        return Verdict(instance, case, "it is refused, but o or lse was written before")
    return Verdict(instance, case, "it should be refused with a ValueError, and is not")


def _check(instance: KernelId, launch: _Launch, reruns: int, load: CardLoad | None) -> Verdict:
    case, placed = launch.prepared.case, launch.prepared.placed
    placed.poison(_POISONS[0])
    workspace = launch.run()
    of_o, of_lse = _compare(launch)
    failure = ""
    for name, comparison in (("o", of_o), ("lse", of_lse)):
        if not comparison.ok:
            failure += (
                f"{name} {comparison.worst}, error {comparison.error:.3g} where "
                f"{comparison.tolerance:.3g} is allowed; "
            )
    if placed.n_overwritten():
        failure += "memory around o or lse was written; "
    if not failure and (reruns or load):
        failure = _rerun(launch, reruns, load)
    if workspace is not None and workspace.any():
        failure += "the workspace was left dirty; "
    if not all(
        _same(a, b)
        for a, b in zip(launch.prepared.inputs, (placed.q, placed.k, placed.v), strict=True)
    ):
        failure += "q, k or v was written; "
    done = 0 if failure else reruns * (1 if load is None else 2)
    return Verdict(instance, case, failure.rstrip("; "), False, _ratio(of_o), _ratio(of_lse), done)


def _compare(launch: _Launch) -> tuple[Comparison, Comparison]:
    """Of o and of lse; what does not exist is right."""
    truth, placed = launch.prepared.truth, launch.prepared.placed
    nothing = Comparison(0.0, 0.0, "")
    if truth is None:
        return nothing, nothing
    return compare_result(launch.kernel.instance.config, truth, placed.o, placed.lse)


def _rerun(launch: _Launch, reruns: int, load: CardLoad | None) -> str:
    """What differed from the first run, in words. What no sequence uses stays as it was."""
    placed, truth = launch.prepared.placed, launch.prepared.truth
    first = placed.o.clone(), placed.lse.clone()
    if truth is not None:
        first[0].masked_fill_(~truth.used, _POISONS[1])
        first[1].masked_fill_(~truth.lse_used, _POISONS[1])
    for beside in (None, load)[: 1 if load is None else 2]:
        differing = torch.zeros((), dtype=torch.int64, device=placed.o.device)
        for i in range(reruns):
            if beside is not None:
                beside.add()
            placed.o.fill_(_POISONS[1])
            placed.lse.fill_(_POISONS[1])
            launch.run(seed=i + 1)
            same_o = _bits(placed.o) == _bits(first[0])
            same_lse = _bits(placed.lse) == _bits(first[1])
            differing += ~(same_o.all() & same_lse.all())
        if beside is not None:
            beside.wait()
        if n := int(differing):
            how = "" if beside is None else " beside another stream"
            return f"{n} of {reruns} reruns{how} gave other bits than the first run"
    return ""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_bits(a), _bits(b))


def _ratio(comparison: Comparison) -> float:
    if comparison.error == 0:
        return 0.0
    return comparison.error / comparison.tolerance if comparison.tolerance else math.inf
