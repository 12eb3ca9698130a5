"""Runs the compilers: ninja compiles the missing units, and each is published when it is done.

The job that compiles a kernel also disassembles it, so that disassemblers run in parallel. The
machine code is linted once, before its module is published.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.disassembler import find_cuobjdump, search_path
from flashsmith.jit.lint import Lint, lint_machine_code
from flashsmith.jit.ninja_files import FailedJob, run_ninja, shell_value
from flashsmith.jit.preludes import Precompiled
from flashsmith.jit.toolchain import LESS_MEMORY, OUT_OF_MEMORY
from flashsmith.jit.units import TranslationUnit

# The arguments are units done, units in all, and the one just finished.
Progress = Callable[[int, int, str], None]

BUILD_LOG = "build.log"
_MACHINE_CODE, _DISASSEMBLY_LOG = "machine_code.sass", "cuobjdump.log"
_DONE = "done"
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_COMPILER_BYTES = 1 << 30  # peak memory of one nvcc, rounded up
_LOG_TAIL_LINES = 30

# The last file appears only after the compiler succeeded and the log is on disk. A failing
# disassembler does not fail the job. The shell's own commands are enough, because an image may have
# no others.
_NINJA_RULE = r"""
rule compile
  command = log=$$($compiler $in -o $out 2>&1) && printf '%s\n' "$$log" > $log && $
    { $disassemble; } && $
    : > $done || { code=$$?; printf '%s\n' "$$log"; exit $$code; }
  description = $entry
"""


def default_jobs() -> int:
    """Returns FLASHSMITH_JOBS, else the processors that we may use, limited by memory."""
    chosen = settings.JOBS.get()
    if chosen is not None:
        return chosen
    processors = len(os.sched_getaffinity(0))
    with suppress(OSError, AttributeError):
        available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if available:
            return max(1, min(processors, int(available[1]) * 1024 // _COMPILER_BYTES))
    return processors


def compile_units(
    units: Sequence[TranslationUnit],
    cache: KernelCache,
    staging: Path,
    jobs: int,
    publish: Callable[[TranslationUnit, Path, Lint], object],
) -> None:
    """Compiles ``units``, ``jobs`` at a time.

    ``publish`` is called with each unit, the folder of its file, and the lint of its machine code,
    as soon as it is compiled. Raises BuildError for the first compiler that fails, after the
    running ones have finished, and for a header that changed meanwhile; CacheError for a full disk.
    """
    if not units:
        return
    by_entry = {unit.entry: unit for unit in units}
    disassembler, why_none = _disassembler(units)
    with cache.disk_errors():
        for unit in units:
            folder = staging / unit.entry
            folder.mkdir()
            for name, text in unit.files.items():
                (folder / name).write_text(text)
        precompiled = Precompiled([unit.prelude for unit in units])
        for name, text in precompiled.files.items():
            (staging / name).write_text(text)
        (staging / "build.ninja").write_text(_ninja_file(units, precompiled, disassembler))

    def finish(entry: str) -> None:
        unit = by_entry.get(entry)  # None for a compiler's output line that looks like ninja's
        if unit and (staging / entry / _DONE).exists():
            (staging / entry / _DONE).unlink()
            _require_unchanged(unit)
            _require_written(unit, staging / entry / unit.artifact)
            publish(unit, staging / entry, _lint(unit, staging / entry, why_none))

    output = run_ninja(staging, jobs, finish)
    if output is not None:
        _raise_failure(output, by_entry, cache, staging)


def _ninja_file(
    units: Sequence[TranslationUnit], precompiled: Precompiled, disassembler: Path | None
) -> str:
    lines = [_NINJA_RULE, *precompiled.ninja_lines()]
    for unit in units:
        folder = unit.entry
        compiler = shell_value(precompiled.command(unit.command, unit.prelude))
        needed = precompiled.needed_by(unit.prelude)
        lines += [
            f"build {folder}/{unit.artifact}: compile {folder}/{unit.source_file}{needed}",
            f"  compiler = {compiler}",
            f"  disassemble = {_disassemble_command(unit, disassembler)}",
            f"  entry = {folder}",
            f"  log = {folder}/{BUILD_LOG}",
            f"  done = {folder}/{_DONE}",
        ]
    return "\n".join(lines) + "\n"


def _disassembler(units: Sequence[TranslationUnit]) -> tuple[Path | None, str]:
    """Returns cuobjdump if there is machine code to lint, and why it is missing."""
    if not any(unit.is_linted for unit in units):
        return None, ""
    try:
        return find_cuobjdump(), ""
    except ToolchainError as error:
        return None, str(error)


def _disassemble_command(unit: TranslationUnit, disassembler: Path | None) -> str:
    if disassembler is None or not unit.is_linted:
        return ":"
    tool = f"PATH={shell_value([search_path(disassembler)])} {shell_value([str(disassembler)])}"
    folder = unit.entry
    text, log = f"{folder}/{_MACHINE_CODE}", f"{folder}/{_DISASSEMBLY_LOG}"
    return f"{tool} -sass {folder}/{unit.artifact} > {text} 2> {log} || : > {text}"


def _require_unchanged(unit: TranslationUnit) -> None:
    """Raises BuildError if the object may be compiled from other sources than its key says."""
    if changed := unit.headers.changed():
        raise BuildError(
            f"{', '.join(map(str, changed))} changed while {unit.label} was compiled; nobody knows "
            "which version the compiler read, so the result was thrown away: build again"
        )


def _require_written(unit: TranslationUnit, path: Path) -> None:
    """Raises BuildError if the compiler returned 0 but left an empty file or none."""
    wrote = "no file" if not path.exists() else "an empty file" if not path.stat().st_size else ""
    if wrote:
        raise BuildError(
            f"compiling {unit.label} wrote {wrote}, though the compiler says that it did not fail: "
            f"{shlex.join(unit.command)}"
        )


def _lint(unit: TranslationUnit, staged: Path, why_none: str) -> Lint:
    """Runs the lint on the machine code in ``staged``, then removes it: it is 20 times the module's
    size."""
    if not unit.is_linted:
        return Lint()
    if why_none:
        return Lint(not_linted=(why_none,))
    text, log = staged / _MACHINE_CODE, staged / _DISASSEMBLY_LOG
    failure = log.read_text(errors="replace").strip() if log.exists() else ""
    found = (
        lint_machine_code(text.read_text(errors="replace"), [unit.arch])
        if text.stat().st_size
        else Lint(not_linted=(f"cuobjdump failed: {failure or 'it printed nothing'}",))
    )
    text.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    return found


def _raise_failure(
    output: list[str], by_entry: dict[str, TranslationUnit], cache: KernelCache, staging: Path
) -> None:
    """Raises for the first failure in ninja's output; keeps the unit's source and log."""
    if line := full_disk_line("\n".join(output)):
        raise cache.full_error(line)
    failed = FailedJob.first(output)
    if failed is None:
        raise BuildError("ninja failed:\n" + "\n".join(output[-_LOG_TAIL_LINES:]))
    unit = by_entry[failed.description]
    hint = memory_hint(f"{failed.status}\n{failed.log}")
    kept = cache.failed / unit.entry
    with cache.disk_errors():
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(staging / unit.entry, kept)
        (kept / BUILD_LOG).write_text(f"{shlex.join(unit.command)}\n{failed.log}\n")
    raise BuildError(
        f"compiling {unit.label} failed\n{hint}"
        f"command: {shlex.join(unit.command)} {kept / unit.source_file}\n"
        f"the last lines of its output (whole in {kept / BUILD_LOG}):\n"
        + "\n".join(failed.log.splitlines()[-_LOG_TAIL_LINES:])
    )


def memory_hint(log: str) -> str:
    """Returns a line of advice if a program reported that memory ran out; else an empty string."""
    return f"it ended {LESS_MEMORY}\n" if OUT_OF_MEMORY.search(log) else ""


def full_disk_line(log: str) -> str:
    """Returns the first line that reports a full disk; an empty string if there is none."""
    lines = (line.strip() for line in log.splitlines())
    return next((line for line in lines if any(mark in line for mark in _DISK_FULL)), "")
