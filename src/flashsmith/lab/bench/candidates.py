"""What is measured: our kernels and their peers, each checked by its first run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Workload
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench.peers import Peer
from flashsmith.lab.bench.qkv import QKV, make_qkv
from flashsmith.lab.bench.results import FAILED, MISSING, OK, WRONG
from flashsmith.reference import Comparison, compare, reference_by_head
from flashsmith.runtime import Emulation, Kernel, find_kernel
from flashsmith.runtime.device import gpu_answers, target_of
from flashsmith.runtime.workspace import workspace_for

Candidate = ForwardKernelConfig | Peer
Run = Callable[[], torch.Tensor]

_REASON_LENGTH = 400  # a compiler says more


def name_of(candidate: Candidate) -> str:
    return candidate.name if isinstance(candidate, Peer) else candidate.short_form()


def why_failed(name: str, error: Exception, t: torch.Tensor) -> str:
    """In one line, what a candidate raised that ran on t. Raises GpuLostError: It broke the GPU's
    state for this process."""
    reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH]
    if t.is_cuda and not gpu_answers():
        raise GpuLostError(name, reason) from error
    return reason


def why_wrong(comparison: Comparison) -> str:
    error_size = f"error {comparison.error:.3g}, allowed {comparison.tolerance:.3g}"
    return f"{error_size}; {comparison.worst}"


@dataclass(frozen=True)
class Checked:
    """A candidate after its first run."""

    candidate: Candidate
    status: str
    reason: str = ""  # if the status is not OK
    run: Run | None = None  # if it is
    comparison: Comparison | None = None  # if there was a result


class Checker:
    """Runs candidates of one workload on the same input, and compares each with the reference.

    Every head of every sample is compared: a kernel may be wrong in one of them alone, at the
    boundary of two tiles, say. The reference costs as much memory as the scores of one head.
    """

    def __init__(
        self,
        workload: Workload,
        device: str,
        qkv: QKV | None = None,
        compute: torch.dtype = torch.float32,
    ) -> None:
        """``qkv``: on ``device``; None: random. ``compute``: the dtype of the reference."""
        self.workload = workload
        self.qkv = qkv or make_qkv(workload.problem, device)
        self.o = torch.empty_like(self.qkv[0], memory_format=torch.contiguous_format)
        reference = partial(reference_by_head, *self.qkv, causal=workload.variant.causal)
        self.exact = reference(compute=compute)
        self.low_precision = reference(compute=self.o.dtype)

    def prepare(self, candidate: Candidate) -> Run:
        """Returns what runs a candidate; all kernels write the same ``o``.

        Raises: whatever the candidate raises; of a kernel, what ``find_kernel`` does.
        """
        self.o.fill_(math.nan)  # what a kernel does not write is not the one before's
        if isinstance(candidate, Peer):
            return candidate.make(*self.qkv, self.workload.variant.causal)
        # The kernel itself, without what `forward` does around it on the host.
        kernel, o, scale = self.kernel(candidate), self.o, self.workload.problem.d_head**-0.5
        plan = kernel.plan(*self.qkv, o)

        def run() -> torch.Tensor:
            workspace = workspace_for(plan, o.device)
            kernel(*self.qkv, o, scale, workspace=workspace)
            return o

        return run

    def compare(self, o: torch.Tensor) -> Comparison:
        return compare(o, self.exact, self.low_precision)

    def check(self, candidate: Candidate) -> Checked:
        """Never raises for what is wrong with the candidate, except:

        Raises:
            GpuLostError: It broke the GPU's state for this process.
        """
        if isinstance(candidate, Peer) and (why := candidate.why_missing()):
            return Checked(candidate, MISSING, why)
        try:
            run = self.prepare(candidate)
            comparison = self.compare(run())
        except Exception as error:
            return Checked(candidate, FAILED, why_failed(name_of(candidate), error, self.o))
        if not comparison.ok:
            return Checked(candidate, WRONG, why_wrong(comparison), comparison=comparison)
        return Checked(candidate, OK, run=run, comparison=comparison)

    def kernel(self, config: ForwardKernelConfig) -> Kernel:
        instance = KernelId(config, self.workload.variant)
        return find_kernel(instance, target_of(self.o.device))

    def counters(self, config: ForwardKernelConfig) -> dict[str, int]:
        """Returns what the emulator counted of the kernel's last run; a GPU counts nothing."""
        return {} if self.o.is_cuda else Emulation(self.kernel(config)).counters()
