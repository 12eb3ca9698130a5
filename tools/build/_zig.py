"""The C++ compiler of wheels: clang and libc++ of the package ziglang, which brings the symbols of
old C libraries for every machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

from flashsmith.errors import ToolchainError
from flashsmith.jit.kernel_compilers import HostToolchain
from flashsmith.jit.toolchain import Compiler, TvmFfi

MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"  # that of manylinux_2_28, which torch's wheels need, too
_ROOT = Path(__file__).resolve().parents[2]
_INSTALL = "`pip install 'flashsmith[wheels]'`"

# An exception passes frames of the host library, which zig compiles, and of kernels, which the
# user's compiler may. Their unwinder must be one and the same: the system's libgcc_s, on which
# libtvm_ffi.so depends, too. zig would link its own into each library; symbols that a library found
# earlier has are not taken from there.
_UNWINDER = "libgcc_s.so.1"
_UNWINDER_SYMBOLS = {
    "GCC_3.0": (
        "DeleteException ForcedUnwind GetDataRelBase GetGR GetIP GetLanguageSpecificData "
        "GetRegionStart GetTextRelBase RaiseException Resume SetGR SetIP"
    ),
    "GCC_3.3": "Backtrace FindEnclosingFunction GetCFA Resume_or_Rethrow",
    "GCC_4.2.0": "GetIPInfo",
}


def zig_toolchain(machine: str, folder: Path) -> HostToolchain:
    """Returns the compiler for the oldest supported C library of ``machine``.

    folder: Where the compiler's files, its cache, and the oldest supported tvm-ffi are kept.

    Raises:
        ToolchainError: The package ziglang, or the wheel of tvm-ffi, is missing.
    """
    if (spec := importlib.util.find_spec("ziglang")) is None or spec.origin is None:
        raise ToolchainError(f"the package ziglang is not installed; {_INSTALL}")
    folder.mkdir(parents=True, exist_ok=True)
    target = f"{machine}-linux-gnu.{GLIBC}"
    version = importlib.metadata.version("ziglang")
    cxx = _script(folder, Path(spec.origin).parent / "zig", target)
    identity = f"zig {version} {target} {_UNWINDER}"
    return HostToolchain(
        Compiler(cxx, version, "ziglang", identity),
        _tvm_ffi(machine, folder),
        f"glibc {GLIBC}",
        (str(_unwinder(cxx, folder)), "-Wl,-s"),
    )


def _script(folder: Path, zig: Path, target: str) -> Path:
    """Writes a compiler that is called as others are."""
    path = folder / f"c++-{target}"
    cache = shlex.quote(str(folder / "zig-cache"))
    path.write_text(
        "#!/bin/sh\n"
        f"export ZIG_GLOBAL_CACHE_DIR={cache} ZIG_LOCAL_CACHE_DIR={cache}\n"
        f'exec {shlex.quote(str(zig))} c++ -target {target} -g0 "$@"\n'
    )
    path.chmod(0o755)
    return path


def _unwinder(cxx: Path, folder: Path) -> Path:
    """Builds a library with the unwinder's names and versions, to link with on any machine."""
    library = folder / cxx.name.removeprefix("c++-") / _UNWINDER
    library.parent.mkdir(exist_ok=True)
    text, script = library.with_name("unwinder.c"), library.with_name("unwinder.map")
    names = {of: [f"_Unwind_{name}" for name in t.split()] for of, t in _UNWINDER_SYMBOLS.items()}
    defined = (f"void {name}(void) {{}}\n" for of in names.values() for name in of)
    text.write_text("".join(defined))
    versions = (f"{of} {{ global: {'; '.join(each)}; }};\n" for of, each in names.items())
    script.write_text("".join(versions))
    flags = ["-x", "c", "-shared", f"-Wl,-soname,{_UNWINDER}", f"-Wl,--version-script={script}"]
    _run([cxx, "-nostdlib", "-fPIC", *flags, text, "-o", library])
    return library


def _tvm_ffi(machine: str, folder: Path) -> TvmFfi:
    """Returns the oldest tvm-ffi that flashsmith supports, from its wheel for ``machine``: what is
    built with it runs with newer ones."""
    project = (_ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'"apache-tvm-ffi>=([\d.]+)"', project)
    unpacked = folder / f"tvm-ffi-{version}-{machine}"
    if not unpacked.is_dir():
        wheels = folder / f"{unpacked.name}.wheels"
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 24, 28)]
        asked = ["--no-deps", "--only-binary=:all:", *platforms, f"apache-tvm-ffi=={version}"]
        _run([sys.executable, "-m", "pip", "download", "--quiet", "-d", wheels, *asked])
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    package = unpacked / "tvm_ffi"
    return TvmFfi(package / "include", package / "lib", version)


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        words = shlex.join(map(str, command))
        raise ToolchainError(f"`{words}` failed ({done.returncode}):\n{done.stdout}")
