"""The lint of machine code: arrivals that are issued while loads of shared memory are in flight."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict

import pytest

from flashsmith.jit.control_flow import find_blocks
from flashsmith.jit.lint import EarlyRelease, Lint, find_early_releases, lint_machine_code
from flashsmith.jit.machine_code import Function, parse_machine_code
from support.listings import excerpt, listing

ARRIVE = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ"


def parse(program: str) -> Function:
    """Returns the function of a listing, in which ARRIVE stands for an arrival."""
    (function,) = parse_machine_code(listing(re.sub(r"(?<![\w.])ARRIVE(?![\w.])", ARRIVE, program)))
    return function


def early(program: str) -> list[tuple[int, list[int]]]:
    """Returns, by lines of the program, each early release and the loads that are in flight
    there."""
    return [
        (found.address // 16, [int(load.rpartition(" ")[2], 16) // 16 for load in found.loads])
        for found in find_early_releases(parse(program))
    ]


# ---- straight-line code ----


@pytest.mark.parametrize(
    ("between", "is_early"),
    [
        ("NOP", True),
        ("IADD3 R8, R4, R5, RZ <- 0", False),
        ("IADD3 R8, R9, R9, RZ <- 1,2,3,4,5", True),
        ("@P0 IADD3 R8, R4, R5, RZ <- 0", False),  # the wait comes before the predicate
        ("MEMBAR.ALL.CTA", False),
        ("MEMBAR.SC.GPU", False),
        ("FENCE.VIEW.ASYNC.S", False),
        ("@P0 MEMBAR.ALL.CTA", True),  # may not run
        ("@!UP0 FENCE.VIEW.ASYNC.S", True),
        ("WARPSYNC.ALL", True),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", True),
        ("WARPGROUP.ARRIVE", True),
        ("DEPBAR.LE SB0, 0x0", False),
        ("DEPBAR.LE SB0, 0x1", True),  # which load has arrived is not known
        ("DEPBAR.LE SB1, 0x0", True),
        ("DEPBAR.LE SB1, 0x0, {0,4}", False),
        ("DEPBAR {3,0}", False),
        ("@P0 DEPBAR.LE SB0, 0x0", True),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x0", True),
        ("LDC R9, c[0x0][0x210] -> 0", True),
    ],
)
def test_between_a_load_and_an_arrival(between: str, is_early: bool) -> None:
    found = early(f"LDSM.16.M88.4 R4, [R2] -> 0\n{between}\nARRIVE\nEXIT")
    assert found == ([(2, [0])] if is_early else [])


@pytest.mark.parametrize("load", ["LDSM.16.M88.4", "LDSM.16.MT88.2", "LDS", "LDS.U.128", "LD.E"])
def test_loads_that_may_read_shared_memory(load: str) -> None:
    assert early(f"{load} R4, [R2] -> 3\nARRIVE\nEXIT") == [(1, [0])]
    assert early(f"@P3 {load} R4, [R2] -> 3\nARRIVE\nEXIT") == [(1, [0])]


@pytest.mark.parametrize("load", ["LDG.E.128", "LDC", "LDL", "LDGSTS.E", "STS", "ULDC.64", "S2R"])
def test_what_reads_no_shared_memory(load: str) -> None:
    assert early(f"{load} R4, [R2] -> 3\nARRIVE\nEXIT") == []


@pytest.mark.parametrize(
    "release",
    [
        "@!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ",
        "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R4",  # expect_tx
        "SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R4.64], RZ",  # at the barrier of another thread block
        "SYNCS.ARRIVE.TRANS64.OPTOUT.A1T0 RZ, [UR4], RZ",
        "ATOMS.ARRIVE.64 RZ, [URZ]",
        "ARRIVES.LDGSTSBAR.64 [URZ]",
        "UCGABAR_ARV",
        "UTMALDG.4D [UR8], [UR4]",
        "UBLKCP.S.G [UR8], [UR4], UR10",
    ],
)
def test_what_lets_shared_memory_be_overwritten(release: str) -> None:
    assert early(f"LDS R4, [R2] -> 0\n{release}\nEXIT") == [(1, [0])]
    assert early(f"LDS R4, [R2] -> 0\n{release} <- 0\nEXIT") == []
    assert early(f"{release}\nLDS R4, [R2] -> 0\nEXIT") == []


@pytest.mark.parametrize(
    "other",
    [
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R4",
        "SYNCS.EXCH.64 URZ, [UR4], UR6",
        "BAR.SYNC.DEFER_BLOCKING 0x0",
        "BAR.ARV 0x1, 0x80",
        "ATOMS.ADD RZ, [R4], R6",
        "UTMASTG.4D [UR8], [UR4]",
        "UBLKCP.G.S [UR8], [UR4], UR10",
        "EXIT",
    ],
)
def test_what_does_not(other: str) -> None:
    assert early(f"LDS R4, [R2] -> 0\n{other}\nEXIT") == []


def test_a_wait_covers_all_loads_of_its_scoreboard_and_no_others() -> None:
    program = """LDSM.16.M88.4 R4, [R2] -> 0
        LDSM.16.M88.4 R8, [R2] -> 1
        LDSM.16.M88.4 R12, [R2] -> 0
        IADD3 R4, R4, R12, RZ <- 0
        ARRIVE
        IADD3 R4, R4, R8, RZ <- 1
        ARRIVE"""
    assert early(program) == [(4, [1])]


def test_a_load_that_waits_for_its_own_scoreboard_is_in_flight_again() -> None:
    assert early("LDS R4, [R2] -> 0\nLDS R6, [R4] -> 0 <- 0\nARRIVE\nEXIT") == [(2, [1])]


def test_a_load_without_a_scoreboard_is_in_flight_until_a_fence() -> None:
    program = "LDS R4, [R2]\nNOP <- 0,1,2,3,4,5\nARRIVE\nMEMBAR.ALL.CTA\nARRIVE\nEXIT"
    assert early(program) == [(2, [0])]


# ---- branches ----


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("LDS R4, [R2] -> 0\nBRA {L}\nNOP <- 0\nL: ARRIVE", [(3, [0])]),
        ("LDS R4, [R2] -> 0\nBRA {L}\nARRIVE\nL: EXIT", []),
        ("LDS R4, [R2] -> 0\nEXIT\nARRIVE", []),
        ("LDS R4, [R2] -> 0\n@P0 EXIT\nARRIVE", [(2, [0])]),
        # One of two paths loads; one path waits, or both do.
        ("@P0 BRA {L}\nLDS R4, [R2] -> 0\nL: ARRIVE", [(2, [1])]),
        ("LDS R4, [R2] -> 0\n@P0 BRA {L}\nNOP <- 0\nL: ARRIVE", [(3, [0])]),
        ("LDS R4, [R2] -> 0\n@P0 BRA {M}\nNOP <- 0\nBRA {L}\nM: NOP <- 0\nL: ARRIVE", []),
        ("LDS R4, [R2] -> 0\nBRA P1, {L}\nARRIVE\nL: EXIT", [(2, [0])]),
        ("LDS R4, [R2] -> 0\nBRA.U UP0, {L}\nARRIVE\nL: EXIT", [(2, [0])]),
        ("LDS R4, [R2] -> 0\nWARPSYNC.COLLECTIVE R9, {L}\nEXIT\nL: ARRIVE", [(3, [0])]),
        # A loop: the load of one iteration precedes the arrival of the next.
        ("L: ARRIVE\nLDS R4, [R2] -> 0\n@P0 BRA {L}\nEXIT", [(0, [1])]),
        ("L: ARRIVE\nLDS R4, [R2] -> 0\n@P0 BRA {L} <- 0\nEXIT", []),
        (
            "L: NOP\nM: ARRIVE\n@P1 BRA {M}\nLDS R4, [R2] -> 0\n@P0 BRA {L}\nEXIT",
            [(1, [3])],
        ),
        # The paths of two lanes meet behind a BSYNC, whichever BSYNC they came to.
        (
            "BSSY B0, {J}\n@P0 BRA {M}\nLDS R4, [R2] -> 0\nBSYNC B0\nM: BSYNC B0 <- 0\nJ: ARRIVE",
            [(5, [2])],
        ),
        # The target of the branch is unknown.
        ("ARRIVE\nLDS R4, [R2] -> 0\nBRX R6 -0x20", [(0, [1])]),
        ("LDS R4, [R2] -> 0\nBRX R6 -0x20\nEXIT\nARRIVE\nEXIT", [(3, [0])]),
        ("LDS R4, [R2] -> 0\nCALL.ABS.NOINC R6\nEXIT", [(1, [0])]),
        ("LDS R4, [R2] -> 0\nCALL.ABS.NOINC R6 <- 0\nEXIT", []),
        ("LDS R4, [R2] -> 0\nBRA 0x4000", [(1, [0])]),
        ("LDS R4, [R2] -> 0\nRET R6 0x0", [(1, [0])]),
        # The path goes through a subroutine.
        ("LDS R4, [R2] -> 0\nCALL.REL.NOINC {S}\nARRIVE\nEXIT\nS: RET R6 0x0", [(2, [0])]),
        (
            "LDS R4, [R2] -> 0\nCALL.REL.NOINC {S}\nARRIVE\nEXIT\nS: NOP <- 0\nRET R6 0x0",
            [],
        ),
        (
            "CALL.REL.NOINC {S}\nARRIVE\nEXIT\nS: LDS R4, [R2] -> 0\nRET R6 0x0",
            [(1, [3])],
        ),
        (
            "LDS R4, [R2] -> 0\nCALL.REL.NOINC {S}\nEXIT\nS: ARRIVE\nRET R6 0x0",
            [(3, [0])],
        ),
    ],
)  # fmt: skip
def test_paths(program: str, expected: list[tuple[int, list[int]]]) -> None:
    assert early(program) == expected


# ---- against every path of random programs ----


def random_program(random: random.Random, length: int) -> str:
    """Returns a program with loads, waits, arrivals, fences and branches to any line."""
    choices = (
        "LDS R4, [R2] -> {board}", "NOP <- {board}", "ARRIVE", "@P0 ARRIVE <- {board}", "NOP",
        "@P0 BRA {target}", "BRA {target}", "MEMBAR.ALL.CTA", "@P1 EXIT", "BSYNC B0",
        "BSSY B0, {target}", "CALL.REL.NOINC {target}", "RET.REL.NODEC R6 0x0",
    )  # fmt: skip
    weights = (6, 2, 3, 1, 2, 5, 1, 1, 1, 1, 1, 1, 1)
    return "\n".join(
        line.replace("{board}", str(random.randrange(3))).replace(
            "{target}", f"0x{16 * random.randrange(length):x}"
        )
        for line in random.choices(choices, weights, k=length)
    )


def by_walking(function: Function) -> dict[int, set[int]]:
    """Returns the address of each release -> the addresses of the loads in flight there. It visits
    every state (an instruction and the loads in flight before it), one path at a time."""
    code = function.instructions
    after: dict[int, list[int]] = {}
    leaves = set()
    blocks = find_blocks(code)
    for block in blocks:
        after |= {index: [index + 1] for index in block.indices[:-1]}
        after[block.indices[-1]] = [blocks[each].indices[0] for each in block.successors]
        leaves |= {block.indices[-1]} if block.leaves else set()
    found: dict[int, set[int]] = {}
    # The lint starts every block with no load in flight, even a block that no branch reaches.
    states: list[tuple[int, frozenset[int]]] = [(b.indices[0], frozenset()) for b in blocks]
    seen = set(states)
    while states:
        index, in_flight = states.pop()
        each = code[index]
        in_flight = frozenset(
            load for load in in_flight if not each.waits >> (code[load].scoreboard or 0) & 1
        )
        if in_flight and ("ARRIVE" in each.opcode or index in leaves):
            found.setdefault(each.address, set()).update(code[i].address for i in in_flight)
        if each.base == "MEMBAR":
            in_flight = frozenset()
        if each.base == "LDS":
            in_flight |= {index}
        for following in after[index]:
            if (following, in_flight) not in seen:
                seen.add((following, in_flight))
                states.append((following, in_flight))
    return found


def test_as_if_every_path_were_walked() -> None:
    generator = random.Random(10)
    n_early = 0
    for _ in range(300):
        program = random_program(generator, generator.randrange(3, 14))
        function = parse(program)
        found = {
            each.address: {int(load.rpartition(" ")[2], 16) for load in each.loads}
            for each in find_early_releases(function)
        }
        assert found == by_walking(function), program
        n_early += len(found)
    assert n_early > 100


# ---- messages ----


def test_excerpts_of_nvcc() -> None:
    (found,) = lint_machine_code(excerpt("sm_90a")).early_releases
    assert found == EarlyRelease(
        "arrives_early", "sm_90a", 0xB0, "SYNCS.ARRIVE.TRANS64.A1T0",
        ("LDSM.16.M88.4 at 0x00a0",),
    )  # fmt: skip
    for text in (
        "SYNCS.ARRIVE.TRANS64.A1T0 at 0x00b0 (sm_90a)",
        "in flight: LDSM.16.M88.4 at 0x00a0",
    ):
        assert text in str(found)
    for arch in ("sm_100a", "sm_120a"):
        assert [each.arch for each in lint_machine_code(excerpt(arch)).early_releases] == [arch]
    # ptxas puts a MEMBAR before an arrival on sm_80.
    assert lint_machine_code(excerpt("sm_80")) == Lint()


def test_many_loads_are_counted() -> None:
    program = "\n".join(["LDS R4, [R2] -> 0"] * 6 + [ARRIVE])
    (function,) = parse_machine_code(listing(program))
    (found,) = find_early_releases(function)
    assert str(found).endswith(
        "LDS at 0x0000, LDS at 0x0010, LDS at 0x0020, LDS at 0x0030 and 2 more"
    )


def test_all_functions_of_all_architectures_are_linted() -> None:
    bad = f"LDS R4, [R2] -> 0\n{ARRIVE}\nEXIT"
    text = listing(bad, "sm_90a", "first") + listing("EXIT", "sm_90a", "second")
    text += listing(bad, "sm_100a", "third")
    found = lint_machine_code(text)
    assert [(each.function, each.arch) for each in found.early_releases] == [
        ("first", "sm_90a"),
        ("third", "sm_100a"),
    ]
    assert found.not_linted == ()


def test_what_cannot_be_linted_is_said() -> None:
    bad = f"LDS R4, [R2] -> 0\n{ARRIVE}\nEXIT"
    unknown = lint_machine_code(listing(bad, "sm_130"))
    assert unknown == Lint(not_linted=("the encoding of sm_130 is not known",))
    partly = lint_machine_code(listing(bad, "sm_90a"), ["sm_80", "sm_90a"])
    assert partly.not_linted == ("cuobjdump showed no machine code for sm_80",)
    assert len(partly.early_releases) == 1
    assert lint_machine_code("Fatbin ptx code:", ["sm_90a"]).not_linted
    bare = "\tcode for sm_90a\n\t\tFunction : kernel\n        /*0000*/   LDS R4, [R2] ;\n"
    assert "did not print the encoding" in lint_machine_code(bare).not_linted[0]


def test_a_lint_is_read_back_from_a_manifest() -> None:
    lint = Lint(lint_machine_code(excerpt("sm_90a")).early_releases, ("a reason",))
    assert Lint.from_manifest(json.loads(json.dumps(asdict(lint)))) == lint
