"""The control flow of a function: basic blocks and the edges between them.

If machine code does not name a successor, all possible successors are assumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from flashsmith.jit.machine_code import Instruction

_JUMPS = {"BRA", "JMP"}  # BRA.U, BRA.DIV and similar jumps have the same base
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}
_ENDS = {"EXIT", "KILL"}
_BARRIER = re.compile(r"\bB\d+\b")


@dataclass(frozen=True)
class Block:
    """Instructions that run in sequence, by index, and the blocks that may follow."""

    indices: range
    successors: tuple[int, ...]
    # Whether control may also leave the function.
    leaves: bool


@dataclass
class _Edges:
    """The successors of one instruction."""

    falls_through: bool = True
    targets: list[int] = field(default_factory=list)  # addresses
    anywhere: bool = False  # to any instruction of the function
    leaves: bool = False


def find_blocks(instructions: Sequence[Instruction]) -> list[Block]:
    """Returns the basic blocks of a function by address; the first is its entry.

    - A guarded jump, or one with a condition (``BRA P1``, ``BRA.U``, ``BRA.DIV``), may be taken or
      not.
    - ``BSYNC B0`` continues behind itself or at the target of a ``BSSY B0``; if B registers are
      restored (``BMOV``), at the target of any ``BSSY``.
    - ``CALL`` goes to its subroutine, ``RET`` to the instruction behind any call in the function.
    - An indirect branch (``BRX``) goes to every instruction.
    - A call or a branch out of the function, or to an address in a register, leaves: the code there
      is unknown. A call returns.
    """
    reader = _EdgeReader(instructions)
    edges = {i: found for i, each in enumerate(instructions) if (found := reader.edges(each))}
    index_of = {each.address: i for i, each in enumerate(instructions)}
    everywhere = any(each.anywhere for each in edges.values())
    starts = {0} | {i + 1 for i in edges}
    starts |= {index_of[address] for each in edges.values() for address in each.targets}
    if everywhere:
        starts |= set(range(len(instructions)))
    ordered = sorted(start for start in starts if start < len(instructions))
    block_of = {start: block for block, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True):
        last = edges.get(end - 1, _Edges())
        if last.anywhere:
            following = set(range(len(ordered)))
        else:
            following = {block_of[index_of[address]] for address in last.targets}
            if last.falls_through and end in block_of:
                following.add(block_of[end])
        blocks.append(Block(range(start, end), tuple(sorted(following)), last.leaves))
    return blocks


class _EdgeReader:
    """Reads the successors of the control instructions of one function."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._inside = {each.address for each in instructions}
        self._behind_calls = [
            after.address for call, after in pairwise(instructions) if call.base == "CALL"
        ]
        self._joins: dict[str, list[int]] = {}  # B register -> the targets of its BSSYs
        for each in instructions:
            if each.base == "BSSY" and each.target in self._inside:
                self._joins.setdefault(_barrier(each), []).append(each.target)
        if any(each.base == "BMOV" for each in instructions):
            everything = sorted({join for joins in self._joins.values() for join in joins})
            self._joins = dict.fromkeys(self._joins, everything)

    def edges(self, instruction: Instruction) -> _Edges | None:
        """Returns the successors; None if the next instruction always follows."""
        base = instruction.base
        guarded = instruction.guard not in ("", "PT", "UPT")
        if base in _JUMPS:
            own_condition = instruction.opcode != base or len(instruction.operands.split()) > 1
            return self._jump(instruction, falls_through=guarded or own_condition)
        if base == "WARPSYNC" and instruction.target in self._inside:
            return self._jump(instruction, falls_through=True)
        if base in _INDIRECT:
            return _Edges(anywhere=True)
        if base == "CALL":
            returns = instruction.target not in self._inside
            return self._jump(instruction, falls_through=guarded or returns)
        if base == "RET":
            return _Edges(guarded, self._behind_calls, leaves=not self._behind_calls)
        if base == "BSYNC":
            return _Edges(True, self._joins.get(_barrier(instruction), []))
        if base in _ENDS:
            return _Edges(guarded or bool(instruction.operands))
        return None

    def _jump(self, instruction: Instruction, falls_through: bool) -> _Edges:
        target = instruction.target
        if target is None or target not in self._inside:
            return _Edges(falls_through, leaves=True)
        return _Edges(falls_through, [target])


def _barrier(instruction: Instruction) -> str:
    found = _BARRIER.search(instruction.operands)
    return found[0] if found else ""
