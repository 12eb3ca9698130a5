#!/usr/bin/env python3
"""Fingerprints the kernels' machine code, to show that a change of the sources does not change it.

    python tools/build/machine_code.py --restamp              # after a change of the sources
    python tools/build/machine_code.py --restamp --sample 16  # a quick look, which writes nothing
    python tools/build/machine_code.py --record
    python tools/build/machine_code.py --out build/before.csv     # then change the sources
    python tools/build/machine_code.py --against build/before.csv
    python tools/build/machine_code.py --results benchmarks/results/<gpu>/<date>/<run>

``--restamp`` compiles the kernels of ``benchmarks/results/machine_code_record.csv`` whose sources
changed, and compares the code in their cubins with the record. If every function is the same,
today's hashes of the sources go into the shipped tables and into the record, and the measurements
still count for today's kernels. Otherwise it lists the functions that differ, and writes nothing.
If code was changed on purpose, ``--record`` makes a new record of all that attention(), its
backward and decode() choose, and of both progressions. Compiled kernels are kept in
build/machine_code, so that an interrupted run resumes. Both need nvcc alone.

The other options compile what attention() chooses on a GPU and both progressions, and write the
number of instructions of each function, kernel and architecture, and a hash of them: opcodes,
operands, guards and what ptxas decided about their issue. They need cuobjdump, too. No fingerprint
includes the names of functions.

The exit status is 1 if a kernel differs, or only one side has it. A tuned table that was measured
before may be kept, with the new hash of the sources, only if none of its kernels differs.

A run keeps the fingerprints of its kernels in ``machine_code.csv``, made by --out from the sources
that it measured. ``--results`` compiles the same kernels from today's sources, and writes today's
hashes and the kernels that differ to ``machine_code_now.json`` beside it. Pages quote the run with
a note if any differs.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from _compare import differences, read, write
from _cubins import measure_cubins
from _restamp import changed_kernels, restamp, sample_of
from _units import compile_unit, visit_units

from flashsmith import settings
from flashsmith.configs import (
    VARIANTS,
    KernelId,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_instance,
    select_kernel_configs,
)
from flashsmith.errors import FlashsmithError
from flashsmith.jit import Target, find_cuda_toolkit, kernel_source_stamp, stamp_field
from flashsmith.jit.disassembler import disassemble
from flashsmith.jit.machine_code import Function, parse_machine_code
from flashsmith.jit.units import TranslationUnit
from flashsmith.lab.bench.machine_code_record import (
    RECORD,
    CodeRow,
    MachineCodeRecord,
    record_above,
)
from flashsmith.lab.bench.provenance import MACHINE_CODE_NOW
from flashsmith.lab.commands.build import arch_of
from flashsmith.selection.served import served_instances
from flashsmith.selection.tables import Table, shipped_table_path, shipped_table_paths

_ROOT = Path(__file__).resolve().parents[2]
_RECORD = _ROOT / "benchmarks" / "results" / RECORD
_MADE = _ROOT / "build" / "machine_code"
_OLDEST = "sm_80"
_FINGERPRINTS = "machine_code.csv"


def fingerprint(function: Function) -> str:
    digest = hashlib.sha256()
    for each in function.instructions:
        digest.update(f"{each.guard} {each.opcode} {each.operands} {each.control}\n".encode())
    return digest.hexdigest()[:16]


def default_instances(gpu: str, ranked: bool) -> list[KernelId]:
    """Returns both progressions and what attention() chooses on ``gpu``; if ``ranked``, its whole
    table."""
    progressions = [*get_kernel_progression_configs(), *get_sm90_kernel_progression_configs()]
    found = {KernelId(cfg, v) for cfg in progressions for v in VARIANTS}
    found |= {*served_instances(gpu, variants=VARIANTS)}
    if ranked:
        for entry in Table.read(shipped_table_path(gpu)).entries.values():
            found |= {KernelId(row.config, entry.workload.variant) for row in entry.ranked}
    return sorted(found)


def recorded_instances(gpu: str) -> list[KernelId]:
    """Returns the default kernels, those of attention() on the oldest GPU, and all that its
    backward and decode() choose."""
    configs = select_kernel_configs([settings.BACKWARD_SET, settings.DECODE_SET])
    found = {KernelId(cfg, v) for cfg in configs for v in VARIANTS}
    found |= {*default_instances(gpu, ranked=True), *served_instances(_OLDEST, variants=VARIANTS)}
    return sorted(found)


def measure(instances: Sequence[KernelId], archs: Sequence[str], jobs: int) -> Iterator[CodeRow]:
    """Compiles each kernel for the ``archs`` that its family is built for, and yields its rows.

    Raises:
        FlashsmithError, OSError, subprocess.CalledProcessError: A tool is missing or fails.
    """
    target = Target.cuda(*archs)

    def rows_of(kernel: KernelId, unit: TranslationUnit, folder: Path) -> list[CodeRow]:
        code = parse_machine_code(disassemble(compile_unit(unit, folder), unit.arch))
        return [
            (kernel.name, unit.arch, len(function.instructions), fingerprint(function))
            for function in code
        ]

    for done, rows in enumerate(visit_units(instances, target, jobs, rows_of), 1):
        print(f"\r{done}", end="", file=sys.stderr, flush=True)
        yield from rows
    print(file=sys.stderr)


def write_now(folder: Path, before: Sequence[CodeRow], rows: Sequence[CodeRow]) -> None:
    """Writes beside a run which of its kernels differ in machine code from today's."""
    kernels = {parse_kernel_name_into_instance(row[0]) for row in rows}
    fields = {stamp_field(type(kernel.config)) for kernel in kernels}
    document = {
        "checked": datetime.date.today().isoformat(),
        "nvcc": find_cuda_toolkit().nvcc.version,
        "kernels": len({kernel for kernel, *_ in rows}),
        "differ": sorted({kernel for kernel, _ in differences(before, rows)}),
        **{field: kernel_source_stamp()[field] for field in sorted(fields)},
    }
    (folder / MACHINE_CODE_NOW).write_text(json.dumps(document, indent=2) + "\n")


def record_anew(gpu: str, archs: Sequence[str], jobs: int) -> str:
    """Writes the record, and keeps earlier sources of a family if today's are its latest ones."""
    before = record_above(_RECORD)
    rows = tuple(measure_cubins(recorded_instances(gpu), archs, jobs, _MADE))
    sources = {
        field: before.same_sources(field, today) for field, today in kernel_source_stamp().items()
    }
    MachineCodeRecord(find_cuda_toolkit().nvcc.version, sources, rows).write(_RECORD)
    return f"{len({row[0] for row in rows})} kernels recorded"


def compare_and_restamp(jobs: int, sample: int | None) -> list[str]:
    """Returns a sentence for each kernel that differs from the record; if none does, restamps all.

    sample: If given, only this number of kernels is compared, and nothing is written.

    Raises:
        FlashsmithError, ValueError, OSError, subprocess.CalledProcessError: There is no record, it
            is of another compiler or of other kernels, or a tool fails.
    """
    record, today = MachineCodeRecord.read(_RECORD), kernel_source_stamp()
    if record.nvcc != (here := find_cuda_toolkit().nvcc.version):
        raise ValueError(f"the record is of nvcc {record.nvcc}; here is {here}")
    kernels = changed_kernels(record, today)
    if not kernels:
        print("no kernel has other sources than the record")
        return []
    if sample is not None:
        kernels = sample_of(kernels, sample)
    archs, names = {row[1] for row in record.rows}, {kernel.name for kernel in kernels}
    before = [row for row in record.rows if row[0] in names]
    found = differences(before, measure_cubins(kernels, sorted(archs), jobs, _MADE))
    print(f"{len(kernels)} kernels compared, {len({kernel for kernel, _ in found})} differ")
    if sample is None and not found:
        restamp(_RECORD, record, today, shipped_table_paths())
    return [*found.values(), "nothing is restamped: machine code changed"] if found else []


def chosen_instances(args: argparse.Namespace, before: Sequence[CodeRow]) -> list[KernelId]:
    if args.results:
        return sorted({parse_kernel_name_into_instance(row[0]) for row in before})
    if args.kernels:
        configs = select_kernel_configs(args.kernels)
        return sorted(KernelId(cfg, v) for cfg in configs for v in VARIANTS)
    return default_instances(args.gpu, args.ranked)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the kernels' machine code.")
    parser.add_argument("--kernels", nargs="+", metavar="KEY|NAME", help="in place of the default")
    parser.add_argument("--gpu", default="NVIDIA H200", help="(default: %(default)s)")
    parser.add_argument("--ranked", action="store_true", help="all kernels of the GPU's table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    parser.add_argument("--against", type=Path, help="a CSV file to compare with")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="the kernels of its machine_code.csv"
    )
    parser.add_argument("--record", action="store_true", help="make the record anew")
    parser.add_argument("--restamp", action="store_true", help="compare with it, renew the tables")
    parser.add_argument("--sample", type=int, metavar="N", help="restamp: compare N kernels only")
    args = parser.parse_args(arguments)
    try:
        if args.restamp:
            sentences = compare_and_restamp(args.jobs, args.sample)
            print("\n".join(sentences))
            return bool(sentences)
        archs = sorted({"sm_80", arch_of(args.gpu)})
        if args.record:
            print(record_anew(args.gpu, archs, args.jobs))
            return 0
        against = args.results / _FINGERPRINTS if args.results else args.against
        before = read(against) if against else []
        rows = [*measure(chosen_instances(args, before), archs, args.jobs)]
        if args.out:
            write(args.out, rows)
    except subprocess.CalledProcessError as error:
        parser.exit(2, f"error: {error}\n{error.stderr}\n")
    except (ValueError, OSError, FlashsmithError) as error:
        parser.exit(2, f"error: {error}\n")
    found = differences(before, rows) if against else {}
    if args.results:
        write_now(args.results, before, rows)
    n_kernels, n_found = (len({kernel for kernel, *_ in each}) for each in (rows, found))
    print("\n".join([*found.values(), f"{n_kernels} kernels, {n_found} differ"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
