"""The host library of this process, loaded once."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import tvm_ffi

from flashsmith import settings
from flashsmith.errors import CacheError, DeviceError, EmulatorFault, ToolchainError
from flashsmith.jit import HostLibrary, Progress, build_host, find_host, why_no_host
from flashsmith.runtime.launch_cache import launch_cache

logger = logging.getLogger("flashsmith")

# Errors that the library throws beside Python's own.
tvm_ffi.register_error("EmulatorFault", EmulatorFault)
tvm_ffi.register_error("DeviceError", DeviceError)

_lock = threading.RLock()
_module: Any = None


def _free_in_child() -> None:
    """Replaces the lock in a child process: the parent's thread that may hold it is not there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_free_in_child)


def load_host(progress: Progress | None = None) -> Any:
    """Returns the tvm_ffi module of the host library: loaded, else from the cache, else built now.

    Raises:
        CacheError: The library cannot be loaded here.
        ToolchainError, BuildError, CacheError: Building failed, or FLASHSMITH_BUILD forbids it.
    """
    global _module
    if _module is None:
        with _lock:
            if _module is None:
                module = _load(progress)
                launch_cache.connect(module)
                _module = module
    return _module


def _load(progress: Progress | None) -> Any:
    while library := find_host():
        try:
            return _open(library)
        except CacheError as error:
            library.refuse()
            logger.warning("%s", error)
    if settings.BUILD.get() is False:
        raise ToolchainError(
            why_no_host()
            or "there is no host library of this version that can be loaded here, and "
            "FLASHSMITH_BUILD=0 forbids to build it; run `flashsmith build` where there is a C++ "
            "compiler, or install a wheel, which has it"
        )
    library = build_host(progress=progress)
    try:
        return _open(library)
    except CacheError as error:
        logger.warning("%s; it is built once more", error)
        library.set_aside()
        return _open(build_host(progress=progress))


def _open(library: HostLibrary) -> Any:
    """Raises CacheError: The loader refuses the library, or it is not one of flashsmith."""
    try:
        module = tvm_ffi.load_module(str(library.path))
        module.load_kernel  # noqa: B018  raises if it is another library
        return module
    except Exception as error:  # the type depends on the loader
        raise CacheError(
            f"the host library {library.path} cannot be loaded here: {error}; FLASHSMITH_CXX names "
            "another compiler to build it with"
        ) from error
