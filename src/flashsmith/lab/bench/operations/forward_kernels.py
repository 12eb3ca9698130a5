"""A forward kernel alone, without the work of `attention` on the host; every head of its result is
compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Workload
from flashsmith.lab.bench.operations.base import Given, OperationBench, OperationPeer
from flashsmith.lab.bench.peers import PEERS, Peer
from flashsmith.lab.bench.qkv import QKV, make_qkv
from flashsmith.reference import Comparison, compare, reference_by_head
from flashsmith.runtime import Emulation, Kernel, find_kernel
from flashsmith.runtime.device import target_of
from flashsmith.runtime.workspace import workspace_for

FORWARD_KERNELS = "forward kernels"  # the operation, in BENCHES
Candidate = ForwardKernelConfig | Peer
Run = Callable[[], torch.Tensor]


class Checker(Given):
    """Runs candidates of one workload on the same input, and compares each with the reference.

    Every head of every sample is compared: a kernel may be wrong in one of them alone, at the
    boundary of two tiles, say. The reference costs as much memory as the scores of one head.
    """

    _kernel: Kernel | None = None  # the kernel that was prepared last

    def __init__(self, workload: Workload, device: str, qkv: QKV | None = None) -> None:
        """Uses ``qkv``, which must be on ``device``, or draws it at random."""
        self.workload = workload
        self.qkv = qkv or make_qkv(workload.problem, device)
        self.o = torch.empty_like(self.qkv[0], memory_format=torch.contiguous_format)
        reference = partial(reference_by_head, *self.qkv, causal=workload.variant.causal)
        self.exact = reference(compute=torch.float32)
        self.low_precision = reference(compute=self.o.dtype)

    def prepare(self, candidate: Candidate) -> Run:
        """Returns the run of a candidate; all kernels write the same ``o``.

        Raises: The candidate's errors; for a kernel, also those of ``find_kernel``.
        """
        self.o.fill_(math.nan)  # a kernel must not pass with its predecessor's result
        self._kernel = None
        if isinstance(candidate, Peer):
            return candidate.make(*self.qkv, self.workload.variant.causal)
        kernel, o, scale = self.kernel(candidate), self.o, self.workload.problem.d_head**-0.5
        plan = kernel.plan(*self.qkv, o)
        self._kernel = kernel

        def run() -> torch.Tensor:
            workspace = workspace_for(plan, o.device)
            kernel(*self.qkv, o, scale, workspace=workspace)
            return o

        return run

    def compare(self, result: torch.Tensor) -> Comparison:
        return compare(result, self.exact, self.low_precision)

    def error_of(self, result: torch.Tensor) -> float:
        return self.compare(result).error

    def kernel(self, config: ForwardKernelConfig) -> Kernel:
        instance = KernelId(config, self.workload.variant)
        return find_kernel(instance, target_of(self.o.device))

    def counters(self) -> dict[str, int]:
        """Returns the emulator's counts of the kernel that was prepared last."""
        if self.o.is_cuda or self._kernel is None:
            return {}
        return Emulation(self._kernel).counters()


def _prepare(candidate: Candidate, checker: Checker) -> Run:
    return checker.prepare(candidate)


FORWARD_KERNELS_BENCH = OperationBench(
    prepare=lambda case, device: Checker(case.workload, device),
    ours={},
    kernels=ForwardKernelConfig.operation,
    of_config=_prepare,
    peers={name: OperationPeer(peer, partial(_prepare, peer)) for name, peer in PEERS.items()},
    first_calls_compile=False,
)
