"""The minimum time for which each unit of an SM is busy, to compare with the measured time.

A unit's busy time is a lower bound of the kernel's time: the work that the emulator and the machine
code count, divided by the unit's throughput. The kernel waits for the unit whose bound comes
closest to the measured time.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.configs import KernelId, Workload
from flashsmith.gpus import (
    count_sms,
    find_compute_capability,
    get_gpu_architecture,
)
from flashsmith.lab.report.description import (
    SHARED_BYTES_PER_CYCLE,
    CountedLaunch,
    Counts,
    exponentials_per_visit,
    fma_per_visit,
    work_on,
)
from flashsmith.lab.report.occupancy import SCHEDULERS_PER_SM
from flashsmith.lab.report.sass import MachineCode

# Each unit of an SM with its throughput, in the order of the charts.
UNITS = {
    "shared memory": "128 bytes a cycle: a wavefront of a warp, or what wgmma and TMA move",
    "tensor cores": "at the rated speed, which mma.sync does not reach on sm_90",
    "issue slots": "4 instructions of a warp a cycle; counted on the shortest way through the loop",
    "exponentials": "16 a cycle",
    "L2 cache": "5120 bytes a cycle to all SMs together",
}
_EX2_PER_CYCLE = 16  # CUDA programming guide, "Throughput of Native Arithmetic Instructions"
# All SMs together read this many bytes: NVIDIA's A100 whitepaper. H100's number is not published.
_L2_BYTES_PER_CYCLE = 5120
# Tensor cores do this many FP16 multiply-adds with FP32 sums in a cycle of an SM: NVIDIA's A100 and
# H100 whitepapers. On sm_90 wgmma reaches the rate, mma.sync does not.
_TENSOR_FMA_PER_CYCLE = {(8, 0): 1024, (9, 0): 2048}


@dataclass(frozen=True)
class Machine:
    """A GPU at the clock of a measurement."""

    arch: str
    sm_count: int
    clock_mhz: float

    @property
    def compute_capability(self) -> tuple[int, int]:
        return get_gpu_architecture(self.arch).compute_capability

    def ms(self, cycles: float) -> float:
        """Returns milliseconds for cycles that all SMs share."""
        return cycles / self.sm_count / self.clock_mhz / 1e3


def find_machine(gpu: str, arch: str, clock_mhz: float | None) -> Machine | None:
    """Returns the machine of a measurement; None if the GPU or the clock is not known."""
    if find_compute_capability(gpu) is None or not clock_mhz:
        return None
    return Machine(arch, count_sms(gpu), clock_mhz)


def busy_ms(
    instance: KernelId,
    workload: Workload,
    machine: Machine,
    counts: Counts | None,
    code: MachineCode | None,
) -> dict[str, float]:
    """Returns the milliseconds for which each unit is busy, without units whose work is not known.

    Only a forward has issue slots: the loop of a backward or of decode may be a part of a visit.
    """
    config, work = instance.config, work_on(instance, workload.problem)
    cycles: dict[str, float] = {}
    launch = CountedLaunch(counts, work) if counts else None
    if launch:
        cycles["shared memory"] = launch.shared_bytes(config) / SHARED_BYTES_PER_CYCLE
    if fma_per_cycle := _TENSOR_FMA_PER_CYCLE.get(machine.compute_capability):
        counted = counts.fma_per_visit if counts else 0
        fma = max(fma_per_visit(config), counted)  # a backward may compute scores twice
        cycles["tensor cores"] = work.visits * fma / fma_per_cycle
    if code and code.shortest and config.operation == "forward":
        instructions = work.visits * config.compute_warps * code.shortest
        cycles["issue slots"] = instructions / SCHEDULERS_PER_SM
    cycles["exponentials"] = work.visits * exponentials_per_visit(config) / _EX2_PER_CYCLE
    if launch:
        cycles["L2 cache"] = machine.sm_count * launch.loaded_bytes / _L2_BYTES_PER_CYCLE
    return {unit: machine.ms(n) for unit, n in cycles.items()}


def bank_conflicts(instance: KernelId, workload: Workload, counts: Counts) -> float:
    """Returns the number of wavefronts that bank conflicts add to a launch."""
    launch = CountedLaunch(counts, work_on(instance, workload.problem))
    return launch["shared_wavefronts"] - launch["shared_wavefronts_ideal"]
