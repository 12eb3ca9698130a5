"""Hashes the machine code of functions straight from cubins, without a disassembler."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from _units import compile_unit, first_finding, visit_units

from flashsmith.configs import KernelId
from flashsmith.errors import BuildError
from flashsmith.jit import Target
from flashsmith.jit.units import TranslationUnit
from flashsmith.lab.bench.machine_code_record import CodeRow
from flashsmith.selection.stamped_csv import replace_file

_TABLE_AT, _COUNT_AT = 0x28, 0x3C
_SECTION = struct.Struct("<IIQQQQII")  # a section header, up to and including sh_info
_HEADER_BYTES = 64
_BYTES_OF_INSTRUCTION = 16


def measure_cubins(
    instances: Sequence[KernelId], archs: Sequence[str], jobs: int, made: Path
) -> Iterator[CodeRow]:
    """Yields a row for each function of each kernel, on each of ``archs`` that its family takes.

    made: A folder of earlier results, by the keys of units, so that an interrupted run resumes.

    Raises:
        BuildError: The lint refuses a kernel, or a tool is missing or fails.
        OSError, subprocess.CalledProcessError: A tool is missing or fails.
    """
    target = Target.cuda(*archs)

    def rows_of(kernel: KernelId, unit: TranslationUnit, folder: Path) -> list[CodeRow]:
        known = made / f"{unit.key}.json"
        if not known.is_file():
            cubin = compile_unit(unit, folder)
            if finding := first_finding(unit, cubin):
                raise BuildError(f"{kernel.name} would be refused where it is built: {finding}")
            replace_file(known, json.dumps(functions_in(cubin.read_bytes())))
        return [(kernel.name, unit.arch, n, sha) for n, sha in json.loads(known.read_text())]

    for done, rows in enumerate(visit_units(instances, target, jobs, rows_of), 1):
        print(f"\r{done}", end="", file=sys.stderr, flush=True)
        yield from rows
    print(file=sys.stderr)


def functions_in(cubin: bytes) -> list[tuple[int, str]]:
    """Returns the number of instructions of each function, and a hash of its code and its number of
    registers, sorted so that names do not count."""
    return sorted(
        (len(code) // _BYTES_OF_INSTRUCTION, hashlib.sha256(code + registers).hexdigest()[:16])
        for name, registers, code in _sections(cubin)
        if name.startswith(".text.")
    )


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the name of each section, the highest byte of sh_info (of code: its registers), and
    its content."""
    (table,) = struct.unpack_from("<Q", cubin, _TABLE_AT)
    count, of_names = struct.unpack_from("<HH", cubin, _COUNT_AT)
    headers = [_SECTION.unpack_from(cubin, table + _HEADER_BYTES * i) for i in range(count)]
    names = headers[of_names][4]
    for name, _, _, _, offset, size, _, info in headers:
        text = cubin[names + name : cubin.index(b"\0", names + name)].decode()
        yield text, struct.pack("<I", info)[3:], cubin[offset : offset + size]
