"""The machine code of kernels: the instructions of the whole kernel and of its main loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashsmith.jit import Module
from flashsmith.jit.disassembler import disassemble
from flashsmith.jit.machine_code import Instruction, parse_machine_code
from flashsmith.lab.report.loops import main_loop

# Each class has its opcodes, in the order of the charts; all other opcodes compute addresses.
_CLASSES = {
    "tensor": ("matrix products on the tensor cores", "HMMA HGMMA"),
    "shared loads": ("ldmatrix and loads from shared memory", "LDSM LDS"),
    "shared stores": ("stores to shared memory", "STS STSM"),
    "async copies": (
        "between global and shared memory, past the registers",
        "LDGSTS LDGDEPBAR UTMALDG UTMASTG UTMACMDFLUSH UTMAPF UBLKCP",
    ),
    "global": ("loads and stores of global memory", "LDG STG LD ST ATOMG RED"),
    "exp": ("special functions: the exponentials of the softmax", "MUFU"),
    "fp32": (
        "multiply, add, maximum, compare and select in FP32",
        "FADD FMUL FFMA FMNMX FMNMX3 FSETP FSEL FSET FCHK",
    ),
    "convert": ("FP32 to FP16 or BF16", "F2FP F2F F2I I2F I2FP HADD2 HMUL2"),
    "shuffle": ("exchange between the lanes of a warp", "SHFL VOTE VOTEU REDUX"),
    # HFMA2.MMA without operands and CS2R produce constants.
    "moves": (
        "copies between registers, and constants",
        "MOV UMOV CS2R R2UR S2R S2UR PRMT UPRMT SEL USEL HFMA2 MOVM R2P P2R",
    ),
    "spills": ("registers saved to and restored from local memory", "LDL STL"),
    "address": ("integers: addresses, counters, predicates", ""),
    "control": (
        "branches, barriers, waits",
        "BRA EXIT CALL RET BSSY BSYNC BAR DEPBAR WARPSYNC NOP YIELD MEMBAR ERRBAR NANOSLEEP "
        "BRX BREAK WARPGROUP ACQBULK SYNCS ARRIVES FENCE USETMAXREG ELECT UCGABAR_ARV "
        "UCGABAR_WAIT CCTL",
    ),
}
CLASSES = {name: meaning for name, (meaning, _) in _CLASSES.items()}
_CLASS_OF = {opcode: name for name, (_, text) in _CLASSES.items() for opcode in text.split()}


@dataclass(frozen=True)
class Mix:
    """The numbers of instructions by class, with all CLASSES, and by opcode."""

    classes: dict[str, int]
    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.classes.values())


@dataclass(frozen=True)
class MachineCode:
    """The machine code of one kernel. ``loop`` is a visit to an unmasked block of K and V; None if
    no loop has matrix products."""

    whole: Mix
    loop: Mix | None
    shortest: int | None = None  # instructions of a warp on the shortest path through the loop


def read_machine_code(module: Module, arch: str) -> dict[str, MachineCode]:
    """Returns the machine code of a kernel's functions by mangled name.

    Raises:
        ToolchainError: cuobjdump is missing or fails.
    """
    return parse_sass(disassemble(module.path, arch))


def parse_sass(text: str) -> dict[str, MachineCode]:
    """Returns the machine code in the output of cuobjdump -sass, by function."""
    return {
        function.name: _machine_code(function.instructions) for function in parse_machine_code(text)
    }


def _class_of(instruction: Instruction) -> str:
    """Returns the instruction's class, one of CLASSES."""
    if instruction.opcode.startswith("IMAD.MOV"):
        return "moves"
    return _CLASS_OF.get(instruction.base, "address")


def _machine_code(code: Sequence[Instruction]) -> MachineCode:
    loop = main_loop(code, lambda each: _class_of(each) == "tensor")
    if loop is None:
        return MachineCode(_mix(code), None)
    return MachineCode(_mix(code), _mix(loop.instructions), loop.shortest)


def _mix(code: Sequence[Instruction]) -> Mix:
    classes: Mapping[str, int] = Counter(_class_of(each) for each in code)
    return Mix(
        {name: classes.get(name, 0) for name in CLASSES},
        dict(Counter(each.opcode for each in code).most_common()),
    )
