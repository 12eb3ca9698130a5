"""How long each unit of a multiprocessor is busy at least, set against the measured time.

A unit's busy time is a lower bound of the kernel's: what the emulator and the machine code count,
over what the unit does in a cycle. The unit whose bound is next to the measured time is the one the
kernel waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.configs import KernelId, Workload
from flashsmith.gpus import get_gpu_architecture
from flashsmith.report.families import family_of
from flashsmith.report.family import (
    EX2_PER_CYCLE,
    L2_BYTES_PER_CYCLE,
    SHARED_BYTES_PER_CYCLE,
    Counts,
    Launch,
    fma_per_visit,
    loaded_bytes,
)
from flashsmith.report.occupancy import SCHEDULERS_PER_SM
from flashsmith.report.sass import MachineCode

# Multiply-adds of FP16 with FP32 sums on the tensor cores, a cycle and multiprocessor: NVIDIA's
# A100 and H100 whitepapers. wgmma reaches this on sm_90, mma.sync stays below it.
_TENSOR_FMA_PER_CYCLE = {(8, 0): 1024, (9, 0): 2048}

_SM_COUNT = {
    "A100": 108,
    "H100 NVL": 132,
    "H100 PCIe": 114,
    "H100 80GB HBM3": 132,
    "H200": 132,
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
    instance: KernelId,
    workload: Workload,
    machine: Machine,
    counts: Counts | None,
    code: MachineCode | None,
) -> dict[str, float]:
    """Milliseconds that each unit is busy, of those that can be told, in the order of UNITS."""
    config, family = instance.config, family_of(instance.config)
    problem = workload.problem
    work = family.work(config, instance.variant, problem.seq_len_q, problem.seq_len_k)
    work *= problem.batch * problem.heads
    cycles: dict[str, float] = {}
    launch = Launch(counts, work, family.per_load) if counts else None
    if launch:
        cycles["shared memory"] = family.shared_bytes(config, launch) / SHARED_BYTES_PER_CYCLE
    if fma_per_cycle := _TENSOR_FMA_PER_CYCLE.get(machine.compute_capability):
        cycles["tensor cores"] = work.visits * fma_per_visit(config) / fma_per_cycle
    if code and code.shortest:
        instructions = work.visits * family.compute_warps(config) * code.shortest
        cycles["issue slots"] = instructions / SCHEDULERS_PER_SM
    cycles["exponentials"] = work.visits * family.exponentials_per_visit(config) / EX2_PER_CYCLE
    if launch:
        cycles["L2 cache"] = machine.sm_count * loaded_bytes(launch) / L2_BYTES_PER_CYCLE
    return {unit: machine.ms(n) for unit, n in cycles.items()}


def bank_conflicts(instance: KernelId, workload: Workload, counts: Counts) -> float:
    """Wavefronts beyond those without conflicts, of a whole launch."""
    launch = family_of(instance.config).launch(instance, counts, workload.problem.seq_len_k)
    conflicts = launch["shared_wavefronts"] - launch["shared_wavefronts_ideal"]
    return workload.problem.batch * workload.problem.heads * conflicts
