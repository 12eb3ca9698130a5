"""Compiles a CUDA source to a cubin with NVRTC: a program of the standard library alone.

    python -I -S nvrtc_program.py LIBRARY OPTION... SOURCE -o CUBIN
    python -I -S nvrtc_program.py LIBRARY

It is a process for each kernel, as nvcc is, so that kernels are compiled in parallel. The log,
with ptxas' figures, is written to the standard output. The second form prints the version and the
architectures as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path


class Nvrtc:
    """The C functions of an NVRTC."""

    def __init__(self, library: Path) -> None:
        # NVRTC looks its builtins up by name, and finds them if they are loaded.
        for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(library))

    def version(self) -> tuple[int, int]:
        """Returns the version of CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def archs(self) -> list[int]:
        """Returns the architectures that it compiles for: 90 is sm_90."""
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", archs)
        return list(archs)

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


def main(words: list[str]) -> int:
    library, *rest = words
    try:
        nvrtc = Nvrtc(Path(library))
        if not rest:
            print(json.dumps([nvrtc.version(), nvrtc.archs()]))
            return 0
        *options, source, _, out = rest
        cubin, log = nvrtc.compile(Path(source).read_text(), source, options)
    except (OSError, RuntimeError, AttributeError) as error:
        print(f"NVRTC {library} cannot be used: {error}")
        return 1
    print(log, end="")
    if cubin is None:
        return 1
    Path(out).write_bytes(cubin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
