"""The machine code of kernels: what instructions it has, and what its main loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashsmith.build import Library
from flashsmith.build.disassembler import disassemble
from flashsmith.build.machine_code import Instruction, parse_machine_code

# In the order of the charts.
CLASSES = {
    "tensor": "matrix products on the tensor cores",
    "shared loads": "ldmatrix and loads from shared memory",
    "shared stores": "stores to shared memory",
    "async copies": "global to shared memory, past the registers",
    "global": "loads and stores of global memory",
    "exp": "special functions: the exponentials of the softmax",
    "fp32": "multiply, add, maximum, compare and select in FP32",
    "convert": "FP32 to FP16 or BF16",
    "shuffle": "exchange between the lanes of a warp",
    "moves": "copies between registers, and constants",
    "spills": "registers saved to and restored from local memory",
    "address": "integers: addresses, counters, predicates",
    "control": "branches, barriers, waits",
}
_OPCODES = {
    "tensor": "HMMA HGMMA",
    "shared loads": "LDSM LDS",
    "shared stores": "STS STSM",
    "async copies": "LDGSTS LDGDEPBAR",
    "global": "LDG STG LD ST",
    "exp": "MUFU",
    "fp32": "FADD FMUL FFMA FMNMX FMNMX3 FSETP FSEL FSET FCHK",
    "convert": "F2FP F2F F2I I2F I2FP HADD2 HMUL2",
    "shuffle": "SHFL VOTE VOTEU REDUX",
    # HFMA2.MMA without operands and CS2R make constants.
    "moves": "MOV UMOV CS2R R2UR S2R S2UR PRMT UPRMT SEL USEL HFMA2 MOVM R2P P2R",
    "spills": "LDL STL",
    "control": "BRA EXIT CALL RET BSSY BSYNC BAR DEPBAR WARPSYNC NOP YIELD MEMBAR ERRBAR "
    "NANOSLEEP BRX BREAK WARPGROUP ACQBULK",
}
_CLASS_OF = {opcode: name for name, text in _OPCODES.items() for opcode in text.split()}


@dataclass(frozen=True)
class Mix:
    """Instructions by class, all CLASSES, and by opcode."""

    classes: dict[str, int]
    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    @property
    def ex2(self) -> int:
        return self.opcodes.get("MUFU.EX2", 0)


@dataclass(frozen=True)
class MachineCode:
    """One kernel. ``loop``: a visit to an unmasked block of K and V; None if there is no loop with
    matrix products."""

    whole: Mix
    loop: Mix | None


def read_machine_code(library: Library, arch: str) -> dict[str, MachineCode]:
    """The machine code of a library's kernels by mangled name.

    Raises:
        ToolchainError: cuobjdump is missing or fails.
    """
    return parse_sass(disassemble(library.path, arch))


def parse_sass(text: str) -> dict[str, MachineCode]:
    """What cuobjdump -sass prints, by function."""
    return {
        function.name: _machine_code(function.instructions) for function in parse_machine_code(text)
    }


def main_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The loop over blocks of K and V: from the target of a backward branch to the branch.

    Of loops with equally many matrix products the shortest: a causal kernel has one that masks,
    too. Empty if no loop has any.
    """
    loops = [
        [each for each in code if target <= each.address <= branch.address]
        for branch in code
        if branch.base == "BRA"
        and (target := branch.target) is not None
        and target < branch.address
    ]
    with_products = [loop for loop in loops if _n_tensor(loop)]
    innermost = [
        loop
        for loop in with_products
        if not any(_contains(loop, other) for other in with_products if other is not loop)
    ]
    return max(innermost, key=lambda loop: (_n_tensor(loop), -len(loop)), default=[])


def _contains(outer: Sequence[Instruction], inner: Sequence[Instruction]) -> bool:
    return outer[0].address <= inner[0].address and inner[-1].address < outer[-1].address


def _class_of(instruction: Instruction) -> str:
    """One of CLASSES."""
    if instruction.opcode.startswith("IMAD.MOV"):
        return "moves"
    return _CLASS_OF.get(instruction.base, "address")


def _n_tensor(code: Sequence[Instruction]) -> int:
    return sum(_class_of(each) == "tensor" for each in code)


def _machine_code(code: Sequence[Instruction]) -> MachineCode:
    loop = main_loop(code)
    return MachineCode(_mix(code), _mix(loop) if loop else None)


def _mix(code: Sequence[Instruction]) -> Mix:
    classes: Mapping[str, int] = Counter(_class_of(each) for each in code)
    return Mix(
        {name: classes.get(name, 0) for name in CLASSES},
        dict(Counter(each.opcode for each in code).most_common()),
    )
