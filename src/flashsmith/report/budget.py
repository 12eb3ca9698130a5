"""How long each unit of a multiprocessor is busy at least, set against the measured time.

A unit's busy time is a lower bound of the kernel's: what the emulator and the machine code count,
over what the unit does in a cycle. The unit whose bound is next to the measured time is the one the
kernel waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.configs import ForwardKernelInstance, get_gpu_architecture
from flashsmith.configs.gpu import WARP_SIZE
from flashsmith.report.counts import Counts, n_blocks, n_visits
from flashsmith.report.measured import Shape
from flashsmith.report.occupancy import SCHEDULERS_PER_SM
from flashsmith.report.sass import Mix

# CUDA programming guide, "Throughput of Native Arithmetic Instructions": results of ex2 a cycle.
_EX2_PER_CYCLE = 16
# Multiply-adds of FP16 with FP32 sums on the tensor cores, a cycle and multiprocessor: NVIDIA's
# A100 and H100 whitepapers. mma.sync, which these kernels use, stays below it on sm_90.
_TENSOR_FMA_PER_CYCLE = {(8, 0): 1024, (9, 0): 2048}

_SM_COUNT = {
    "A100": 108,
    "H100 NVL": 132,
    "H100 PCIe": 114,
    "H100 80GB HBM3": 132,
    "H200": 132,
}

UNITS = {
    "shared memory": "one wavefront of up to 128 bytes a cycle",
    "tensor cores": "at the rated speed; mma.sync stays below it on sm_90",
    "issue slots": f"{SCHEDULERS_PER_SM} instructions of a warp a cycle",
    "exponentials": f"{_EX2_PER_CYCLE} a cycle",
}


@dataclass(frozen=True)
class Machine:
    """A GPU at the clock it ran at."""

    name: str
    arch: str
    sm_count: int
    clock_mhz: float

    @property
    def compute_capability(self) -> tuple[int, int]:
        return get_gpu_architecture(self.arch).compute_capability

    def ms(self, cycles: float) -> float:
        """Milliseconds for cycles that all multiprocessors share."""
        return cycles / self.sm_count / self.clock_mhz / 1e3


def find_machine(gpu: str, arch: str, clock_mhz: float | None) -> Machine | None:
    """None if the number of multiprocessors or the clock is not known."""
    # The longest name first: "H100 PCIe" is no "H100".
    for name in sorted(_SM_COUNT, key=len, reverse=True):
        if name.lower() in gpu.lower() and clock_mhz:
            return Machine(gpu, arch, _SM_COUNT[name], clock_mhz)
    return None


def busy_ms(
    instance: ForwardKernelInstance,
    shape: Shape,
    machine: Machine,
    counts: Counts | None,
    loop: Mix | None,
) -> dict[str, float]:
    """Milliseconds that each of UNITS is busy, of those that can be told."""
    heads = shape.batch * shape.heads
    visits = heads * n_visits(instance, shape.seq_len)
    blocks = heads * n_blocks(instance, shape.seq_len)
    cycles: dict[str, float] = {}
    if counts is not None:
        name = "shared_wavefronts"
        cycles["shared memory"] = visits * counts.per_visit[name] + blocks * counts.per_block[name]
    if fma_per_cycle := _TENSOR_FMA_PER_CYCLE.get(machine.compute_capability):
        cycles["tensor cores"] = visits * _fma_per_visit(instance) / fma_per_cycle
    if loop is not None:
        warp_visits = visits * (instance.config.threads_per_block // WARP_SIZE)
        cycles["issue slots"] = warp_visits * loop.total / SCHEDULERS_PER_SM
        cycles["exponentials"] = warp_visits * loop.ex2 * WARP_SIZE / _EX2_PER_CYCLE
    return {unit: machine.ms(n) for unit, n in cycles.items()}


def bank_conflicts(instance: ForwardKernelInstance, shape: Shape, counts: Counts) -> float:
    """Wavefronts beyond those without conflicts, of a whole launch."""
    heads = shape.batch * shape.heads
    visits = heads * n_visits(instance, shape.seq_len)
    blocks = heads * n_blocks(instance, shape.seq_len)
    return visits * counts.conflicts + blocks * (
        counts.per_block["shared_wavefronts"] - counts.per_block["shared_wavefronts_ideal"]
    )


def _fma_per_visit(instance: ForwardKernelInstance) -> int:
    cfg = instance.config
    return 2 * cfg.B_r * cfg.B_c * cfg.d_head
