#!/usr/bin/env python3
"""Builds wheels that compute without a compiler: with the host library and the usual kernels.

    python tools/build/wheels.py                          # x86_64 and aarch64, into dist/
    python tools/build/wheels.py --plan                   # says how many kernels, and builds none
    python tools/build/wheels.py --machine x86_64 --arch sm_90a --sizes build/sizes.csv

Cubins are the same on every machine; they are built into the kernel cache, as by `flashsmith
build`, and taken from there the next time. docs/how-to/wheels.md has the details.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from _wheel_files import parts_of, platform_wheel, pure_wheel, write_csv
from _wheel_kernels import ARCHS, SERVED, kernels_of_cpus, kernels_of_gpus
from _zig import GLIBC, MACHINES, zig_toolchain

from flashsmith.cli.tables import note, print_table
from flashsmith.errors import FlashsmithError
from flashsmith.jit import (
    HostLibrary,
    KernelCache,
    Module,
    Target,
    build_host,
    build_kernels,
    show_progress,
)

_ROOT = Path(__file__).resolve().parents[2]
_BUILT = _ROOT / "build" / "wheels"  # kept, so that only what changed is compiled again
_MOST_BYTES = 60_000_000
_OWN = "own"


def build_cubins(archs: Sequence[str], asked: Sequence[str], jobs: int | None) -> list[Module]:
    """Returns the kernels for GPUs, built where the cache lacks them."""
    found = []
    for arch in archs:
        if kernels := kernels_of_gpus(arch, tuple(asked)):
            note(f"{len(kernels)} kernels for {arch}")
            with show_progress() as progress:
                found += build_kernels(kernels, Target.cuda(arch), jobs=jobs, progress=progress)
    return found


def build_for_machine(
    machine: str, asked: Sequence[str], jobs: int | None
) -> tuple[HostLibrary, list[Module]]:
    """Returns the host library and the emulated kernels for a machine.

    machine: One of MACHINES, for which zig compiles; or _OWN: this one, by its own compiler.
    """
    is_own = machine == _OWN
    cache = None if is_own else KernelCache(_BUILT / machine)
    toolchain = None if is_own else zig_toolchain(machine, _BUILT / "zig")
    note(f"the host library for {'this machine' if is_own else machine}")
    with show_progress() as progress:
        host = build_host(jobs=jobs, progress=progress, cache=cache, toolchain=toolchain)
    kernels = kernels_of_cpus(tuple(asked))
    if not kernels:
        return host, []
    note(f"{len(kernels)} emulated kernels")
    with show_progress() as progress:
        modules = build_kernels(
            *(kernels, Target.emulator()),
            jobs=jobs,
            progress=progress,
            cache=cache,
            toolchain=toolchain,
        )
    return host, modules


def print_plan(archs: Sequence[str], cubins: Sequence[str], emulated: Sequence[str]) -> None:
    rows = [("emulated", len(kernels_of_cpus(tuple(emulated))))]
    rows += [(arch, len(kernels_of_gpus(arch, tuple(cubins)))) for arch in archs]
    print_table(("target", "kernels"), [*rows, ("together", sum(count for _, count in rows))])


def print_sizes(wheel: Path) -> None:
    parts = parts_of(wheel)
    rows = [(p.name, p.files, _megabytes(p.raw), _megabytes(p.zipped)) for p in parts]
    whole = _megabytes(sum(p.raw for p in parts)), _megabytes(wheel.stat().st_size)
    rows.append(("together", sum(p.files for p in parts), *whole))
    note(f"{wheel}")
    print_table(("part", "files", "raw (MB)", "zipped (MB)"), rows)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


def why_not(wheel: Path) -> Iterator[str]:
    """Yields what is wrong with a wheel: its size, its metadata, or what its libraries need."""
    if (size := wheel.stat().st_size) > _MOST_BYTES:
        yield f"{wheel.name} has {_megabytes(size)} MB; it may have {_megabytes(_MOST_BYTES)}"
    for name, words in (("twine", ["check", "--strict"]), ("auditwheel", ["show"])):
        if find_spec(name) is None:
            note(f"{name} is not installed, so it checks nothing; `pip install {name}`")
            continue
        command = [sys.executable, "-m", name, *words, str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            yield f"`{name} {' '.join(words)}` refuses {wheel.name}: {done.stdout}{done.stderr}"
        elif name == "auditwheel":
            yield from why_not_its_platform(wheel, done.stdout)


def why_not_its_platform(wheel: Path, audit: str) -> Iterator[str]:
    """Yields why a wheel does not load wherever its name says, by the text of `auditwheel show`.

    libtvm_ffi.so, of a package that flashsmith depends on, is no system library, for which
    auditwheel calls the wheel "linux"; the versions of symbols say how old a system may be.
    """
    needed = re.search(
        r'constrains the platform tag to "manylinux_(\d+)_(\d+)_', " ".join(audit.split())
    )
    named = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if needed and named and [*map(int, needed.groups())] <= [*map(int, named.groups())]:
        return
    yield f"`auditwheel show` does not accept the platform of {wheel.name}: {audit.strip()}"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    archs = [arch for arch in args.arch.split(",") if arch]
    cubins, emulated = args.cubins or [SERVED], args.emulated or [SERVED]
    if args.plan:
        print_plan(archs, cubins, emulated)
        return 0
    try:
        with tempfile.TemporaryDirectory() as name:
            pure = pure_wheel(_ROOT, Path(name))
            machines = args.machine.split(",")
            built = [build_for_machine(machine, emulated, args.jobs) for machine in machines]
            of_gpus = build_cubins(archs, cubins, args.jobs)
            wheels = [
                platform_wheel(pure, host, [*of_cpus, *of_gpus], args.out)
                for host, of_cpus in built
            ]
        for wheel in wheels:
            print_sizes(wheel)
        if args.sizes is not None:
            write_csv(args.sizes, wheels)
        faults = [fault for wheel in wheels for fault in why_not(wheel)]
    except (FlashsmithError, ValueError, OSError, subprocess.CalledProcessError) as error:
        faults = [str(error)]
    for fault in faults:
        note(f"error: {fault}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    machines = ",".join(MACHINES)
    parser.add_argument(
        "--machine",
        default=machines,
        help=f"for which to compile by zig, for glibc {GLIBC}, or '{_OWN}': for this one, by its "
        f"own compiler; default: {machines}",
    )
    parser.add_argument(
        "--arch", default=",".join(ARCHS), help="GPUs to bring kernels for; default: %(default)s"
    )
    for option, what in (("--cubins", "for GPUs"), ("--emulated", "for the emulator")):
        parser.add_argument(
            option,
            action="append",
            metavar="NAME",
            help=f"a kernel to bring {what}, or 'none'; again for each; default: {SERVED}, all "
            "that calls choose",
        )
    parser.add_argument("--jobs", type=int, help="compilers at a time")
    parser.add_argument("--out", type=Path, default=_ROOT / "dist", help="default: dist")
    parser.add_argument("--sizes", type=Path, metavar="FILE.csv", help="write the sizes of parts")
    parser.add_argument("--plan", action="store_true", help="print how many kernels, build none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
