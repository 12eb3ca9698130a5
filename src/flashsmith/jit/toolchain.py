"""Finds the compilers, ninja and tvm-ffi; each failure says what was tried and what to do."""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import ToolchainError

# 12.8 is the first nvcc with every instruction that the templates use; C++20 class types as
# template parameters were tried with 13.0 only.
OLDEST_CUDA = (12, 8)
INSTALL_NVCC = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), or "
    "`pip install 'flashsmith[nvcc]'`, or point FLASHSMITH_NVCC at an nvcc"
)
INSTALL_CXX = (
    "install g++ 11 or newer (Debian: `apt install g++`), or point FLASHSMITH_CXX at a C++20 "
    "compiler"
)
SYSTEM_CUDA = Path("/usr/local/cuda")
_PROBE_SECONDS = 60

# The messages of compilers, linkers and ninja when memory runs out or the system kills them.
OUT_OF_MEMORY = re.compile(
    r"code=137|Killed signal|signal 9\b|out of memory|virtual memory exhausted|memory exhausted"
    r"|Cannot allocate memory|std::bad_alloc|Memory allocation failure",
    re.IGNORECASE,
)
LESS_MEMORY = "most likely for want of memory: lower FLASHSMITH_JOBS"

# The sources need these parts of C++20: class types as template parameters and operator<=>.
_CXX20_PROBE = """
#include <compare>
#include <source_location>
struct Config { int a; bool operator==(const Config &) const = default;
                auto operator<=>(const Config &) const = default; };
template <Config C> int value() { return C.a; }
int probe() { return value<Config{1}>(); }
"""


@dataclass(frozen=True)
class Compiler:
    """A compiler that was found and answers ``--version``."""

    path: Path
    version: str  # for people: '12.2.0', '13.0.88'
    found_by: str  # 'FLASHSMITH_CXX', 'PATH', ...
    identity: str  # the compiler's name and version for cache keys, wherever it is installed


@dataclass(frozen=True)
class CudaToolkit:
    """An nvcc and the toolkit that it belongs to."""

    nvcc: Compiler
    root: Path
    include: Path  # holds cuda_runtime.h


@dataclass(frozen=True)
class TvmFfi:
    """The installed apache-tvm-ffi, found without importing it."""

    include: Path
    library: Path  # folder of libtvm_ffi.so
    version: str


def find_cxx() -> Compiler:
    """Returns the host's C++ compiler: FLASHSMITH_CXX, else c++, g++ or clang++ on PATH.

    Raises ToolchainError if there is none, or if FLASHSMITH_CXX names something that does not run.
    """
    chosen = settings.CXX.get()
    if chosen:
        path = shutil.which(os.path.expanduser(chosen))  # noqa: PTH111  leaves what it does not know
        if path is None:
            raise ToolchainError(
                f"FLASHSMITH_CXX is {chosen!r}, which is no executable file; {INSTALL_CXX}"
            )
        return _cxx_at(Path(path), "FLASHSMITH_CXX")
    tried = []
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found is None:
            tried.append(f"{name} on PATH: not found")
            continue
        try:
            return _cxx_at(Path(found), "PATH")
        except ToolchainError as error:
            tried.append(str(error))
    raise ToolchainError(_nothing_found("C++ compiler", tried, INSTALL_CXX))


def find_cuda_toolkit() -> CudaToolkit:
    """Returns the first usable nvcc: FLASHSMITH_NVCC, CUDA_HOME, PATH, /usr/local/cuda, the PyPI
    package.

    A broken candidate is skipped, except FLASHSMITH_NVCC, which the user named explicitly. Raises
    ToolchainError that lists what was tried.
    """
    tried = []
    for found_by, path in _nvcc_candidates():
        try:
            return _toolkit_of(path, found_by)
        except ToolchainError as error:
            if found_by == settings.NVCC.name:
                raise ToolchainError(
                    f"{found_by} is {path}: {error}; point it at the nvcc of a CUDA toolkit, or "
                    "unset it to have one looked for"
                ) from None
            tried.append(f"{found_by}: {error}")
    raise ToolchainError(_nothing_found("nvcc", tried, INSTALL_NVCC))


def require_cxx20(compiler: Compiler) -> None:
    """Raises ToolchainError unless the compiler supports the C++20 that the sources use."""
    try:
        _probe_cxx20(compiler.path, _stamp(compiler.path))
    except ToolchainError as error:
        named = f"{compiler.path} ({compiler.version}, found by {compiler.found_by})"
        if OUT_OF_MEMORY.search(str(error)):
            raise ToolchainError(f"{named} could not be tried: {error}; {LESS_MEMORY}") from None
        raise ToolchainError(f"{named} cannot compile C++20: {error}; {INSTALL_CXX}") from None


def find_ninja() -> Path:
    """Returns the ninja of the PyPI package, which is a dependency, else the one on PATH."""
    try:
        import ninja  # imported here, because kernels that are built already must not need it
    except ModuleNotFoundError:
        bundled = None
    else:
        bundled = Path(ninja.BIN_DIR) / "ninja"
        if os.access(bundled, os.X_OK):
            return bundled
    found = shutil.which("ninja")
    if found is None:
        raise ToolchainError(
            f"ninja is neither {f'at {bundled}' if bundled else 'installed'} nor on PATH; "
            "`pip install --force-reinstall ninja`"
        )
    return Path(found)


def find_tvm_ffi() -> TvmFfi:
    """Returns headers and library of apache-tvm-ffi without importing it, which would load
    torch."""
    spec = importlib.util.find_spec("tvm_ffi")
    for location in (spec.submodule_search_locations or []) if spec else []:
        include, library = Path(location) / "include", Path(location) / "lib"
        if (include / "tvm" / "ffi").is_dir() and (library / "libtvm_ffi.so").is_file():
            return TvmFfi(include, library, tvm_ffi_version())
    raise ToolchainError(
        "the headers and libtvm_ffi.so of apache-tvm-ffi were not found beside Python's "
        f"{sys.executable}; `pip install --force-reinstall apache-tvm-ffi`"
    )


def tvm_ffi_version() -> str:
    """Returns the version of the installed apache-tvm-ffi, without importing it; "" if it is not
    known: a bundle of an application may leave it out."""
    try:
        return importlib.metadata.version("apache-tvm-ffi")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _nvcc_candidates() -> Iterator[tuple[str, Path | None]]:
    """Yields candidates in order of preference: how each was found, and its path or None."""
    if chosen := settings.NVCC.get():
        yield "FLASHSMITH_NVCC", chosen
    if home := settings.CUDA_HOME.get():
        yield "CUDA_HOME", home / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    yield "PATH", Path(on_path) if on_path else None
    yield str(SYSTEM_CUDA), SYSTEM_CUDA / "bin" / "nvcc"
    pypi: list[Path | None] = [root / "bin" / "nvcc" for root in pypi_toolkits()]
    for path in pypi or [None]:
        yield "PyPI package nvidia-cuda-nvcc", path


def pypi_toolkits() -> list[Path]:
    """Returns the CUDA toolkits in NVIDIA's wheels, newest first; the wheels share the namespace
    ``nvidia``."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or []
    roots = [root for folder in folders for root in Path(folder).glob("cu[0-9]*")]
    return sorted(roots, key=lambda root: root.name, reverse=True)


def _toolkit_of(path: Path | None, found_by: str) -> CudaToolkit:
    if path is None:
        raise ToolchainError("nvcc not found")
    if not path.is_file():
        raise ToolchainError(f"{path} does not exist")
    if not os.access(path, os.X_OK):
        raise ToolchainError(
            f"{path} is not executable; `chmod +x {path.parent}/* {path.parent.parent}/nvvm/bin/*`"
        )
    banner, root = _probe_nvcc(path, _stamp(path))
    match = re.search(r"release (\d+)\.(\d+), V([\d.]+)", banner)
    if match is None:
        raise ToolchainError(f"{path} --version does not answer like nvcc: {_last_line(banner)!r}")
    if (int(match[1]), int(match[2])) < OLDEST_CUDA:
        oldest = ".".join(map(str, OLDEST_CUDA))
        raise ToolchainError(f"{path} is CUDA {match[3]}; {oldest} or newer is needed")
    extra_flags = [settings.NVCC_PREPEND_FLAGS.get(), settings.NVCC_APPEND_FLAGS.get()]
    identity = " ".join([banner[match.start() :].strip(), *filter(None, extra_flags)])
    nvcc = Compiler(path, match[3], found_by, identity)
    return CudaToolkit(nvcc, root, _include_folder(root, path))


def _include_folder(root: Path, nvcc: Path) -> Path:
    parts = [root, *sorted((root / "targets").glob("*-linux"))]
    folders = [part / "include" for part in parts]
    for folder in folders:
        if (folder / "cuda_runtime.h").is_file():
            return folder
    raise ToolchainError(
        f"{nvcc} has no cuda_runtime.h beside it (looked in {', '.join(map(str, folders))}); "
        "install the CUDA runtime's development files (PyPI: nvidia-cuda-runtime)"
    )


@functools.lru_cache
def _probe_nvcc(path: Path, _stamp: tuple[int, int]) -> tuple[str, Path]:
    """Returns the ``--version`` text, and the toolkit's root as nvcc reports it (nvcc may be a
    script)."""
    banner = _run([path, "--version"])
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.cu"
        source.write_text("\n")
        plan = _run([path, "--dryrun", "-c", source, "-o", Path(scratch) / "probe.o"])
    top = re.search(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
    return banner, (Path(top[1].strip()) if top else path.resolve().parent.parent).resolve()


def _cxx_at(path: Path, found_by: str) -> Compiler:
    banner = _probe_cxx(path, _stamp(path))
    # The first word is the name in the call: the same compiler may be g++, c++ or a wrapper.
    identity = banner.partition(" ")[2] or banner
    version = re.search(r"\d+(\.\d+)+", re.sub(r"\([^)]*\)", "", banner))
    return Compiler(path, version[0] if version else "unknown", found_by, identity)


@functools.lru_cache
def _probe_cxx(path: Path, _stamp: tuple[int, int]) -> str:
    banner = _run([path, "--version"]).splitlines()[:1] or [""]
    return f"{banner[0]} {_run([path, '-dumpmachine']).strip()}"


@functools.lru_cache  # caches no failure: a compiler may have been killed, and is tried again
def _probe_cxx20(path: Path, _stamp: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.cpp"
        source.write_text(_CXX20_PROBE)
        _run([path, "-std=c++20", "-fsyntax-only", source])


def _run(argv: list[str | Path]) -> str:
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # this process's limit, not the compiler's failure
        raise ToolchainError(f"`{' '.join(command)}` did not run: {error}") from error
    if done.returncode < 0:
        raise ToolchainError(f"`{' '.join(command)}` failed: ended by signal {-done.returncode}")
    if done.returncode != 0:
        raise ToolchainError(
            f"`{' '.join(command)}` failed ({done.returncode}): {_last_line(done.stdout)}"
        )
    return done.stdout


def _stamp(path: Path) -> tuple[int, int]:
    """Returns a stamp that changes with the file behind the path, so that probes run again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def _nothing_found(what: str, tried: list[str], advice: str) -> str:
    return "\n  ".join([f"no usable {what} was found:", *(tried or ["nothing to try"]), advice])
