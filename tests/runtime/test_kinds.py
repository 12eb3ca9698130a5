"""A kernel for GPUs refuses tensors in CPU memory, and an emulated kernel tensors of a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.runtime import find_kernel
from flashsmith.runtime.call_args import FULL_EXTRAS, NO_SCALES
from flashsmith.runtime.workspace import FRESH
from support.emulator_program import CXX
from support.paths import CSRC
from support.sm80_kernels import BASE

CUDA = 2  # kDLCUDA
HALF = 2, 16, 1  # kDLFloat, bits, lanes
SHAPE = 1, 64, 1, BASE.d_head


class _Tensor(ctypes.Structure):
    """DLManagedTensor, with the DLTensor that it begins with."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class OfGpu:
    """A tensor of a GPU that this machine need not have."""

    def __init__(self) -> None:
        self.shape = (ctypes.c_int64 * 4)(*SHAPE)
        self.memory = ctypes.create_string_buffer(16)
        address = ctypes.addressof(self.memory)
        self.tensor = _Tensor(address, CUDA, 0, 4, *HALF, self.shape, None, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_an_emulated_kernel_refuses_tensors_of_a_gpu() -> None:
    kernel = find_kernel(KernelId(BASE), Target.emulator())
    q, k, v, o = (OfGpu() for _ in range(4))
    words = "^q is not in CPU memory, but the kernel is for the emulator$"
    with pytest.raises(ValueError, match=words):
        kernel.plan(q, k, v, o)
    with pytest.raises(ValueError, match=words):
        kernel(q, k, v, o, 1.0)
    with pytest.raises(ValueError, match=words):
        kernel.bind()(*bound(q, k, v, o))


def bound(*qkvo: Any) -> tuple[Any, ...]:
    """Returns the arguments of ``Kernel.bind``'s function."""
    return FRESH, *qkvo, None, *NO_SCALES, None, None, 1.0, *FULL_EXTRAS


# A driver whose functions all succeed and do nothing, so that a module for GPUs can be loaded.
_DRIVER = 'extern "C" int {name}(void **first) {{ {body} return 0; }}\n'
_BODIES = {"cuLibraryLoadData": "*first = first;", "cuLibraryGetKernel": "*first = first;"}
PROGRAM = """
import sys
from pathlib import Path
import torch
from flashsmith.configs import KernelId
from flashsmith.jit import Module, Target
from flashsmith.runtime import kernels
from support.sm80_kernels import BASE
from runtime.test_kinds import SHAPE, bound

manifest = {
    "artifact": {"file": "kernel.cubin"},
    "target": {"kind": "cuda", "archs": ["sm_80"]},
    "functions": {"flash_forward_kernel": "flash_forward_kernel"},
}
module = Module(Path(sys.argv[1]), manifest)
kernel = kernels.load_module(module, KernelId(BASE), Target.cuda("sm_80"))
q = torch.zeros(SHAPE).half()
for call in (
    lambda: kernel.plan(q, q, q, q.clone()),
    lambda: kernel(q, q, q, q.clone(), 1.0),
    lambda: kernel.bind()(*bound(q, q, q, q.clone())),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The folder of a driver that does nothing."""
    header = (CSRC / "host/driver.h").read_text()
    names = [line.split("(*")[1].split(")")[0] for line in header.splitlines() if "(*cu" in line]
    text = "".join(_DRIVER.format(name=name, body=_BODIES.get(name, "")) for name in names)
    folder = tmp_path / "driver"
    folder.mkdir()
    command = [str(CXX), "-shared", "-fPIC", "-x", "c++", "-", "-o", f"{folder}/libcuda.so.1"]
    subprocess.run(command, input=text, text=True, check=True)
    return folder


def test_a_kernel_for_gpus_refuses_tensors_in_cpu_memory(tmp_path: Path, driver: Path) -> None:
    (tmp_path / "kernel.cubin").write_text("code")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ
        | {
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines() == ["q is not on a GPU, but the kernel was compiled for one"] * 3
    )
