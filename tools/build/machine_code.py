#!/usr/bin/env python3
"""Fingerprints of the kernels' machine code, to show that a change of the sources changes none.

    python tools/build/machine_code.py --out build/before.csv     # then change the sources
    python tools/build/machine_code.py --against build/before.csv
    python tools/build/machine_code.py --results benchmarks/results/<gpu>/<date>/<run>

Compiles what attention() takes on a GPU and both progressions, and writes for each kernel and
architecture the number of its instructions and a hash of them: opcodes, operands, guards and what
ptxas decided about their issue. Names of functions are not in it. Needs nvcc and cuobjdump.

The exit status is 1 if a kernel differs from the file, or only one side has it. A tuned table that
was measured before may be kept, with the new hash of the sources, only if none of its kernels does.

A run has in ``machine_code.csv`` the fingerprints of its kernels, made by --out from the sources
that it measured. ``--results`` compiles the same kernels from today's sources, and writes today's
hashes and which kernels differ to ``machine_code_now.json`` beside it. Pages quote the run with a
note unless none does.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from _units import visit_units

from flashsmith.configs import (
    VARIANTS,
    KernelId,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_instance,
    select_kernel_configs,
)
from flashsmith.errors import FlashsmithError
from flashsmith.jit import Target, find_cuda_toolkit, kernel_source_hash, stamp_field
from flashsmith.jit.disassembler import disassemble
from flashsmith.jit.machine_code import Function, parse_machine_code
from flashsmith.jit.units import TranslationUnit
from flashsmith.lab.bench.provenance import MACHINE_CODE_NOW
from flashsmith.lab.commands.build import arch_of
from flashsmith.selection.served import served_instances
from flashsmith.selection.tables import Table, shipped_table_path

Row = tuple[str, str, int, str]  # kernel, architecture, instructions, hash of them
_FINGERPRINTS = "machine_code.csv"
_HEADINGS = ("kernel", "arch", "instructions", "sha256")


def fingerprint(function: Function) -> str:
    digest = hashlib.sha256()
    for each in function.instructions:
        digest.update(f"{each.guard} {each.opcode} {each.operands} {each.control}\n".encode())
    return digest.hexdigest()[:16]


def default_instances(gpu: str, ranked: bool) -> list[KernelId]:
    """Both progressions and what attention() takes on ``gpu``; with ``ranked`` all of its table."""
    progressions = [*get_kernel_progression_configs(), *get_sm90_kernel_progression_configs()]
    found = {KernelId(cfg, v) for cfg in progressions for v in VARIANTS}
    found |= {*served_instances(gpu, variants=VARIANTS)}
    if ranked:
        for entry in Table.read(shipped_table_path(gpu)).entries.values():
            found |= {KernelId(row.config, entry.workload.variant) for row in entry.ranked}
    return sorted(found)


def measure(instances: Sequence[KernelId], archs: Sequence[str], jobs: int) -> Iterator[Row]:
    """Compiles each kernel for those of ``archs`` that its family is built for.

    Raises:
        FlashsmithError, OSError, subprocess.CalledProcessError: A tool is missing or fails.
    """
    target = Target.cuda(*archs)

    def rows_of(kernel: KernelId, unit: TranslationUnit, folder: Path) -> list[Row]:
        made = folder / unit.object_file
        command = [*unit.command, "-c", str(folder / unit.source_file), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return [
            (kernel.name, arch, len(function.instructions), fingerprint(function))
            for arch in target.archs
            for function in parse_machine_code(disassemble(made, arch))
        ]

    for done, rows in enumerate(visit_units(instances, target, jobs, rows_of), 1):
        print(f"\r{done}/{len(instances)}", end="", file=sys.stderr, flush=True)
        yield from rows
    print(file=sys.stderr)


def differences(before: Iterable[Row], after: Iterable[Row]) -> list[str]:
    """One sentence for each kernel that is not the same."""
    old = {row[:2]: row for row in before}
    new = {row[:2]: row for row in after}
    sentences = [
        f"{kernel} {arch}: only before" for kernel, arch in old if (kernel, arch) not in new
    ]
    for (kernel, arch), row in new.items():
        if (was := old.get((kernel, arch))) is None:
            sentences.append(f"{kernel} {arch}: only after")
        elif was != row:
            sentences.append(f"{kernel} {arch}: {was[2]} instructions before, {row[2]} after")
    return sentences


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [(kernel, arch, int(n), sha) for kernel, arch, n, sha in [*csv.reader(file)][1:]]


def write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([_HEADINGS, *rows])


def write_now(folder: Path, before: Sequence[Row], rows: Sequence[Row]) -> None:
    """Notes beside a run which of its kernels differ in machine code from today's."""
    kinds = {type(parse_kernel_name_into_instance(row[0]).config) for row in rows}
    document = {
        "checked": datetime.date.today().isoformat(),
        "nvcc": find_cuda_toolkit().nvcc.version,
        "kernels": len(rows),
        "differ": [row[0] for row in rows if row not in before],
        **{stamp_field(kind): kernel_source_hash(kind) for kind in sorted(kinds, key=stamp_field)},
    }
    (folder / MACHINE_CODE_NOW).write_text(json.dumps(document, indent=2) + "\n")


def chosen_instances(args: argparse.Namespace, before: Sequence[Row]) -> list[KernelId]:
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
    args = parser.parse_args(arguments)
    try:
        archs = sorted({"sm_80", arch_of(args.gpu)})
        against = args.results / _FINGERPRINTS if args.results else args.against
        before = read(against) if against else []
        rows = [*measure(chosen_instances(args, before), archs, args.jobs)]
        if args.out:
            write(args.out, rows)
    except subprocess.CalledProcessError as error:
        parser.exit(2, f"error: {error}\n{error.stderr}\n")
    except (ValueError, OSError, FlashsmithError) as error:
        parser.exit(2, f"error: {error}\n")
    found = differences(before, rows) if against else []
    if args.results:
        write_now(args.results, before, rows)
    print("\n".join([*found, f"{len(rows)} kernels, {len(found)} differ"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
