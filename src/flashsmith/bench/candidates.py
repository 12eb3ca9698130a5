"""What is measured: our kernels and their peers, each checked by its first run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from flashsmith.bench.grid import Problem
from flashsmith.bench.peers import Peer
from flashsmith.bench.results import FAILED, MISSING, OK, WRONG
from flashsmith.configs import ForwardKernelConfig, ForwardKernelInstance
from flashsmith.errors import GpuLostError
from flashsmith.reference import Comparison, compare, reference_by_head
from flashsmith.runtime import Kernel, find_kernel
from flashsmith.runtime.device import gpu_answers, target_of
from flashsmith.runtime.workspace import workspace_for

Candidate = ForwardKernelConfig | Peer
Run = Callable[[], torch.Tensor]

_REASON_LENGTH = 400  # a compiler says more


def name_of(candidate: Candidate) -> str:
    return candidate.name if isinstance(candidate, Peer) else candidate.short_form()


@dataclass(frozen=True)
class Checked:
    """A candidate after its first run."""

    candidate: Candidate
    status: str
    reason: str = ""  # if the status is not OK
    run: Run | None = None  # if it is
    comparison: Comparison | None = None  # if there was a result


class Checker:
    """Runs candidates of one problem on the same input, and compares each with the reference.

    Every head of every sample is compared: a kernel may be wrong in one of them alone, at the seam
    of two tiles, say. The reference costs as much memory as the scores of one head in float32.
    """

    def __init__(self, problem: Problem, device: str) -> None:
        self.problem = problem
        self.qkv = problem.make_qkv(device)
        self._o = torch.empty_like(self.qkv[0])
        reference = partial(reference_by_head, *self.qkv, causal=problem.variant.causal)
        self._exact = reference(compute=torch.float32)
        self._low_precision = reference(compute=self._o.dtype)

    def check(self, candidate: Candidate) -> Checked:
        """Never raises for what is wrong with the candidate, except:

        Raises:
            GpuLostError: It broke the GPU's state for this process.
        """
        if isinstance(candidate, Peer) and (why := candidate.why_missing()):
            return Checked(candidate, MISSING, why)
        self._o.fill_(math.nan)  # what a kernel does not write is not the one before's
        try:
            run = self._make_run(candidate)
            comparison = compare(run(), self._exact, self._low_precision)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
            if self._o.is_cuda and not gpu_answers():
                raise GpuLostError(name_of(candidate), reason) from error
            return Checked(candidate, FAILED, reason)
        if not comparison.ok:
            error_size = f"error {comparison.error:.3g}, allowed {comparison.tolerance:.3g}"
            return Checked(
                candidate,
                WRONG,
                f"{error_size}; {comparison.worst}",
                comparison=comparison,
            )
        return Checked(candidate, OK, run=run, comparison=comparison)

    def kernel(self, config: ForwardKernelConfig) -> Kernel:
        instance = ForwardKernelInstance(config, self.problem.variant)
        return find_kernel(instance, target_of(self._o.device))

    def _make_run(self, candidate: Candidate) -> Run:
        if isinstance(candidate, Peer):
            return candidate.make(*self.qkv, self.problem.variant.causal)
        # The kernel itself, without what `forward` does around it on the host.
        kernel, o, scale = self.kernel(candidate), self._o, self.problem.d_head**-0.5
        workspace_bytes = candidate.workspace_bytes

        def run() -> torch.Tensor:
            workspace = workspace_for(workspace_bytes, o.device)
            kernel(*self.qkv, o, scale, workspace=workspace)
            return o

        return run
