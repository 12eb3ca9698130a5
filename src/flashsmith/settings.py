"""Every environment variable that flashsmith reads, in one place.

A setting is read at each `settings.JOBS.get()`, never at import. `settings.ALL` lists them for the
documentation and for `flashsmith doctor`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from flashsmith.errors import CacheError, FlashsmithError, TuningError

T = TypeVar("T")

_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")


class FamilySets(NamedTuple):
    """The keys of a kernel family's sets: the progression (one idea a step), the tuning space, and
    both."""

    progression: str
    tuning: str
    both: str


SM80_SETS = FamilySets("prog", "tune", "all")
SM90_SETS = FamilySets("sm90-prog", "sm90-tune", "sm90")
# The heuristics' choices of every family; "fp8" is the set of FP8 forward kernels.
BACKWARD_SET, DECODE_SET, FP8_SET = "backward", "decode", "fp8"
DEFAULT_SET = SM80_SETS.both
ALL_BLOCK_SIZES = SM80_SETS.progression + "all"  # the progression at each block size
# The keys that get_kernel_configs() takes; every other list of them is derived from this one.
KERNEL_SETS = (
    *(SM80_SETS.progression, ALL_BLOCK_SIZES, SM80_SETS.both, SM80_SETS.tuning, "B_r,B_c"),
    *SM90_SETS,
    BACKWARD_SET,
    DECODE_SET,
    FP8_SET,
)


def _parse_kernels(text: str) -> str:
    """Checks the form of a key alone: get_kernel_configs() checks whether a pair of block sizes is
    in the tuning space."""
    key = text.strip().lower()
    is_set = key.startswith(SM80_SETS.progression) or key in KERNEL_SETS
    if is_set or re.fullmatch(r"\d+\s*,\s*\d+", key):
        return text
    raise ValueError(f"one of {', '.join(KERNEL_SETS)} (like 64,32)")


def _parse_switch(text: str) -> bool:
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise ValueError(f"one of {', '.join(_TRUE + _FALSE)}")


def _parse_jobs(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError("a whole number of at least 1")


def _parse_architectures(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if all(re.fullmatch(r"sm_\d+[af]?", name) for name in names):
        return names
    raise ValueError("architectures separated by commas, like sm_80,sm_90a")


def _parse_cuda_compiler(text: str) -> str:
    if text.lower() in ("nvcc", "nvrtc"):
        return text.lower()
    raise ValueError("nvcc or nvrtc")


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path; whose home directory ~ stands for is not known") from None


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: name, type and default in words, meaning, and parser."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], T]

    def get(self) -> T | None:
        """Returns the value in the environment, or None if the variable is unset or empty.

        Raises:
            ValueError: the setting cannot have this value.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as expected:
            raise ValueError(
                f"environment variable {self.name}={text!r} is not valid: expected {expected}; "
                f"unset it for the default ({self.default})"
            ) from None


KERNELS = Setting(
    "KERNELS",
    " | ".join(KERNEL_SETS),
    DEFAULT_SET,
    "the set of configurations that get_kernel_configs() returns and every command starts from",
    _parse_kernels,
)
CACHE_DIR = Setting(
    "FLASHSMITH_CACHE_DIR",
    "path",
    "the user's cache directory",
    "where compiled kernels are kept",
    _parse_path,
)
SHARED_CACHE = Setting(
    "FLASHSMITH_SHARED_CACHE",
    "path",
    "none",
    "a folder that `flashsmith build --out` filled: kernels that the user's cache lacks are read "
    "from it",
    _parse_path,
)
NVCC = Setting(
    "FLASHSMITH_NVCC",
    "path",
    "found in CUDA_HOME, PATH or the PyPI package",
    "the CUDA compiler of the cuda target",
    _parse_path,
)
NVRTC = Setting(
    "FLASHSMITH_NVRTC",
    "path",
    "found by cuda-pathfinder",
    "libnvrtc.so, the CUDA compiler of the cuda target where there is no nvcc",
    _parse_path,
)
CUDA_COMPILER = Setting(
    "FLASHSMITH_CUDA_COMPILER",
    "nvcc | nvrtc",
    "nvcc if there is one",
    "the compiler of the cuda target",
    _parse_cuda_compiler,
)
NCU = Setting(
    "FLASHSMITH_NCU",
    "path",
    "found in PATH, CUDA_HOME, /usr/local/cuda or /opt/nvidia/nsight-compute",
    "the Nsight Compute command line that `flashsmith profile` runs",
    _parse_path,
)
CUDA_HOME = Setting(
    "CUDA_HOME", "path", "none", "a CUDA toolkit; its bin/nvcc is used before PATH's", _parse_path
)
NVCC_PREPEND_FLAGS = Setting(
    "NVCC_PREPEND_FLAGS", "flags", "none", "nvcc itself puts these before its arguments", str
)
NVCC_APPEND_FLAGS = Setting(
    "NVCC_APPEND_FLAGS", "flags", "none", "nvcc itself puts these after its arguments", str
)
CXX = Setting(
    "FLASHSMITH_CXX",
    "path or name",
    "c++, g++ or clang++ on PATH",
    "the host C++ compiler: builds the emulator target and the host side of the cuda target",
    str,
)
TMPDIR = Setting(
    "TMPDIR", "path", "/tmp", "compilers keep there what they make in between", _parse_path
)
ARCH = Setting(
    "FLASHSMITH_ARCH",
    "architectures, separated by commas",
    "those of the GPUs found, else sm_80,sm_90a",
    "what the cuda target compiles for",
    _parse_architectures,
)
JOBS = Setting(
    "FLASHSMITH_JOBS",
    "whole number, 1 or more",
    "the number of processor cores",
    "how many compilers run at the same time",
    _parse_jobs,
)
BUILD = Setting(
    "FLASHSMITH_BUILD",
    "on | off",
    "on",
    "whether a configuration that no loaded library holds is built on demand",
    _parse_switch,
)
BACKGROUND_BUILD = Setting(
    "FLASHSMITH_BACKGROUND_BUILD",
    "on | off",
    "on for CUDA tensors, off for CPU tensors",
    "whether attention() serves with a kernel that exists while the best one is being built",
    _parse_switch,
)
TUNED = Setting(
    "FLASHSMITH_TUNED",
    "path",
    "the user's data directory",
    "where `flashsmith tune` keeps its tables, one file for each GPU name",
    _parse_path,
)
FA3_LIBRARY = Setting(
    "FLASHSMITH_FA3_LIBRARY",
    "path",
    "that of the package flash_attn_3, xformers or vllm, if one is installed",
    "the library with FlashAttention-3's operators, a peer in benchmarks",
    _parse_path,
)
FA3_CUDART = Setting(
    "FLASHSMITH_FA3_CUDART",
    "path",
    "that of torch",
    "the CUDA runtime that FlashAttention-3's library links, where torch has another",
    _parse_path,
)
CHECK_LENGTHS = Setting(
    "FLASHSMITH_CHECK_LENGTHS",
    "on | off",
    "off",
    "whether cu_seqlens and seqused on a GPU are read and checked before each launch, which waits "
    "for the GPU; kernels stay within the tensors anyway, and on a CPU they are always checked; "
    "read once",
    _parse_switch,
)
LOG = Setting(
    "FLASHSMITH_LOG",
    "on | off",
    "off",
    "whether the logger flashsmith says on stderr which kernel serves a call, and why, once each",
    _parse_switch,
)
DEBUG = Setting(
    "FLASHSMITH_DEBUG",
    "on | off",
    "off",
    "whether the command line shows the traceback of an error",
    _parse_switch,
)

ALL: tuple[Setting[object], ...] = (  # type: ignore[assignment]
    KERNELS,
    CACHE_DIR,
    SHARED_CACHE,
    NVCC,
    NVRTC,
    CUDA_COMPILER,
    NCU,
    CUDA_HOME,
    NVCC_PREPEND_FLAGS,
    NVCC_APPEND_FLAGS,
    CXX,
    TMPDIR,
    ARCH,
    JOBS,
    BUILD,
    BACKGROUND_BUILD,
    TUNED,
    FA3_LIBRARY,
    FA3_CUDART,
    CHECK_LENGTHS,
    LOG,
    DEBUG,
)


def cache_folder() -> Path:
    """Returns the folder of compiled kernels.

    Raises:
        CacheError: No setting names a folder, and the user has no known home directory.
    """
    if chosen := CACHE_DIR.get():
        return chosen.absolute()
    import platformdirs  # imported here, because a bare import of flashsmith must not need it

    return _of_user(platformdirs.user_cache_path, CACHE_DIR, CacheError)


def tables_folder() -> Path:
    """Returns the folder of the user's tuned tables.

    Raises:
        TuningError: No setting names a folder, and the user has no known home directory.
    """
    if chosen := TUNED.get():
        return chosen
    import platformdirs

    return _of_user(platformdirs.user_data_path, TUNED, TuningError) / "tuned"


def _of_user(
    find: Callable[[str], Path], setting: Setting[Path], kind: type[FlashsmithError]
) -> Path:
    try:
        found = find("flashsmith")
        if found.is_absolute():
            return found
    except RuntimeError:
        pass
    raise kind(
        f"{setting.default} is not known: this user ({os.getuid()}) has no home directory; set "
        f"HOME, or {setting.name} to a directory that you can write"
    )
