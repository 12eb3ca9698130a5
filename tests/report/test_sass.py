"""Machine code: classes of instructions, and the loop that contains the matrix products."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashsmith.configs import KernelId
from flashsmith.errors import ToolchainError
from flashsmith.jit import Target, build_kernels, find_cuda_toolkit
from flashsmith.jit.disassembler import find_cuobjdump
from flashsmith.lab.report.description import fma_per_visit
from flashsmith.lab.report.sass import CLASSES, MachineCode, parse_sass, read_machine_code
from support.report import LAST_SM90, SASS, SWIZZLED


def test_sass_of_a_causal_kernel() -> None:
    code = parse_sass(SASS)
    assert list(code) == ["kernel", "no_loop"]
    assert code["no_loop"].loop is None
    whole, masked = code["kernel"].whole, code["kernel"].loop
    assert whole.total == 18
    assert whole.classes["spills"] == 1
    assert masked
    assert masked.total == 3  # two loops have one mma each; this is the shorter one
    only_one = SASS.replace("/*0040*/                   FSEL", "/*0040*/                   HMMA")
    assert (parse_sass(only_one)["kernel"].loop or whole).classes["tensor"] == 2
    unmasked = parse_sass(SASS.replace("@P2 BRA 0x30", "    NOP     "))["kernel"].loop
    assert unmasked
    found = {name: n for name, n in unmasked.classes.items() if n}
    assert found == {
        "tensor": 1, "shared loads": 1, "exp": 1, "moves": 1, "address": 2, "control": 2,
    }  # fmt: skip
    assert list(unmasked.classes) == list(CLASSES)


# This loop waits out of line: its branch back to 0x60 ends no loop, though it goes backwards.
OUT_OF_LINE = """
		Function : kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x1 */
        /*0010*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0030*/                   FADD R1, R1, R1 ;                 /* 0x1 */
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R4 ; /* 0x1 */
        /*0050*/              @!P0 BRA 0xd0 ;                        /* 0x1 */
        /*0060*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24 ; /* 0x1 */
        /*0070*/               @P1 BRA 0xa0 ;                        /* 0x1 */
        /*0080*/                   FMUL R2, R2, R3 ;                 /* 0x1 */
        /*0090*/                   FMUL R3, R2, R3 ;                 /* 0x1 */
        /*00a0*/                   MUFU.EX2 R3, R3 ;                 /* 0x1 */
        /*00b0*/               @P2 BRA 0x40 ;                        /* 0x1 */
        /*00c0*/                   EXIT ;                            /* 0x1 */
        /*00d0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R4 ; /* 0x1 */
        /*00e0*/               @P0 BRA 0x60 ;                        /* 0x1 */
        /*00f0*/                   BRA 0xd0 ;                        /* 0x1 */
"""


def test_waits_out_of_line_belong_to_the_loop_that_waits() -> None:
    code = parse_sass(OUT_OF_LINE)["kernel"]
    assert code.loop
    found = {name: n for name, n in code.loop.classes.items() if n}
    assert found == {"tensor": 1, "exp": 1, "fp32": 2, "control": 7}
    # The total leaves out the wait out of line (3), and the shortest path what the branch at 0x70
    # skips (2).
    assert code.loop.total == 11
    assert code.shortest == 6


def test_the_shortest_way_takes_the_cheaper_branch() -> None:
    """A branch to the far end would skip less than the existing one."""
    longer = OUT_OF_LINE.replace("@P1 BRA 0xa0", "@P1 BRA 0x90")
    assert parse_sass(longer)["kernel"].shortest == 7
    never = OUT_OF_LINE.replace("@P1 BRA 0xa0", "    NOP     ")
    assert parse_sass(never)["kernel"].shortest == 8


def compiled(instance: KernelId) -> MachineCode:
    try:
        find_cuda_toolkit()
        find_cuobjdump()
    except ToolchainError as error:
        pytest.skip(str(error))
    (module,) = build_kernels([instance], Target.cuda("sm_90a"))
    (code,) = read_machine_code(module, "sm_90a").values()
    return code


def test_sass_of_a_compiled_kernel() -> None:
    """The main loop is a visit: it has as many mma as the emulator counts."""
    code = compiled(SWIZZLED)
    assert code.loop
    mma = fma_per_visit(SWIZZLED.config) // (16 * 8 * 16)
    assert code.loop.classes["tensor"] == mma // SWIZZLED.config.n_warps
    assert code.loop.classes["address"] < 0.15 * code.loop.total  # few are unclassified
    assert code.loop.opcodes["MUFU.EX2"] >= 64 * 64 // 128
    assert code.shortest == code.loop.total  # the loop has no branches
    # The first visit is a copy of the loop's body.
    assert code.whole.classes["tensor"] == 2 * code.loop.classes["tensor"]


def test_sass_of_a_compiled_sm90_kernel() -> None:
    """The code has three copies of a visit, for the queue, overlapping tiles and masks, with waits
    out of line."""
    code = compiled(LAST_SM90)
    config = LAST_SM90.config
    assert code.loop
    assert code.loop.classes["tensor"] == config.QK_steps + config.PV_steps == 16
    exponentials = config.B_c // 2  # for a thread, of 64 rows of a warpgroup
    assert code.loop.opcodes["MUFU.EX2"] >= exponentials
    assert code.shortest
    # Rescaling O and searching a new maximum are behind branches.
    assert exponentials + 16 < code.shortest < 0.8 * code.loop.total
    assert code.loop.classes["address"] < 0.2 * code.loop.total
    assert code.whole.classes["async copies"] > 0
    assert code.loop.classes["async copies"] == 0  # only the producer has them


def test_cuobjdump_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flashsmith.jit.disassembler._tool_folders", lambda: iter([tmp_path]))
    with pytest.raises(ToolchainError, match=r"pip install 'flashsmith\[report\]'"):
        find_cuobjdump()
