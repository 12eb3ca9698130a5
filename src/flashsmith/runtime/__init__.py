"""Shared library -> callable kernels: load, look up, launch. Knows no framework."""

from flashsmith.runtime.emulation import Emulation, Site, emulation
from flashsmith.runtime.extras import Extras
from flashsmith.runtime.kernels import (
    Kernel,
    find_kernel,
    find_kernels,
    load_kernels,
    load_library,
    loaded_instances,
)

__all__ = [
    "Emulation",
    "Extras",
    "Kernel",
    "Site",
    "emulation",
    "find_kernel",
    "find_kernels",
    "load_kernels",
    "load_library",
    "loaded_instances",
]
