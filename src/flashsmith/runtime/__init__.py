"""Modules -> callable kernels: load, look up, launch. The layer knows no framework."""

from flashsmith.configs.features import former_names
from flashsmith.runtime.call_args import CallArgs
from flashsmith.runtime.decoding import AppendArguments, DecodeKernel, DecodeTensors, Splitting
from flashsmith.runtime.emulation import Emulation, Site, emulation
from flashsmith.runtime.host import load_host
from flashsmith.runtime.kernels import (
    find_backward,
    find_decode,
    find_kernel,
    find_kernels,
    load_kernels,
    loaded_instances,
)
from flashsmith.runtime.loaded import BackwardKernel, GradientTensors, Kernel

__all__ = [
    "AppendArguments",
    "BackwardKernel",
    "CallArgs",
    "DecodeKernel",
    "DecodeTensors",
    "Emulation",
    "GradientTensors",
    "Kernel",
    "Site",
    "Splitting",
    "emulation",
    "find_backward",
    "find_decode",
    "find_kernel",
    "find_kernels",
    "load_host",
    "load_kernels",
    "loaded_instances",
]

__getattr__ = former_names(globals(), Extras="CallArgs")
