"""Says which kernels a wheel brings: those that first calls take, so that these compile nothing."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.configs import (
    KernelId,
    get_kernel_progression_configs,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.operation import capability_of
from flashsmith.selection.served import (
    gpus_with_tables,
    served_decodes,
    served_fp8,
    served_gradients,
    served_instances,
)

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
SERVED, NONE = "served", "none"
_USUAL_D_HEADS = (64, 128)
_CACHES_OF_16_BITS = ((False, False),)


def kernels_of_gpus(arch: str, asked: Sequence[str] = (SERVED,)) -> list[KernelId]:
    """Returns all kernels that ``attention``, its gradients, ``decode`` and FP8 calls choose on
    GPUs of an architecture, with those of its tuned tables.

    asked: SERVED; or NONE or the names of kernels, in place of these.
    """
    if asked != (SERVED,):
        return _named(asked)
    capability = capability_of(arch)
    found = {*served_fp8(capability)}
    for gpu in (arch, *gpus_with_tables(arch)):
        for served in (served_instances, served_gradients, served_decodes):
            found |= {*served(gpu, capability=capability)}
    return sorted(found)


def kernels_of_cpus(asked: Sequence[str] = (SERVED,)) -> list[KernelId]:
    """Returns the emulated kernels that calls of the usual head dimensions choose on a CPU, with
    their gradients and decode, and the progression of `flashsmith run`.

    asked: See ``kernels_of_gpus``.
    """
    if asked != (SERVED,):
        return _named(asked)
    found = {KernelId(config) for config in get_kernel_progression_configs()}
    found |= {*served_instances(None, d_heads=_USUAL_D_HEADS)}
    found |= {*served_gradients(None, d_heads=_USUAL_D_HEADS)}
    found |= {*served_decodes(None, d_heads=_USUAL_D_HEADS, kinds_of_cache=_CACHES_OF_16_BITS)}
    return sorted(found)


def _named(asked: Sequence[str]) -> list[KernelId]:
    return sorted(parse_kernel_name_into_instance(name) for name in asked if name != NONE)
