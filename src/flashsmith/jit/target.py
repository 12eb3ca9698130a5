"""The target of a library: one or more GPU architectures, or the host's CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DEFAULT_CUDA_ARCHS = ("sm_80", "sm_90a")

_ARCH = re.compile(r"(?:sm_)?(\d{1,2})\.?(\d)([af]?)")
_LOWEST = 80


@dataclass(frozen=True, order=True)
class Target:
    """The place where kernels run: ``cuda`` with at least one architecture, or ``emulator`` with
    none.

    ``archs`` are sorted without repeats, so that equal targets compare equal. Raises ValueError for
    an unknown kind or an architecture that the kernels cannot be compiled for.
    """

    kind: Literal["cuda", "emulator"]
    archs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("cuda", "emulator"):
            raise ValueError(f"target is {self.kind!r}; supported are 'cuda' and 'emulator'")
        if self.kind == "emulator" and self.archs:
            raise ValueError(f"archs is {self.archs}; the emulator has none, leave it empty")
        if self.kind == "cuda" and not self.archs:
            raise ValueError("archs is empty; name at least one, for example 'sm_80' or 'sm_90a'")
        archs = sorted({_canonical(arch) for arch in self.archs}, key=_arch_order)
        object.__setattr__(self, "archs", tuple(archs))

    @classmethod
    def emulator(cls) -> Target:
        return cls("emulator")

    @classmethod
    def cuda(cls, *archs: str) -> Target:
        """Returns a CUDA target; without arguments, one for ``DEFAULT_CUDA_ARCHS``."""
        return cls("cuda", archs or DEFAULT_CUDA_ARCHS)

    @classmethod
    def parse(cls, kind: str, archs: Iterable[str] = ()) -> Target:
        """Returns a target from a command line: each of ``archs`` may be a comma-separated list."""
        names = tuple(name for arch in archs for name in arch.split(",") if name)
        if kind == "cuda":
            return cls.cuda(*names)
        return cls(kind, names)  # type: ignore[arg-type]  # the constructor checks it

    @property
    def name(self) -> str:
        """The name in file names and tables: ``emulator``, ``cuda-sm_80-sm_90a``."""
        return "-".join((self.kind, *self.archs))

    def covers(self, other: Target) -> bool:
        """Returns whether a library for this target also serves ``other``."""
        return self.kind == other.kind and set(other.archs) <= set(self.archs)


def _canonical(arch: str) -> str:
    match = _ARCH.fullmatch(arch.strip().lower())
    if match is None:
        raise ValueError(
            f"arch is {arch!r}; write it like 'sm_80', 'sm_90a' or '9.0' (compute capability)"
        )
    major, minor, suffix = match.groups()
    if int(major + minor) < _LOWEST:
        raise ValueError(
            f"arch is {arch!r}; the kernels need compute capability 8.0 (sm_80) or newer"
        )
    return f"sm_{major}{minor}{suffix}"


def _arch_order(arch: str) -> tuple[int, str]:
    digits = arch[3:].rstrip("af")
    return int(digits), arch
