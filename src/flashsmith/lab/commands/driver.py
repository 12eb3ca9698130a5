"""Finds the GPUs of this machine through nvidia-smi, without loading torch."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY

_SECONDS = 20
_FIELDS = ("name", "compute_cap", "memory.total", "driver_version")


@dataclass(frozen=True)
class Gpu:
    name: str
    compute_capability: tuple[int, int]
    memory: str  # "143771 MiB"
    driver: str

    @property
    def is_supported(self) -> bool:
        return self.compute_capability >= MIN_COMPUTE_CAPABILITY

    @property
    def arch(self) -> str:
        return arch_name(self.compute_capability)


def arch_name(compute_capability: tuple[int, int]) -> str:
    """Returns the name of an architecture; from 9.0 on its suffix `a` allows all instructions."""
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def find_gpus() -> tuple[list[Gpu], str]:
    """Returns the GPUs that nvidia-smi lists, and if there are none, the reason."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except FileNotFoundError:
        return [], "there is no nvidia-smi, so no NVIDIA driver"
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi did not answer: {error}"
    if answer.returncode != 0:
        return [], f"nvidia-smi failed: {(answer.stdout or answer.stderr).strip()}"
    gpus = [gpu for line in answer.stdout.splitlines() if (gpu := _parse(line))]
    return gpus, "" if gpus else "nvidia-smi lists no GPU"


def _parse(line: str) -> Gpu | None:
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(_FIELDS):
        return None
    name, capability, memory, driver = values
    major, _, minor = capability.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return None
    return Gpu(name, (int(major), int(minor)), memory, driver)
