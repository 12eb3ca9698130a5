"""Kernels run on inputs, checked against the reference and, on a GPU, timed against FA2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from flashsmith import runtime
from flashsmith.bench import PEERS, time_interleaved
from flashsmith.cli.tensors import Inputs
from flashsmith.configs import ForwardKernelInstance
from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY
from flashsmith.errors import DeviceError, EmulatorFault
from flashsmith.jit import Progress
from flashsmith.ops.forward import forward, kernel_for
from flashsmith.reference import compare, reference_by_head
from flashsmith.runtime import emulation
from flashsmith.runtime.device import target_of

_FA2 = "fa2"


@dataclass
class Result:
    """One kernel's run. Counts are the emulator's, times a GPU's; a faulty kernel has neither."""

    kernel: str
    error: float = math.inf
    tolerance: float = math.nan
    ok: bool = False
    worst: str = ""  # where the error is, or the fault
    counts: dict[str, int] = field(default_factory=dict)
    ms: float | None = None
    tflops: float | None = None
    fa2_percent: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose_device(wanted: str | None) -> tuple[str, str]:
    """Where to run, `cuda` or `cpu` (the emulator), and the reason.

    Raises:
        DeviceError: cuda is wanted, and torch has no GPU that the kernels run on.
        ValueError: ``wanted`` is neither.
    """
    if wanted not in (None, "cuda", "cpu"):
        raise ValueError(f"--device is {wanted!r}; supported are cuda and cpu (the emulator)")
    if wanted == "cpu":
        return "cpu", "as asked"
    why_not = _why_no_gpu()
    if not why_not:
        return "cuda", torch.cuda.get_device_name()
    if wanted == "cuda":
        raise DeviceError(f"--device cuda: {why_not}; --device cpu runs the emulator")
    return "cpu", why_not


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if torch.cuda.get_device_capability() < MIN_COMPUTE_CAPABILITY:
        return f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    return ""


def check_fit(
    instances: Sequence[ForwardKernelInstance], seq_len: int, *, plain: bool = True
) -> None:
    """Raises ValueError that names a kernel whose blocks have to divide the sequence and do not, or
    that takes k and v only as they are shaped if ``plain``: as q."""
    for instance in instances:
        if instance.config.takes(seq_len, plain=plain):
            continue
        if not plain:
            raise ValueError(
                f"kernel {instance} takes k and v shaped as q, which they are not; choose one of "
                "the sm90 family"
            )
        for name in ("B_r", "B_c"):
            block = getattr(instance.config, name)
            if seq_len % block != 0:
                raise ValueError(
                    f"the sequence length {seq_len} is no multiple of {name} {block} of kernel "
                    f"{instance}; pad it or choose other kernels"
                )


def load_kernels(
    instances: Sequence[ForwardKernelInstance], device: str, progress: Progress
) -> None:
    """As ``runtime.load_kernels``, for the tensors of a device."""
    runtime.load_kernels(instances, target_of(torch.device(device)), progress)


def run_kernels(
    instances: Sequence[ForwardKernelInstance], inputs: Inputs
) -> tuple[list[Result], torch.Tensor]:
    """Every kernel once, compared with the reference. All of one variant.

    Returns:
        The results in the order of ``instances``, and o of the last kernel.
    """
    causal = instances[0].variant.causal
    exact = reference_by_head(*inputs, causal=causal)
    low_precision = reference_by_head(*inputs, causal=causal, compute=inputs.q.dtype)
    results = []
    o = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
    for instance in instances:
        o.fill_(math.nan)  # what a kernel does not write is not the one before's
        result = Result(instance.name)
        results.append(result)
        try:
            result.counts = _launch(instance, inputs, o)
        except EmulatorFault as fault:
            result.worst = str(fault)
            continue
        comparison = compare(o, exact, low_precision)
        result.error, result.tolerance = comparison.error, comparison.tolerance
        result.ok, result.worst = comparison.ok, comparison.worst
    return results, o


def time_kernels(
    instances: Sequence[ForwardKernelInstance], inputs: Inputs, results: Sequence[Result]
) -> float | None:
    """Adds times to the results that are right, in turn with FA2.

    Returns:
        FA2's milliseconds; None where k is not shaped as q: torch masks such scores otherwise.
    """
    q, k, v = inputs
    causal = instances[0].variant.causal
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    correct = [pair for pair in zip(instances, results, strict=True) if pair[1].ok]
    candidates: dict[str, Callable[[], object]] = {
        result.kernel: partial(forward, instance.config, q, k, v, o, causal=causal)
        for instance, result in correct
    }
    peers = {_FA2: PEERS[_FA2].make(*inputs, causal)} if inputs.plain else {}
    times = time_interleaved({**peers, **candidates})
    fa2_ms = times[_FA2].ms if peers else None
    for _, result in correct:
        result.ms = times[result.kernel].ms
        result.tflops = _flop(inputs, causal) / result.ms / 1e9
        result.fa2_percent = None if fa2_ms is None else 100 * fa2_ms / result.ms
    return fa2_ms


def _flop(inputs: Inputs, causal: bool) -> float:
    """Of both matrix products; a causal mask leaves half of the square that ends at the corner."""
    batch, seq_len_q, n_heads, d_head = inputs.q.shape
    seq_len_k = inputs.k.shape[1]
    scores: float = seq_len_q * seq_len_k
    if causal:
        shorter = min(seq_len_q, seq_len_k)
        scores = shorter**2 / 2 + max(seq_len_k - seq_len_q, 0) * seq_len_q
    return 4 * batch * n_heads * scores * d_head


def _launch(instance: ForwardKernelInstance, inputs: Inputs, o: torch.Tensor) -> dict[str, int]:
    """Writes o; what the emulator counted, nothing on a GPU."""
    launch = partial(forward, instance.config, *inputs, o, causal=instance.variant.causal)
    if o.is_cuda:
        launch()
        return {}
    kernel = kernel_for(instance.config, instance.variant.causal, o.device)
    with emulation(kernel) as emulated:
        launch()
        return emulated.counters()
