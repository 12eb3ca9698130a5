"""The machine code of kernels: what instructions it has, and what its main loop."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flashsmith import settings
from flashsmith.build import Library
from flashsmith.errors import ToolchainError

INSTALL = (
    "install the CUDA toolkit, or `pip install 'flashsmith[report]'` "
    "(nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm)"
)

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

_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<operands>[^;\n]*);",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Instruction:
    address: int
    opcode: str  # with modifiers, "IMAD.MOV.U32"
    operands: str

    @property
    def kind(self) -> str:
        """One of CLASSES."""
        base = self.opcode.partition(".")[0]
        if self.opcode.startswith("IMAD.MOV"):
            return "moves"
        return _CLASS_OF.get(base, "address")

    @property
    def branch_target(self) -> int | None:
        """The address that a branch names."""
        if not self.opcode.startswith("BRA"):
            return None
        found = re.search(r"\b0x([0-9a-f]+)\s*$", self.operands)
        return int(found[1], 16) if found else None


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


def find_cuobjdump() -> Path:
    """cuobjdump on PATH, in CUDA_HOME, /usr/local/cuda or NVIDIA's PyPI packages.

    Raises:
        ToolchainError: There is none, or none with nvdisasm, which it needs.
    """
    for folder in _tool_folders():
        tool = folder / "cuobjdump"
        if os.access(tool, os.X_OK) and shutil.which("nvdisasm", path=_path_with(folder)):
            return tool
    raise ToolchainError(f"no cuobjdump with nvdisasm was found; {INSTALL}")


def disassemble(library: Library, arch: str) -> dict[str, MachineCode]:
    """The machine code of a library's kernels by mangled name.

    Raises:
        ToolchainError: cuobjdump is missing or fails.
    """
    tool = find_cuobjdump()
    command = [str(tool), "-sass", "-arch", arch, str(library.path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | {"PATH": _path_with(tool.parent)},
    )
    if done.returncode != 0:
        raise ToolchainError(f"`{' '.join(command)}` failed: {done.stderr.strip()}; {INSTALL}")
    return parse_sass(done.stdout)


def parse_sass(text: str) -> dict[str, MachineCode]:
    """What cuobjdump -sass prints, by function."""
    parts = _FUNCTION.split(text)[1:]
    return {
        name: _machine_code(list(_instructions(body)))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def main_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The loop over blocks of K and V: from the target of a backward branch to the branch.

    Of loops with equally many matrix products the shortest: a causal kernel has one that masks,
    too. Empty if no loop has any.
    """
    loops = [
        [each for each in code if target <= each.address <= branch.address]
        for branch in code
        if (target := branch.branch_target) is not None and target < branch.address
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


def _n_tensor(code: Sequence[Instruction]) -> int:
    return sum(each.kind == "tensor" for each in code)


def _machine_code(code: Sequence[Instruction]) -> MachineCode:
    loop = main_loop(code)
    return MachineCode(_mix(code), _mix(loop) if loop else None)


def _mix(code: Sequence[Instruction]) -> Mix:
    classes: Mapping[str, int] = Counter(each.kind for each in code)
    return Mix(
        {name: classes.get(name, 0) for name in CLASSES},
        dict(Counter(each.opcode for each in code).most_common()),
    )


def _instructions(text: str) -> Iterator[Instruction]:
    for match in _INSTRUCTION.finditer(text):
        yield Instruction(int(match["address"], 16), match["opcode"], match["operands"].strip())


def _tool_folders() -> Iterator[Path]:
    if on_path := shutil.which("cuobjdump"):
        yield Path(on_path).parent
    if home := settings.CUDA_HOME.get():
        yield home / "bin"
    yield Path("/usr/local/cuda/bin")
    spec = find_spec("nvidia")  # the namespace of NVIDIA's wheels
    for folder in (spec.submodule_search_locations if spec else None) or []:
        yield from sorted(Path(folder).glob("cu[0-9]*/bin"), reverse=True)


def _path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *os.get_exec_path()])
