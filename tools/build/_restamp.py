"""Stamps tables with today's hashes of sources if they give the measured machine code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from flashsmith.configs import KernelId, parse_kernel_name_into_instance
from flashsmith.jit import stamp_field
from flashsmith.lab.bench.machine_code_record import MachineCodeRecord
from flashsmith.selection.stamped_csv import replace_file
from flashsmith.selection.tables import Table


def changed_kernels(record: MachineCodeRecord, today: Mapping[str, str]) -> list[KernelId]:
    """Returns the kernels of the record whose families have other sources today.

    Raises:
        ValueError: A family is not in the record, or a kernel of the record no longer exists.
    """
    if new := sorted(today.keys() - record.sources.keys()):
        raise ValueError(f"the record has no {', '.join(new)}; --record makes it anew")
    kernels = {parse_kernel_name_into_instance(row[0]) for row in record.rows}
    fields = ((kernel, stamp_field(type(kernel.config))) for kernel in kernels)
    return sorted(kernel for kernel, field in fields if record.sources[field][-1] != today[field])


def sample_of(kernels: list[KernelId], size: int) -> list[KernelId]:
    """Returns at most ``size`` kernels, spread evenly over the list."""
    return [kernels[i * len(kernels) // size] for i in range(min(size, len(kernels)))]


def restamp(
    path: Path, record: MachineCodeRecord, today: Mapping[str, str], tables: Iterable[Path]
) -> None:
    """Writes today's hashes into tables and the record, whose machine code today's sources give. A
    table keeps the hashes of families of which it has no kernel.

    Raises:
        TuningError, ValueError: A table is not covered by the record. Then nothing is written.
    """
    texts = {table: _renewed(table, record, today) for table in tables}
    for table, text in texts.items():
        replace_file(table, text)
    sources = {
        field: hashes if hashes[-1] == today[field] else (*hashes, today[field])
        for field, hashes in record.sources.items()
    }
    replace(record, sources=sources).write(path)


def _renewed(path: Path, record: MachineCodeRecord, today: Mapping[str, str]) -> str:
    table = Table.read(path)
    recorded = {row[0] for row in record.rows}
    kernels = {
        KernelId(row.config, entry.workload.variant)
        for entry in table.entries.values()
        for row in entry.ranked
    }
    if missing := sorted({kernel.name for kernel in kernels} - recorded):
        raise ValueError(f"{path} has {len(missing)} kernels that no record has: {missing[0]}, ...")
    text = path.read_text()
    fields = {stamp_field(type(kernel.config)) for kernel in kernels}
    for field in sorted(fields & table.stamp.keys()):
        was = table.stamp[field]
        if was not in record.sources[field]:
            raise ValueError(f"{path} was measured with {field} {was}, which the record has not")
        text = text.replace(f"# {field}: {was}\n", f"# {field}: {today[field]}\n", 1)
    return text
