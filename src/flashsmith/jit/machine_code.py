"""Machine code (SASS) as ``cuobjdump -sass`` prints it, decoded into instructions.

Since Volta an instruction has 16 bytes. Bits 105 to 125 are ptxas's control bits for its issue::

    105  stall cycles (4 bits)
    109  yield (1)
    110  the scoreboard that its result releases (3; 7 is none)
    113  the scoreboard that is released once its source registers are read (3; 7 is none)
    116  the scoreboards that must be free before it is issued (6, one bit for each)

The latency of a load is not known at compile time, so it holds a scoreboard until its result is in
registers; an instruction that needs the result waits for that scoreboard before its issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

N_SCOREBOARDS = 6
_NO_SCOREBOARD = 7
_CONTROL_BIT = 105 - 64  # in the second word of the encoding
_RESULT_BIT, _WAIT_BIT = 5, 11  # within the control bits

_ARCH = re.compile(r"^\s*code for (?P<arch>sm_\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<operands>[^;\n]*);"
    r"(?:\s*/\* 0x[0-9a-f]{16} \*/\s*/\* 0x(?P<high>[0-9a-f]{16}) \*/)?",
    re.MULTILINE,
)
_TARGET = re.compile(r"\b0x([0-9a-f]+)\s*$")


@dataclass(frozen=True)
class Instruction:
    address: int  # in bytes, from the start of its function
    opcode: str  # with modifiers, "IMAD.MOV.U32"
    operands: str
    guard: str = ""  # the predicate of its execution, "!P0"
    control: int | None = None  # bits 105 to 125 of the encoding; None if that was not printed

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def scoreboard(self) -> int | None:
        """The scoreboard that the instruction's result releases."""
        board = (self.control or 0) >> _RESULT_BIT & 7
        return None if self.control is None or board == _NO_SCOREBOARD else board

    @property
    def waits(self) -> int:
        """The mask of the scoreboards that must be free before the instruction's issue."""
        return (self.control or 0) >> _WAIT_BIT & (1 << N_SCOREBOARDS) - 1

    @property
    def target(self) -> int | None:
        """The address that a branch, a call or a BSSY names: its last operand."""
        found = _TARGET.search(self.operands)
        return int(found[1], 16) if found else None

    def __str__(self) -> str:
        return f"{self.opcode} at {self.address:#06x}"


@dataclass(frozen=True)
class Function:
    """One kernel, with the subroutines that ptxas put behind it."""

    name: str  # mangled
    arch: str  # "sm_90a"; empty if the text did not say
    instructions: tuple[Instruction, ...]


def parse_machine_code(text: str) -> list[Function]:
    """Returns the functions of all architectures in the output of ``cuobjdump -sass``, in order."""
    starts = [*_FUNCTION.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    archs = [*_ARCH.finditer(text)]
    return [
        Function(
            start[1],
            next((arch["arch"] for arch in reversed(archs) if arch.start() < start.start()), ""),
            tuple(_instructions(text, start.end(), end)),
        )
        for start, end in zip(starts, ends, strict=False)
    ]


def _instructions(text: str, start: int, end: int) -> Iterator[Instruction]:
    for match in _INSTRUCTION.finditer(text, start, end):
        high = match["high"]
        yield Instruction(
            address=int(match["address"], 16),
            opcode=match["opcode"],
            operands=match["operands"].strip(),
            guard=match["guard"] or "",
            control=int(high, 16) >> _CONTROL_BIT & (1 << 21) - 1 if high else None,
        )
