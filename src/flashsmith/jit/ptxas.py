"""Parses what ptxas reports of each kernel (``-Xptxas -v``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(
    r"ptxas info\s*: Compiling entry function '(?P<function>[^']+)' for '(?P<arch>[^']+)'"
)
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
# C7508, C7510 and similar: an instruction was ignored or serialised, so the kernel is slow.
_PERFORMANCE_WARNING = re.compile(r"ptxas \w+\s*: \((C75\d\d)\)\s*(.*)")


@dataclass(frozen=True)
class KernelResources:
    """The resources of one kernel on one architecture. Sizes are in bytes, per thread except
    ``shared``."""

    function: str  # mangled name of the entry function
    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int  # static shared memory of a block
    barriers: int

    @property
    def spilled(self) -> int:
        return max(self.spill_stores, self.spill_loads)


def parse_resources(log: str) -> list[KernelResources]:
    """Returns the resources of the kernels in a compiler log, in the log's order.

    Stack and spills are summed over an entry function and the functions it calls that ptxas did
    not inline. A log without ``-Xptxas -v`` lines gives an empty list.
    """
    kernels = []
    starts = [*_ENTRY.finditer(log)]
    ends = [match.start() for match in starts[1:]] + [len(log)]
    for entry, end in zip(starts, ends, strict=False):
        block = log[entry.end() : end]
        used = _USED.search(block)
        if used is None:  # the compiler stopped in the middle of this kernel
            continue
        frames = [[int(n) for n in match.groups()] for match in _STACK.finditer(block)]
        kernels.append(
            KernelResources(
                function=entry["function"],
                arch=entry["arch"],
                registers=int(used["registers"]),
                stack=sum(frame[0] for frame in frames),
                spill_stores=sum(frame[1] for frame in frames),
                spill_loads=sum(frame[2] for frame in frames),
                shared=_number(_SHARED, used["rest"]),
                barriers=_number(_BARRIERS, used["rest"]),
            )
        )
    return kernels


def parse_performance_warnings(log: str) -> list[str]:
    """Returns ptxas advisories that an instruction was ignored or serialised, as ``C7510:
    text``."""
    found = [f"{code}: {text.strip()}" for code, text in _PERFORMANCE_WARNING.findall(log)]
    return sorted(set(found))


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
