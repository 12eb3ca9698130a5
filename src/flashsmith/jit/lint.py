"""Finds a race in machine code that no test on one machine shows.

The rule: **an arrival at an mbarrier must not be issued while loads from shared memory of the same
warp are in flight.** The arrival says that a buffer may be overwritten. If a bulk copy (through the
async proxy) writes it next, the hardware does not order the loads before the copy, although they
were issued first: the arrival orders a load only after something has waited for the load's
registers, or after a fence. Neither a warp barrier nor the order of the instructions does.

Loads in flight are followed over all paths of the function. A load is in flight from its issue
until an instruction waits for its scoreboard, or a MEMBAR or FENCE.VIEW (also fence.proxy.async)
has run. Where paths meet, a load is in flight if it is in flight on any of them.

- An instruction under a predicate waits for scoreboards whatever the predicate is: the wait comes
  before its issue. Predicated loads and arrivals are assumed to run, predicated fences not to.
- DEPBAR.LE SBn, 0 waits for the scoreboard n; with a higher count nothing is known to have arrived.

docs/architecture.md lists what the lint cannot see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashsmith.jit.control_flow import Block, find_blocks, reaching
from flashsmith.jit.machine_code import N_SCOREBOARDS, Function, Instruction, parse_machine_code

# Generic loads (LD) may read shared memory.
_LOADS = {"LDS", "LDSM", "LD"}
_ARRIVALS = ("SYNCS.ARRIVE", "ATOMS.ARRIVE", "ARRIVES", "UCGABAR_ARV")
# Bulk copies into shared memory may overwrite data that their own warp has yet to read.
_COPIES = ("UTMALDG", "UBLKCP.S.G")
# If machine code has one of these instructions, the C++ text has one of these words.
_WORDS_OF_RELEASES = (
    "mbarrier",
    "barrier.cluster",
    "cp.async.bulk",
    "<cuda/",
    "cooperative_groups",
)
_FENCES = ("MEMBAR", "FENCE.VIEW")
_SHOWN_LOADS = 4
# Compute capabilities whose control bits were compared with code that is known to wait.
_KNOWN_MAJORS = range(8, 13)
_ARCH = re.compile(r"sm_(\d+)\d[af]?")
_DEPBAR_COUNT = re.compile(r"SB(\d), (0x[0-9a-f]+|\d+)")
_DEPBAR_LIST = re.compile(r"\{([\d, ]+)\}")


@dataclass(frozen=True)
class EarlyRelease:
    """An instruction that allows shared memory to be overwritten that may not have been read
    yet."""

    function: str  # mangled
    arch: str
    address: int
    opcode: str
    loads: tuple[str, ...]  # opcodes and addresses of the loads that may be in flight

    def __str__(self) -> str:
        shown = ", ".join(self.loads[:_SHOWN_LOADS])
        if more := len(self.loads) - _SHOWN_LOADS:
            shown += f" and {more} more" if more > 0 else ""
        return (
            f"{self.opcode} at {self.address:#06x} ({self.arch}) "
            f"is issued while loads from shared memory may be in flight: {shown}"
        )


@dataclass(frozen=True)
class Lint:
    """The findings in the machine code of an object, and why parts were not linted."""

    early_releases: tuple[EarlyRelease, ...] = ()
    not_linted: tuple[str, ...] = ()  # one sentence for each reason

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Lint:
        """Returns the lint in an object's manifest, which stores it as JSON."""
        found = (
            EarlyRelease(**{**each, "loads": tuple(each["loads"])})
            for each in manifest["early_releases"]
        )
        return cls(tuple(found), tuple(manifest["not_linted"]))


def may_release(texts: Iterable[str]) -> bool:
    """Returns whether a kernel compiled from these texts may have an instruction that the rule
    covers.

    The sm80 family's kernels have none, and the disassembler would take half their compile time.
    """
    return any(word in text for text in texts for word in _WORDS_OF_RELEASES)


def lint_machine_code(text: str, archs: Iterable[str] = ()) -> Lint:
    """Returns the lint of ``cuobjdump -sass`` output: all functions of all architectures.

    archs: Architectures that must be in the output.
    """
    found: list[EarlyRelease] = []
    functions = parse_machine_code(text)
    missing = sorted(set(archs) - {function.arch for function in functions})
    not_linted = {f"cuobjdump showed no machine code for {arch}" for arch in missing}
    for function in functions:
        if reason := _why_not(function):
            not_linted.add(reason)
        else:
            found += find_early_releases(function)
    return Lint(tuple(found), tuple(sorted(not_linted)))


def find_early_releases(function: Function) -> list[EarlyRelease]:
    """Returns the instructions of one function that break the rule, by address."""
    code = function.instructions
    if not any(_is_load(each) for each in code):
        return []
    loads = _Loads(code)
    blocks = find_blocks(code)
    found = {}
    for block, in_flight in zip(blocks, _in_flight_at_entries(blocks, loads), strict=True):
        for index in block.indices:
            in_flight &= ~loads.waited_for[index]
            leaves = block.leaves and index == block.indices[-1]
            if in_flight and (leaves or _releases(code[index])):
                found[index] = in_flight
            in_flight = in_flight & ~loads.fenced[index] | loads.issued[index]
    return [
        EarlyRelease(
            function.name,
            function.arch,
            code[index].address,
            code[index].opcode,
            tuple(str(load) for load in loads.named(in_flight)),
        )
        for index, in_flight in sorted(found.items())
    ]


class _Loads:
    """The loads of a function as bits, and what each instruction does to the loads in flight."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self._loads = [each for each in code if _is_load(each)]
        self._all = (1 << len(self._loads)) - 1
        by_board = [0] * N_SCOREBOARDS
        bits = iter(range(len(self._loads)))
        self.issued = [1 << next(bits) if _is_load(each) else 0 for each in code]
        for bit, load in enumerate(self._loads):
            if load.scoreboard is not None and load.scoreboard < N_SCOREBOARDS:
                by_board[load.scoreboard] |= 1 << bit
        of_mask = [
            sum(by_board[n] for n in range(N_SCOREBOARDS) if mask >> n & 1)
            for mask in range(1 << N_SCOREBOARDS)
        ]
        self.waited_for = [of_mask[each.waits | _depbar(each)] for each in code]
        self.fenced = [self._all if _is_fence(each) else 0 for each in code]

    def named(self, in_flight: int) -> Iterator[Instruction]:
        return (load for bit, load in enumerate(self._loads) if in_flight >> bit & 1)


def _in_flight_at_entries(blocks: Sequence[Block], loads: _Loads) -> list[int]:
    """Returns the loads that may be in flight at each block's start."""
    kept, issued = [], []
    for block in blocks:
        keeps, issues = -1, 0
        for index in block.indices:
            arrived = loads.waited_for[index] | loads.fenced[index]
            keeps &= ~arrived
            issues = issues & ~arrived | loads.issued[index]
        kept.append(keeps)
        issued.append(issues)
    return reaching(kept, issued, lambda number, _: blocks[number].successors)


def _why_not(function: Function) -> str:
    known = _ARCH.fullmatch(function.arch)
    if not known or int(known[1]) not in _KNOWN_MAJORS:
        return f"the encoding of {function.arch or 'an unnamed architecture'} is not known"
    if any(each.control is None for each in function.instructions):
        return f"cuobjdump did not print the encoding of all instructions for {function.arch}"
    return ""


def _is_load(instruction: Instruction) -> bool:
    return instruction.base in _LOADS


def _releases(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(_ARRIVALS + _COPIES)


def _is_fence(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(_FENCES) and instruction.guard in ("", "PT", "UPT")


def _depbar(instruction: Instruction) -> int:
    """Returns the mask of the scoreboards that a DEPBAR waits for until all are free."""
    if instruction.base != "DEPBAR" or instruction.guard:
        return 0
    mask = 0
    if (count := _DEPBAR_COUNT.search(instruction.operands)) and int(count[2], 0) == 0:
        mask |= 1 << int(count[1])
    if boards := _DEPBAR_LIST.search(instruction.operands):
        mask |= sum(1 << int(board) for board in set(boards[1].split(",")))
    return mask
