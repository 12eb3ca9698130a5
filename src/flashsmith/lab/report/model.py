"""The contents of the page, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashsmith.configs import KernelConfig, KernelId, Workload
from flashsmith.lab.report.banks import BankMap
from flashsmith.lab.report.description import (
    SHARED_BYTES_PER_CYCLE,
    UNIT_OF_WORK,
    CountedLaunch,
    Counts,
    Role,
    Work,
    changed_fields,
    fma_per_visit,
    group_name,
)
from flashsmith.lab.report.occupancy import Occupancy
from flashsmith.lab.report.results import BASELINE, Profile, Results, Time
from flashsmith.lab.report.sass import MachineCode

_MIN_CHANGE = 0.005  # smaller relative changes are left out


@dataclass(frozen=True)
class Resources:
    """ptxas' figures of a kernel on one architecture."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int  # of a block, static and dynamic
    roles: list[Role]
    occupancy: Occupancy


@dataclass(frozen=True)
class Function:
    """One of the functions that a kernel, or a set of kernels, is compiled to."""

    name: str
    registers: int
    spill_stores: int
    code: MachineCode | None


@dataclass(frozen=True)
class KernelReport:
    """One kernel, or the set of kernels of one call.

    Resources and machine code are those of the function with most registers; ``functions`` has all.
    None stands for what could not be determined.
    """

    number: int  # in its group, from 1
    instance: KernelId
    resources: Resources | None
    counts: Counts | None
    code: MachineCode | None
    time: Time | None
    busy_ms: dict[str, float]
    clock_mhz: float | None  # the clock that busy_ms assumes
    profile: Profile | None
    profiled_conflicts: float | None  # the emulator's count for the profile's workload
    functions: list[Function] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def busy_share(self) -> dict[str, float]:
        """The share of the measured time for which each unit is busy."""
        return {unit: ms / self.time.ms for unit, ms in self.busy_ms.items()} if self.time else {}

    @property
    def busy_cycles(self) -> dict[str, float]:
        """Thousands of cycles for which each unit is busy, comparable between clocks."""
        return {unit: ms * (self.clock_mhz or 1) for unit, ms in self.busy_ms.items()}

    @property
    def busiest(self) -> str | None:
        return max(self.busy_ms, key=self.busy_ms.__getitem__, default=None)

    @property
    def shared_cycles(self) -> float | None:
        """The cycles for which a visit keeps shared memory busy."""
        if self.counts is None:
            return None
        visit = CountedLaunch(self.counts, Work(0, 1, 1))
        return visit.shared_bytes(self.instance.config) / SHARED_BYTES_PER_CYCLE

    def quantities(self, per_work: bool) -> dict[str, float]:
        """Returns the quantities that depend on the configuration, by their names in the tables.

        per_work: Whether they are per UNIT_OF_WORK, since a visit's work depends on the tile.
        """
        found: dict[str, float] = {}
        config = self.instance.config
        unit = f"for {UNIT_OF_WORK}" if per_work else "a visit"
        scale = 1e6 / fma_per_visit(config) if per_work else 1.0
        if self.counts:
            found |= self.counts.quantities(unit, scale)
        if self.code and self.code.loop and self.code.shortest:
            warps = config.compute_warps if per_work else 1
            name = f"instructions {unit}" if per_work else "instructions in the main loop"
            found[name] = scale * warps * self.code.loop.total
            found[f"{name}, at least"] = scale * warps * self.code.shortest
        if self.resources:
            found |= {
                "registers a thread": self.resources.registers,
                "bytes spilled a thread": self.resources.spill_stores,
                "blocks an SM": self.resources.occupancy.blocks,
            }
        found["bytes of shared memory a block"] = config.shared_memory_bytes
        return found


@dataclass(frozen=True)
class Step:
    """The step from one kernel to the next."""

    before: KernelReport
    after: KernelReport

    @property
    def changes(self) -> list[str]:
        return changed_fields(self.before.instance.config, self.after.instance.config)

    @property
    def speedup(self) -> float | None:
        if self.before.time and self.after.time:
            return self.before.time.ms / self.after.time.ms
        return None

    @property
    def quantities(self) -> list[tuple[str, float, float]]:
        """(name, before, after) of each quantity that differs noticeably."""
        a, b = self.before, self.after
        per_work = len({fma_per_visit(each.instance.config) for each in (a, b)}) > 1
        before, after = a.quantities(per_work), b.quantities(per_work)
        return [
            (name, value, after[name])
            for name, value in before.items()
            if name in after and abs(after[name] - value) > _MIN_CHANGE * max(abs(value), 1)
        ]

    @property
    def headline(self) -> str:
        speedup = self.speedup
        if speedup is None:
            return "not measured in one run"
        if speedup >= 2:
            return f"{speedup:.1f} times as fast"
        percent = 100 * (1 - 1 / speedup)
        if abs(percent) < 0.05:
            return "as fast"
        return f"{abs(percent):.1f}% {'less' if percent > 0 else 'more'} time"

    @property
    def reason(self) -> str:
        """A sentence on the work of the formerly busiest unit, and on the unit that is it now."""
        a, b = self.before, self.after
        if not (a.busiest and b.busiest and a.busiest in b.busy_ms):
            return ""
        unit = a.busiest
        change = b.busy_cycles[unit] / a.busy_cycles[unit] - 1
        work = f"{abs(change):.0%} {'less' if change < 0 else 'more'} work"
        if abs(change) < _MIN_CHANGE:
            work = "the same work"
        text = (
            f"The busiest unit, {unit}, was busy for at least {a.busy_share[unit]:.0%} of the "
            f"time; it now has {work}, and is busy for {b.busy_share[unit]:.0%}."
        )
        if b.busiest != unit:
            text += f" The busiest unit is now {b.busiest}, with {b.busy_share[b.busiest]:.0%}."
        return text


@dataclass(frozen=True)
class Group:
    """Kernels of one class of configurations that compute the same: one dtype, d_head and mask."""

    kernels: list[KernelReport]
    run: list[Time]  # one run on one workload, peers included
    best: list[Time]  # flashsmith's fastest kernels on this workload, see comparison.py
    sweep: list[Time]  # one run over lengths, peers included; perhaps of another dtype
    faster_families: list[Time]  # see comparison.py
    profiles: list[Profile]  # one run on one workload, peers included
    bank_maps: list[BankMap]
    note: str = ""  # on times of older kernels than today's, see lab/bench/provenance.py

    @property
    def config(self) -> KernelConfig:
        """The configuration of the first kernel; all kernels have its class."""
        return self.kernels[0].instance.config

    @property
    def title(self) -> str:
        mask = self.kernels[0].instance.variant.name
        kind = f"{self.config.dtype}, d_head {self.config.d_head}, {mask} attention"
        return f"{kind}, {group_name(self.config)}"

    @property
    def family(self) -> str:
        return self.config.family

    @property
    def workload(self) -> Workload | None:
        return self.run[0].workload if self.run else None

    @property
    def baseline(self) -> Time | None:
        return next((time for time in self.run if time.candidate == BASELINE), None)

    @property
    def peers(self) -> list[Time]:
        return [time for time in self.run if isinstance(time.candidate, str)]

    @property
    def series(self) -> dict[str, dict[int, Time]]:
        """Times by name and length: the sweep's peers, our best kernels of each family in the
        sweep, and the faster ones of other families in other runs."""
        peers: dict[str, dict[int, Time]] = {}
        ours: dict[str, dict[int, Time]] = {}
        for time in [*self.sweep, *self.faster_families]:
            length = time.workload.problem.seq_len_k
            if time.family is None:
                peers.setdefault(time.name, {})[length] = time
                continue
            elsewhere = "" if time.run == self.sweep[0].run else ", another run"
            best = ours.setdefault(f"flashsmith {time.family}, best{elsewhere}", {})
            if length not in best or time.ms < best[length].ms:
                best[length] = time
        return peers | ours

    @property
    def loop_classes(self) -> set[str]:
        """The classes of instructions in the main loops."""
        loops = [kernel.code.loop for kernel in self.kernels if kernel.code and kernel.code.loop]
        return {name for loop in loops for name, n in loop.classes.items() if n}

    @property
    def busy_units(self) -> set[str]:
        return {unit for kernel in self.kernels for unit in kernel.busy_share}

    @property
    def steps(self) -> list[Step]:
        return [Step(a, b) for a, b in zip(self.kernels, self.kernels[1:], strict=False)]

    @property
    def largest_step(self) -> Step | None:
        measured = [step for step in self.steps if step.speedup and step.speedup > 1]
        return max(measured, key=lambda step: step.speedup or 0, default=None)

    @property
    def fastest(self) -> KernelReport | None:
        measured = [kernel for kernel in self.kernels if kernel.time]
        return min(measured, key=lambda kernel: kernel.time.ms if kernel.time else 0, default=None)

    @property
    def faster(self) -> list[tuple[Time, float]]:
        """The times in ``best`` that are below those of all kernels here, with the speedups."""
        mine = self.fastest.time if self.fastest else None
        if mine is None:
            return []
        return [(time, mine.ms / time.ms) for time in self.best if time.ms < mine.ms]

    def of_baseline(self, time: Time) -> float | None:
        """Returns the baseline's time over this one's."""
        return self.baseline.ms / time.ms if self.baseline else None


@dataclass(frozen=True)
class Report:
    groups: list[Group]
    arch: str
    results: Results
    missing: dict[str, str] = field(default_factory=dict)  # part of the page -> why it is absent

    @property
    def families(self) -> list[str]:
        """The names of the groups' families, each once."""
        return list(dict.fromkeys(group.family for group in self.groups))

    @property
    def operations(self) -> list[str]:
        """The names of the groups' operations, each once."""
        return list(dict.fromkeys(group.config.operation for group in self.groups))
