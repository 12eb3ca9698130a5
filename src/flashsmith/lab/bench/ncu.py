"""Finds and runs Nsight Compute's command line, reads its raw CSV, and explains its failures."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import ProfilerError

INSTALL_NCU = (
    "install Nsight Compute (it is in the CUDA toolkit, and at "
    "https://developer.nvidia.com/nsight-compute), put its folder into PATH, or point "
    "FLASHSMITH_NCU at the program ncu"
)
_SYSTEM_CUDA = Path("/usr/local/cuda")
_NSIGHT_COMPUTE = Path("/opt/nvidia/nsight-compute")  # a folder for each version
_OPTIONS = (
    "--csv",
    "--page=raw",
    "--print-units=base",
    "--clock-control=none",  # as in use, not at the base clock
    "--profile-from-start=off",  # the target says where the part of interest begins
)
# This section says why warps waited. Its metrics' names depend on the GPU, its own name does not.
_STALLS = "--section=WarpStateStats"

_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
# Older versions of ncu print these units.
_MICROSECONDS |= {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}

_KERNEL_NAME = "Kernel Name"
_PERMISSION = (
    "this user may not read the GPU's performance counters: run as root, in a container with "
    "--cap-add=SYS_ADMIN, or have the administrator load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)
# Each pair is a text that ncu prints, and what the user can do.
_KNOWN_FAILURES = (
    ("ERR_NVGPUCTRPERM", _PERMISSION),
    (
        "Driver resource was unavailable",
        "another tool holds the GPU's counters: end it, or `dcgmi profile --pause` where DCGM runs",
    ),
    (
        "driver is not compatible",
        "the NVIDIA driver and this version of ncu do not fit: install an ncu of the driver's age",
    ),
)
_TARGET_FAILED = "The application returned an error code"
_MAX_LINES_SHOWN = 8


@dataclass(frozen=True)
class ProfiledLaunch:
    """A kernel launch: the demangled name, and metrics by ncu's names, times in microseconds."""

    kernel: str
    metrics: dict[str, float]


def find_ncu() -> Path:
    """Returns the path of ncu.

    It is FLASHSMITH_NCU if set, else the first ncu on PATH, in CUDA_HOME, in /usr/local/cuda or,
    the newest version first, in /opt/nvidia/nsight-compute.

    Raises:
        ProfilerError: There is no ncu; the message lists the folders that were searched.
    """
    chosen = settings.NCU.get()
    if chosen is not None:
        if os.access(chosen, os.X_OK) and chosen.is_file():
            return chosen
        raise ProfilerError(
            f"environment variable {settings.NCU.name}={chosen} is no program that can be run; "
            f"{INSTALL_NCU}"
        )
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    cuda_home = settings.CUDA_HOME.get()
    folders = [root / "bin" for root in (cuda_home, _SYSTEM_CUDA) if root is not None]
    folders += sorted(_NSIGHT_COMPUTE.glob("*"), key=_version, reverse=True)
    for folder in folders:
        if found := shutil.which("ncu", path=folder):
            return Path(found)
    raise ProfilerError(
        f"ncu was not found on PATH, nor in {', '.join(map(str, folders))}, nor in "
        f"{_NSIGHT_COMPUTE}/*; {INSTALL_NCU}"
    )


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


def profile(
    target: Sequence[str], metrics: Iterable[str], report: Path
) -> tuple[list[ProfiledLaunch], str]:
    """Runs ``target`` under ncu, and returns ncu's measurements.

    Args:
        target: A command, whose launches between cudaProfilerStart and cudaProfilerStop count.
        metrics: ncu's names; launches lack the metrics that this GPU does not have.
        report: The file for ncu's raw CSV, in which the target's output is mixed. A run that fails
            leaves it unchanged, and writes its output to `<report>.failed`.

    Returns:
        The launches in order, and what the target wrote to stderr.

    Raises:
        ProfilerError: There is no ncu or no permission, the target failed, nothing was profiled, or
            the CSV cannot be read; the message says what to do and where the report is.
    """
    command = [str(find_ncu()), *_OPTIONS, _STALLS, f"--metrics={','.join(metrics)}", *target]
    report.parent.mkdir(parents=True, exist_ok=True)
    unfinished = report.with_name(f"{report.name}.failed")
    # Other locales group thousands by other characters than commas.
    environment = os.environ | {"LC_ALL": "C"}
    with unfinished.open("w") as output:
        try:
            ended = subprocess.run(
                command, stdout=output, stderr=subprocess.PIPE, env=environment, text=True
            )
        except OSError as error:
            raise ProfilerError(f"{command[0]} cannot be run: {error}; {INSTALL_NCU}") from None
    printed = unfinished.read_text(errors="replace")
    where = f"the report is {unfinished}, the command was {shlex.join(command)}"
    if why := _why_failed(printed + ended.stderr, ended.stderr, ended.returncode):
        raise ProfilerError(f"ncu: {why} ({where})")
    try:
        launches = parse_raw_csv(printed)
    except ValueError as error:
        raise ProfilerError(
            f"ncu's CSV cannot be read: {error}; another version of ncu may print it otherwise "
            f"({where})"
        ) from None
    if not launches:
        raise ProfilerError(
            "ncu profiled no kernel: the target launched none on a GPU that ncu sees, and wrote:\n"
            f"{_last_lines(ended.stderr)}\nrun it without ncu to see more ({where})"
        )
    unfinished.replace(report)
    return launches, ended.stderr


def _why_failed(printed: str, stderr: str, returncode: int) -> str:
    """Returns the reason of a failure and what to do about it; "" if the run succeeded."""
    for symptom, advice in _KNOWN_FAILURES:
        if symptom in printed:
            return advice
    if _TARGET_FAILED in printed:
        return f"the target failed:\n{_last_lines(stderr)}\nrun it without ncu to see more"
    if returncode == 0:
        return ""
    errors = "\n".join(line for line in printed.splitlines() if line.startswith("==ERROR=="))
    return f"ended with exit code {returncode}:\n{errors or _last_lines(printed)}"


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_MAX_LINES_SHOWN:]) or "it printed nothing"


def parse_raw_csv(text: str) -> list[ProfiledLaunch]:
    """Returns the launches in the output of ``ncu --csv --page raw``; none without a table.

    A table is a row of names, a row of units, and a row for each launch. Other lines, of the target
    or of ncu, are skipped. A metric without a number ("n/a") is left out.

    Raises:
        ValueError: A row and the row of names differ in length, or no column has kernel names.
    """
    names: list[str] = []
    units: list[str] = []
    launches = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith('"'):
            continue
        cells = next(csv.reader([line]))
        if cells[0] == "ID":
            names, units = cells, []
            if _KERNEL_NAME not in names:
                raise ValueError(f"line {number} has no column {_KERNEL_NAME!r}")
        elif names and len(cells) != len(names):
            raise ValueError(f"line {number} has {len(cells)} cells for {len(names)} names")
        elif names and not units:
            units = cells
        elif names:
            launches.append(_launch(names, units, cells))
    return launches


def _launch(names: list[str], units: list[str], cells: list[str]) -> ProfiledLaunch:
    metrics = {}
    for name, unit, cell in zip(names, units, cells, strict=True):
        value = _number(cell)
        if value is not None:
            metrics[name] = value * _MICROSECONDS.get(unit, 1.0)
    return ProfiledLaunch(cells[names.index(_KERNEL_NAME)], metrics)


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None
