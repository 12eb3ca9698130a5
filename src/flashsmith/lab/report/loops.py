"""The loop of a kernel's machine code that holds its matrix products.

Loops are found in the control flow, not as ranges of addresses, because ptxas places waits for
barriers out of line, and the branches back from there enclose half of the kernel.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith.jit.control_flow import Block, find_blocks
from flashsmith.jit.machine_code import Instruction


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    instructions: The instructions that an iteration may execute, in the order of addresses.
    shortest: The minimum number of instructions that a warp executes in an iteration.
    """

    instructions: list[Instruction]
    shortest: int


def main_loop(
    code: Sequence[Instruction], is_product: Callable[[Instruction], bool]
) -> Loop | None:
    """Returns the innermost loop with most matrix products; None if no loop has any.

    If several loops have that number, the shortest is returned, because a causal kernel has a
    longer copy that masks.
    """
    blocks = find_blocks(code)

    def instructions(body: frozenset[int]) -> list[Instruction]:
        return [code[i] for b in sorted(body) for i in blocks[b].indices]

    def n_products(body: frozenset[int]) -> int:
        return sum(map(is_product, instructions(body)))

    bodies = {header: body for header, body in _natural_loops(blocks).items() if n_products(body)}
    innermost = [
        header for header, body in bodies.items() if not any(o < body for o in bodies.values())
    ]
    if not innermost:
        return None
    header = max(innermost, key=lambda h: (n_products(bodies[h]), -len(instructions(bodies[h]))))
    shortest = _shortest_round(blocks, header, bodies[header])
    return Loop(instructions(bodies[header]), shortest)


def _natural_loops(blocks: Sequence[Block]) -> dict[int, frozenset[int]]:
    """Returns header -> body for each branch back to a block that dominates the branch."""
    predecessors: list[list[int]] = [[] for _ in blocks]
    for b, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(b)
    bodies: dict[int, frozenset[int]] = {}
    for b, block in enumerate(blocks):
        for header in block.successors:
            if body := _body(header, b, predecessors):
                bodies[header] = bodies.get(header, frozenset()) | body
    return bodies


def _body(header: int, latch: int, predecessors: Sequence[Sequence[int]]) -> frozenset[int]:
    """Returns the blocks on paths from the header to the latch; empty if a path from the entry,
    block 0, bypasses the header."""
    body, waiting = {header}, [latch]
    while waiting:
        if (b := waiting.pop()) not in body:
            body.add(b)
            waiting += predecessors[b]
    return frozenset(body if 0 not in body or header == 0 else ())


def _shortest_round(blocks: Sequence[Block], header: int, body: frozenset[int]) -> int:
    """Counts the instructions on the shortest path from the header to itself, by Dijkstra's
    algorithm."""
    waiting = [(len(blocks[header].indices), header)]
    seen: set[int] = set()
    while waiting:
        length, b = heapq.heappop(waiting)
        if b in seen:
            continue
        seen.add(b)
        for successor in body.intersection(blocks[b].successors):
            if successor == header:
                return length
            heapq.heappush(waiting, (length + len(blocks[successor].indices), successor))
    raise AssertionError("a natural loop has a way back to its header")
