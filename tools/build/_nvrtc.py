"""Compiles a CUDA source with an NVRTC that is found by path, through its C functions.

It runs as a process for each kernel, because the compiler's state is global to a process:

    python tools/build/_nvrtc.py LIBRARY SOURCE ARCH OUT INCLUDE...
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

HEADERS = Path(__file__).resolve().parent / "nvrtc"


class Nvrtc:
    """An NVRTC other than torch's, loaded by its path, so that several versions can be compared."""

    def __init__(self, library: Path) -> None:
        for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)  # NVRTC looks it up by name
        self._library = ctypes.CDLL(str(library))

    def compile(self, text: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
        """Returns the cubin, or None if the compiler failed, and the log."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, 0, 0)
        words = (ctypes.c_char_p * len(options))(*(word.encode() for word in options))
        failed = self._library.nvrtcCompileProgram(program, len(options), words)
        log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        return None if failed else self._bytes(program, "CUBIN"), log

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, f"nvrtc{name}")(*arguments):
            raise RuntimeError(f"nvrtc{name} failed with {code}")


def main() -> int:
    library, source, arch, out, *includes = sys.argv[1:]
    options = [f"--gpu-architecture={arch}", "-std=c++20", "-default-device"]
    options += ["--ptxas-options=-v", *(f"-I{folder}" for folder in (*includes, HEADERS))]
    cubin, log = Nvrtc(Path(library)).compile(Path(source).read_text(), source, options)
    sys.stderr.write(log)
    if cubin is None:
        return 1
    Path(out).write_bytes(cubin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
