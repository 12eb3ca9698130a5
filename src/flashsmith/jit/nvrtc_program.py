"""Compiles a CUDA source to a cubin with NVRTC: a program of the standard library alone.

    python -I -S nvrtc_program.py LIBRARY OPTION... SOURCE -o CUBIN
    python -I -S nvrtc_program.py LIBRARY

It is a process for each kernel, as nvcc is, so that kernels are compiled in parallel. The log,
with ptxas' figures, is written to the standard output. The second form prints the version, the
architectures, and the PTX of an empty source, whose comment names the build, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from contextlib import suppress
from pathlib import Path

_COMPILATION = 6  # NVRTC_ERROR_COMPILATION: the log says what is wrong with the source
# From this version on, NVRTC loads the GPU's driver to look into its cache of compiled code, unless
# it is told not to. A compilation must not depend on that cache, nor wait for a GPU.
_HAS_CACHE = (12, 9)


class Nvrtc:
    """The C functions of an NVRTC."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        major, minor = self.version()
        # NVRTC looks its builtins up by name, and finds them if they are loaded.
        for folder in (library.parent, library.resolve().parent):
            with suppress(OSError):
                builtins = folder / f"libnvrtc-builtins.so.{major}.{minor}"
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
                break

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

    def compile(
        self, text: bytes, name: str, options: list[str], made: str = "CUBIN"
    ) -> tuple[bytes | None, str]:
        """Returns the CUBIN, or what ``made`` names, and the log; None in its place if the source
        has errors."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), text, name.encode(), 0, 0, 0)
        if self.version() >= _HAS_CACHE:
            options = [*options, "--no-cache"]
        words = (ctypes.c_char_p * len(options))(*(word.encode() for word in options))
        code = self._library.nvrtcCompileProgram(program, len(options), words)
        log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code and code != _COMPILATION:
            print(log)
            raise self._failure("CompileProgram", code)
        return None if code else self._bytes(program, made), log

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, f"nvrtc{name}")(*arguments):
            raise self._failure(name, code)

    def _failure(self, name: str, code: int) -> RuntimeError:
        words = self._library.nvrtcGetErrorString
        words.restype = ctypes.c_char_p
        why = words(code).decode().removeprefix("NVRTC_ERROR_").replace("_", " ").lower()
        return RuntimeError(f"nvrtc{name} failed: {why}")


def main(words: list[str]) -> int:
    library, *rest = words
    try:
        nvrtc = Nvrtc(Path(library))
        if not rest:
            ptx, _ = nvrtc.compile(b"", "empty.cu", [], "PTX")
            print(json.dumps([nvrtc.version(), nvrtc.archs(), (ptx or b"").decode()]))
            return 0
        *options, source, _, out = rest
        cubin, log = nvrtc.compile(Path(source).read_bytes(), source, options)
        print(log, end="")
        if cubin is None:
            return 1
        Path(out).write_bytes(cubin)
        return 0
    except (OSError, RuntimeError, AttributeError) as error:
        print(f"NVRTC {library} failed: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
