"""Machine code as text: what is parsed, and where control may go."""

from __future__ import annotations

import random
import re

import pytest

from flashsmith.jit.control_flow import find_blocks
from flashsmith.jit.machine_code import Function, Instruction, parse_machine_code
from support.listings import encoding, excerpt, listing

ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def by_opcode(function: Function, opcode: str) -> Instruction:
    (found,) = (each for each in function.instructions if each.opcode.startswith(opcode))
    return found


def reads(instruction: Instruction, register: str) -> bool:
    _, _, sources = instruction.operands.partition(",")
    return re.search(rf"\b{register}\b", sources) is not None


def test_functions_of_an_object() -> None:
    early, after_use = parse_machine_code(excerpt("sm_90a"))
    assert (early.name, early.arch) == ("arrives_early", "sm_90a")
    assert (after_use.name, after_use.arch) == ("arrives_after_use", "sm_90a")
    addresses = [each.address for each in early.instructions]
    assert addresses == list(range(0, 16 * len(addresses), 16))
    both = parse_machine_code(excerpt("sm_80") + excerpt("sm_90a"))
    assert [function.arch for function in both] == ["sm_80", "sm_90a", "sm_90a"]


def test_an_instruction_has_its_parts() -> None:
    early, _ = parse_machine_code(excerpt("sm_90a"))
    arrival = by_opcode(early, "SYNCS")
    assert arrival.opcode == "SYNCS.ARRIVE.TRANS64.A1T0"
    assert (arrival.base, arrival.guard, arrival.operands) == ("SYNCS", "!P0", "RZ, [UR4], RZ")
    assert str(arrival) == "SYNCS.ARRIVE.TRANS64.A1T0 at 0x00b0"
    assert arrival.scoreboard is None
    assert arrival.target is None
    loop = by_opcode(early, "BRA")  # behind EXIT, to itself
    assert loop.target == loop.address


@pytest.mark.parametrize("arch", ARCHS)
def test_the_use_of_a_load_waits_for_its_scoreboard(arch: str) -> None:
    """This shows that the control bits are decoded correctly on every architecture."""
    code = parse_machine_code(excerpt(arch))[0].instructions
    for opcode, register in (("LDSM", "R4"), ("S2R", None)):
        at = next(i for i, each in enumerate(code) if each.base == opcode)
        loaded = register or code[at].operands.split(",")[0]
        board = code[at].scoreboard
        assert board is not None
        use = next(each for each in code[at + 1 :] if reads(each, loaded))
        assert use.waits >> board & 1
        before = code[at + 1 : code.index(use)]
        assert not any(each.waits >> board & 1 for each in before)


def test_scoreboards_of_an_encoding() -> None:
    (function,) = parse_machine_code(listing("LDS R0, [R2] -> 5 <- 0,3\nEXIT"))
    load, end = function.instructions
    assert (load.scoreboard, load.waits) == (5, 0b1001)
    assert (end.scoreboard, end.waits) == (None, 0)
    assert encoding(holds=5, waits=(0, 3)) == f"0x{load.control << 41:016x}"  # type: ignore[operator]


def test_code_without_encodings_is_read_without_control() -> None:
    text = "\t\tFunction : kernel\n        /*0000*/    @!P0 BRA 0x10 ;   /* 0x1 */\n"
    (function,) = parse_machine_code(text)
    (branch,) = function.instructions
    assert (function.arch, branch.guard, branch.target) == ("", "!P0", 0x10)
    assert branch.control is None
    assert (branch.scoreboard, branch.waits) == (None, 0)


def test_text_without_functions() -> None:
    assert parse_machine_code("Fatbin ptx code:\n================\n") == []


# ---- control flow ----


def edges(program: str) -> dict[int, set[int]]:
    """Returns the lines that may follow each line; -1 is code outside of the function."""
    (function,) = parse_machine_code(listing(program))
    blocks = find_blocks(function.instructions)
    found = {}
    for block in blocks:
        for index in block.indices[:-1]:
            found[index] = {index + 1}
        following = {blocks[each].indices[0] for each in block.successors}
        found[block.indices[-1]] = following | ({-1} if block.leaves else set())
    return found


@pytest.mark.parametrize(
    ("first", "following"),
    [
        ("NOP", {1}),
        ("BRA {L}", {2}),
        ("@P0 BRA {L}", {1, 2}),
        ("@!UP0 BRA {L}", {1, 2}),
        ("@PT BRA {L}", {2}),
        ("BRA P1, {L}", {1, 2}),
        ("BRA.U UP0, {L}", {1, 2}),
        ("BRA.DIV UR4, {L}", {1, 2}),
        ("JMP {L}", {2}),
        ("BRA 0x4000", {-1}),
        ("@P0 BRA 0x4000", {1, -1}),
        ("BRX R2 -0x10", {0, 1, 2}),
        ("BRXU UR4", {0, 1, 2}),
        ("EXIT", set()),
        ("@P0 EXIT", {1}),
        ("BSSY B0, {L}", {1}),
        ("BSYNC B0", {1}),
        ("YIELD", {1}),
        ("WARPSYNC.ALL", {1}),
        ("WARPSYNC.COLLECTIVE R4, {L}", {1, 2}),
        ("CALL.REL.NOINC {L}", {2}),
        ("@P0 CALL.REL.NOINC {L}", {1, 2}),
        ("CALL.ABS.NOINC R2", {1, -1}),
        ("RET.REL.NODEC R2 0x0", {-1}),
    ],
)
def test_what_may_follow(first: str, following: set[int]) -> None:
    assert edges(f"{first}\nNOP\nL: EXIT")[0] == following


def test_a_subroutine_returns_behind_every_call() -> None:
    found = edges(
        """CALL.REL.NOINC {S}
        NOP
        CALL.REL.NOINC {S}
        EXIT
        S: NOP
        RET.REL.NODEC R2 0x0"""
    )
    assert found == {0: {4}, 1: {2}, 2: {4}, 3: set(), 4: {5}, 5: {1, 3}}


def test_bsync_goes_where_its_bssy_says() -> None:
    program = """BSSY B0, {J}
        BSSY B1, {K}
        BSYNC B0
        K: NOP
        J: BSYNC B1
        {extra}
        EXIT"""
    found = edges(program.replace("{extra}", "NOP"))
    assert (found[2], found[4]) == ({3, 4}, {3, 5})
    restored = edges(program.replace("{extra}", "BMOV.32 B0, R4"))
    assert (restored[2], restored[4]) == ({3, 4}, {3, 4, 5})


def test_a_bsync_does_not_go_where_another_pair_meets() -> None:
    """Both pairs have B0, and B1 inside; no path leads from one pair to the other."""
    first, second = (
        "BSSY B0, {J}\nBSSY B1, {K}\nBSYNC B1\nK: BSYNC B0\nJ: EXIT",
        "BSSY B0, {L}\nBSSY B1, {M}\nBSYNC B1\nM: BSYNC B0\nL: EXIT",
    )
    found = edges(f"@P0 BRA {{S}}\n{first}\nS: {second}")
    assert (found[3], found[4]) == ({4}, {5})
    assert (found[8], found[9]) == ({9}, {10})


def test_no_way_of_a_bsync_is_lost() -> None:
    """A walk that knows the B registers takes no edge that the blocks lack."""
    generator = random.Random(7)
    choices = ("NOP", "@P0 BRA {T}", "BSSY {B}, {T}", "@P0 BSSY {B}, {T}", "BSYNC {B}", "EXIT")
    walked = 0
    for _ in range(600):
        length = generator.randrange(4, 14)
        lines = [
            line.replace("{B}", generator.choice(("B0", "B1"))).replace(
                "{T}", f"0x{16 * generator.randrange(length):x}"
            )
            for line in generator.choices(choices, (2, 3, 4, 1, 5, 1), k=length)
        ]
        (function,) = parse_machine_code(listing("\n".join([*lines, "EXIT"])))
        blocks = find_blocks(function.instructions)
        first_of = {block.indices[0]: number for number, block in enumerate(blocks)}
        states: list[tuple[int, tuple[tuple[str, int], ...]]] = [(0, ())]
        seen = set(states)
        while states:
            number, registers = states.pop()
            known = [dict(registers)]
            for index in blocks[number].indices:
                each = function.instructions[index]
                if each.base == "BSSY":
                    register = each.operands.split(",")[0]
                    changed = [{**one, register: (each.target or 0) // 16} for one in known]
                    known = changed + (known if each.guard else [])
            for one in known:
                following = set(blocks[number].successors)
                if each.base == "BSYNC" and each.operands in one:
                    walked += 1
                    target = first_of[one[each.operands]]
                    assert target in following, lines
                    following = {target} | following & {number + 1}
                for after in following:
                    state = (after, tuple(sorted(one.items())))
                    if state not in seen:
                        seen.add(state)
                        states.append(state)
    assert walked > 500


def test_every_instruction_is_in_one_block() -> None:
    for arch in ARCHS:
        for function in parse_machine_code(excerpt(arch)):
            blocks = find_blocks(function.instructions)
            indices = [index for block in blocks for index in block.indices]
            assert indices == list(range(len(function.instructions)))
