"""Makes a Report of kernels: compiles them, disassembles them, emulates them, reads their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from flashsmith import settings
from flashsmith.configs import KernelId, require_buildable
from flashsmith.errors import BuildError, FlashsmithError, advice_for_missing
from flashsmith.jit import (
    KernelResources,
    Module,
    Progress,
    Target,
    build_kernels,
    find_modules,
    stamp_field,
)
from flashsmith.lab.bench.provenance import kernels_note
from flashsmith.lab.report.budget import bank_conflicts, busy_ms, find_machine
from flashsmith.lab.report.comparison import (
    best_at,
    best_run,
    best_sweep,
    faster_families,
    of_operation,
)
from flashsmith.lab.report.description import Counts, bank_maps, roles
from flashsmith.lab.report.model import Function, Group, KernelReport, Report, Resources
from flashsmith.lab.report.occupancy import compute_occupancy
from flashsmith.lab.report.results import Profile, Results, Time
from flashsmith.lab.report.sass import MachineCode, read_machine_code

T = TypeVar("T")
Kind = tuple[str, int, str]  # dtype, d_head and mask


def make_report(
    instances: Sequence[KernelId],
    results: Results,
    arch: str,
    progress: Progress,
    seq_len: int | None = None,
) -> Report:
    """Returns the report of kernels, in their order.

    The report names each part that is absent because a tool or a measurement is missing.

    Args:
        arch: The architecture whose registers and machine code are shown.
        seq_len: The measured length at which kernels are compared; default: see best_run.

    Raises:
        ValueError: There are no kernels, one cannot be built for ``arch``, or ``arch`` is unknown.
    """
    if not instances:
        raise ValueError("no kernels were chosen")
    for instance in instances:
        require_buildable(instance.config, arch)
    compute_occupancy(arch, 1, 1, 0)  # refuses an unknown architecture before anything is built
    return _Collector(results, arch, progress, seq_len).report(list(dict.fromkeys(instances)))


class _Collector:
    def __init__(
        self, results: Results, arch: str, progress: Progress, seq_len: int | None
    ) -> None:
        self.results, self.arch, self.progress = results, arch, progress
        self.seq_len = seq_len
        self.missing: dict[str, str] = {}
        self.modules: dict[KernelId, Module] = {}
        self.refused: set[KernelId] = set()  # kernels that the build refuses
        self.code: dict[str, MachineCode] = {}

    def report(self, instances: Sequence[KernelId]) -> Report:
        self.modules = self._cuda_modules(instances)
        self.refused = set(instances) - set(self.modules) if self.modules else set()
        for module in self.modules.values():
            code = self._try("machine code", partial(read_machine_code, module, self.arch))
            self.code |= code or {}
        counts = self._try("emulator counts", lambda: self._counts(instances)) or {}
        groups: dict[Any, list[KernelId]] = {}
        for each in instances:
            kind = (str(each.config.dtype), each.config.d_head, each.variant.name)
            groups.setdefault((type(each.config), kind), []).append(each)
        found = [self._group(kind, members, counts) for (_, kind), members in groups.items()]
        if not any(group.run for group in found):
            self.missing["times"] = self._why_no_times()
        elif not self.results.environment.get("ceilings"):
            self.missing["roofline"] = (
                "the results have no ceilings of this GPU; `flashsmith bench` measures them"
            )
        return Report(found, self.arch, self.results, self.missing)

    def _try(self, part: str, find: Callable[[], T]) -> T | None:
        """Returns what ``find`` returns; if a prerequisite is missing, None, and the report has a
        line on it."""
        try:
            return find()
        except ModuleNotFoundError as error:
            if (advice := advice_for_missing(error)) is None:
                raise
            self.missing[part] = advice
        except (FlashsmithError, OSError) as error:
            self.missing[part] = str(error)
        return None

    def _counts(self, instances: Sequence[KernelId]) -> dict[KernelId, Counts | None]:
        from flashsmith.lab.report.counts import count  # they load torch
        from flashsmith.runtime import find_kernels

        find_kernels(instances, Target.emulator(), self.progress)
        return {
            each: self._try(f"emulator counts of {each}", partial(count, each))
            for each in instances
        }

    def _cuda_modules(self, instances: Sequence[KernelId]) -> dict[KernelId, Module]:
        """Returns the module of each kernel; one that the build refuses has none."""
        part = "registers and machine code"
        try:
            return self._build(instances)
        except BuildError as error:
            if len(instances) == 1:
                self.missing[f"{part} of {instances[0]}"] = str(error)
                return {}
        except (FlashsmithError, OSError) as error:
            self.missing[part] = str(error)
            return {}
        return {each: m for one in instances for each, m in self._cuda_modules([one]).items()}

    def _build(self, instances: Sequence[KernelId]) -> dict[KernelId, Module]:
        target = Target.cuda(self.arch)
        found = find_modules(instances, target)
        missing = sorted(set(instances) - set(found))
        if missing and settings.BUILD.get() is False:
            raise FlashsmithError(
                f"{missing[0]} is not built for {self.arch}, and FLASHSMITH_BUILD forbids to build "
                "it"
            )
        built = build_kernels(missing, target, progress=self.progress) if missing else []
        return {each: modules[0] for each, modules in found.items()} | dict(
            zip(missing, built, strict=True)
        )

    def _why_no_times(self) -> str:
        if self.results.folder is None:
            return (
                "no results were found; `flashsmith bench` measures kernels and peers on a GPU, "
                "--results names its folder"
            )
        where = "" if self.seq_len is None else f" at a sequence of {self.seq_len}"
        return f"{self.results.folder} has none of these kernels{where}"

    def _group(
        self, kind: Kind, instances: Sequence[KernelId], counts: dict[KernelId, Counts | None]
    ) -> Group:
        config = instances[0].config
        all_times = of_operation(self.results.times, config.operation)
        run = best_run(all_times, kind, instances, self.seq_len)
        all_profiles = of_operation(self.results.profiles, config.operation)
        length = run[0].workload.problem.seq_len_k if run else None
        profiles = best_run(all_profiles, kind, instances, length)
        times_of = {time.candidate: time for time in reversed(run)}
        profiles_of = {profile.candidate: profile for profile in reversed(profiles)}
        sweep = best_sweep(all_times, kind, instances)
        return Group(
            [
                self._kernel(i, each, counts.get(each), times_of.get(each), profiles_of.get(each))
                for i, each in enumerate(instances, 1)
            ],
            run,
            best_at(all_times, run[0].workload, config.family) if run else [],
            sweep,
            faster_families(all_times, sweep),
            profiles,
            bank_maps(config),
            self._note(run, instances),
        )

    def _note(self, run: Sequence[Time], instances: Sequence[KernelId]) -> str:
        if not run or self.results.folder is None:
            return ""
        fields = [stamp_field(type(each.config)) for each in instances]
        note = kernels_note(self.results.folder / run[0].run, fields)
        return note and f"{note} All but the times is of today's kernels."

    def _kernel(
        self,
        number: int,
        instance: KernelId,
        counts: Counts | None,
        time: Time | None,
        profile: Profile | None,
    ) -> KernelReport:
        functions = self._functions(instance)
        code = functions[0].code if functions else None
        busy, clock = {}, None
        if time is not None:
            profiled = profile.clock_mhz if profile else None
            clock = time.sm_clock_mhz or profiled or self.results.sm_clock_mhz
            if machine := find_machine(self.results.gpu, self.arch, clock):
                busy = busy_ms(instance, time.workload, machine, counts, code)
        conflicts = None
        if profile and counts:
            conflicts = bank_conflicts(instance, profile.workload, counts)
        used = self._resources(instance)
        return KernelReport(
            number, instance, used, counts, code, time, busy, clock, profile, conflicts, functions
        )

    def _functions(self, instance: KernelId) -> list[Function]:
        return [
            Function(
                _short_name(each.function),
                each.registers,
                each.spill_stores,
                self.code.get(each.function),
            )
            for each in self._ptxas(instance)
        ]

    def _ptxas(self, instance: KernelId) -> list[KernelResources]:
        """Returns ptxas' figures of a kernel's functions, the one with most registers first.

        They are from the module, else from the results. A kernel that the build refuses has none,
        because the results' figures are of a different source.
        """
        if module := self.modules.get(instance):
            return sorted(module.resources, key=lambda each: -each.registers)
        if instance in self.refused:
            return []
        figures = self.results.registers.get((instance.name, self.arch))
        if not figures:
            return []
        names = ("registers", "spill_stores", "spill_loads", "shared")
        known = {name: figures[name] for name in names}
        return [KernelResources("", self.arch, **known, stack=0, barriers=0)]

    def _resources(self, instance: KernelId) -> Resources | None:
        if not (listed := self._ptxas(instance)):
            return None
        used = listed[0]
        config, registers = instance.config, used.registers
        shared = config.shared_memory_bytes + used.shared
        return Resources(
            registers,
            used.spill_stores,
            used.spill_loads,
            shared,
            roles(config, registers),
            compute_occupancy(self.arch, registers, config.threads_per_block, shared),
        )


def _short_name(mangled: str) -> str:
    """Returns `backward_dq_kernel` of `_ZN10flashsmith4sm8018backward_dq_kernelI...`."""
    name, rest = mangled, mangled.removeprefix("_ZN")
    while length := re.match(r"\d+", rest):
        start, end = length.end(), length.end() + int(length[0])
        name, rest = rest[start:end], rest[end:]
    return name
