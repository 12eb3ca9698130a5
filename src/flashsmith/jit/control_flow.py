"""The control flow of a function: basic blocks and the edges between them.

If machine code does not name a successor, all possible successors are assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from flashsmith.jit.machine_code import Instruction

_JUMPS = {"BRA", "JMP"}  # BRA.U, BRA.DIV and similar jumps have the same base
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}
_ENDS = {"EXIT", "KILL"}
_ALWAYS = ("", "PT", "UPT")  # guards of instructions that always run
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


@dataclass(frozen=True)
class _Join:
    """A BSSY: the BSYNCs of its register that it reaches may continue at its target."""

    index: int
    register: str
    target: int  # an address


def find_blocks(instructions: Sequence[Instruction]) -> list[Block]:
    """Returns the basic blocks of a function by address; the first is its entry.

    - A guarded jump, or one with a condition (``BRA P1``, ``BRA.U``, ``BRA.DIV``), may be taken or
      not.
    - ``BSYNC B0`` continues behind itself or at the target of a ``BSSY B0`` that reaches it; if B
      registers are restored (``BMOV``), at the target of any ``BSSY``.
    - ``CALL`` goes to its subroutine, ``RET`` to the instruction behind any call in the function.
    - An indirect branch (``BRX``) goes to every instruction.
    - A call or a branch out of the function, or to an address in a register, leaves: the code there
      is unknown. A call returns.
    """
    index_of = {each.address: i for i, each in enumerate(instructions)}
    joins = [
        _Join(i, _barrier(each), each.target)
        for i, each in enumerate(instructions)
        if each.base == "BSSY" and each.target in index_of
    ]
    restores_barriers = any(each.base == "BMOV" for each in instructions)
    reader = _EdgeReader(instructions, index_of, joins, restores_barriers)
    edges = {i: found for i, each in enumerate(instructions) if (found := reader.edges(each))}
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
    if restores_barriers:
        return blocks
    block_at = {instructions[start].address: block for start, block in block_of.items()}
    return _with_reached_joins(blocks, instructions, joins, block_at)


def _with_reached_joins(
    blocks: Sequence[Block],
    instructions: Sequence[Instruction],
    joins: Sequence[_Join],
    block_at: Mapping[int, int],
) -> list[Block]:
    """Returns the blocks without the edges of a BSYNC to the target of a BSSY of its register that
    no path leads from. A BSYNC that no BSSY reaches keeps all edges.

    block_at: The blocks by the address of their first instruction.
    """
    of_register: dict[str, int] = {}
    for bit, join in enumerate(joins):
        of_register[join.register] = of_register.get(join.register, 0) | 1 << bit
    bit_of = {join.index: 1 << bit for bit, join in enumerate(joins)}
    kept, issued = [-1] * len(blocks), [0] * len(blocks)
    for number, block in enumerate(blocks):
        for index in block.indices:
            if own := bit_of.get(index):
                each = instructions[index]
                others = of_register[_barrier(each)] if each.guard in _ALWAYS else 0
                kept[number] &= ~others
                issued[number] = issued[number] & ~others | own
    lasts = [instructions[block.indices[-1]] for block in blocks]
    of_sync = [of_register.get(_barrier(e), 0) if e.base == "BSYNC" else 0 for e in lasts]

    def successors(number: int, leaving: int) -> set[int]:
        following = set(blocks[number].successors)
        if number in unknown or not of_sync[number]:
            return following
        here = leaving & of_sync[number]
        targets = {block_at[join.target] for bit, join in enumerate(joins) if here >> bit & 1}
        return targets | following & {number + 1}

    unknown: set[int] = set()
    while True:
        entries = reaching(kept, issued, successors)
        leaving = [e & k | i for e, k, i in zip(entries, kept, issued, strict=True)]
        more = {n for n, sync in enumerate(of_sync) if sync and not leaving[n] & sync} - unknown
        if not more:
            break
        unknown |= more
    return [
        replace(block, successors=tuple(sorted(successors(number, leaving[number]))))
        for number, block in enumerate(blocks)
    ]


def reaching(
    kept: Sequence[int], issued: Sequence[int], successors: Callable[[int, int], Iterable[int]]
) -> list[int]:
    """Returns what may reach each block's start, as bits: the least fixed point.

    Args:
        kept: The bits that each block passes on.
        issued: The bits that begin in each block and reach its end.
        successors: (a block, the bits at its end) -> the blocks that may follow. More bits never
            take one away.
    """
    entries = [0] * len(kept)
    waiting = set(range(len(kept)))
    while waiting:
        number = waiting.pop()
        leaving = entries[number] & kept[number] | issued[number]
        for successor in successors(number, leaving):
            if leaving & ~entries[successor]:
                entries[successor] |= leaving
                waiting.add(successor)
    return entries


class _EdgeReader:
    """Reads the successors of the control instructions of one function."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        inside: Container[int | None],
        joins: Sequence[_Join],
        restores_barriers: bool,
    ) -> None:
        """Keeps what the edges depend on.

        inside: The addresses of the function's instructions.
        """
        self._inside = inside
        self._behind_calls = [
            after.address for call, after in pairwise(instructions) if call.base == "CALL"
        ]
        self._joins: dict[str, list[int]] = {}  # B register -> where its BSYNCs may continue
        for join in joins:
            self._joins.setdefault(join.register, []).append(join.target)
        if restores_barriers:
            everything = [join.target for join in joins]
            self._joins = dict.fromkeys(self._joins, everything)

    def edges(self, instruction: Instruction) -> _Edges | None:
        """Returns the successors; None if the next instruction always follows."""
        base = instruction.base
        guarded = instruction.guard not in _ALWAYS
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
