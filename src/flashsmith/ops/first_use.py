"""What happens when a kernel is used for the first time: checks that spare a build, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from flashsmith import settings
from flashsmith.configs import DType, KernelConfig, KernelId, Variant
from flashsmith.jit import Progress, Target
from flashsmith.ops.checks import FP8
from flashsmith.runtime.device import target_of
from flashsmith.runtime.progress import announce_build

logger = logging.getLogger("flashsmith")
Found = TypeVar("Found")


def check_before_building(cfg: KernelConfig, **tensors: torch.Tensor) -> None:
    """Refuses what a look at the tensors shows, which else would wait for a kernel to be built.

    The library checks the same and more at every call, in the same words.

    Raises:
        TypeError: A tensor of another dtype than q or ``cfg``, or one inside a function transform.
        ValueError: Rows that ``cfg`` has no room for.
    """
    refuse_transforms(**tensors)
    _check_dtypes(cfg, tensors)
    for name, what in (("q", "d_head"), ("v", "d_v")):
        size = tensors[name].shape[-1]
        if size > cfg.d_head:
            raise ValueError(
                f"{name} has {what} {size}, but the configuration is for at most {cfg.d_head}; "
                "pass a configuration of that d_head (64, 96, 128, 192 or 256)"
            )


def _check_dtypes(cfg: KernelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    q, expected = tensors["q"], cfg.dtype.to_torch_dtype()
    supported = [dtype.to_torch_dtype() for dtype in DType]
    of_fp8 = cfg.fp8_tensors
    for name, tensor in tensors.items():
        if name in of_fp8:
            if tensor.dtype != FP8:
                raise TypeError(
                    f"{name} has dtype {_name(tensor.dtype)}, but the configuration is for one of "
                    f"{_name(FP8)}"
                )
            continue
        if tensor.dtype not in supported:
            names = " and ".join(map(_name, supported))
            raise TypeError(f"{name} has dtype {_name(tensor.dtype)}; supported are {names}")
        if tensor.dtype == expected:
            continue
        if q.dtype == expected:
            raise TypeError(
                f"{name} has dtype {_name(tensor.dtype)}, but q has {_name(q.dtype)}; q, k, v and "
                "o need the same dtype"
            )
        raise TypeError(
            f"{name} has dtype {_name(tensor.dtype)}, but the configuration is for "
            f"{_name(expected)}; pass a configuration of the tensors' dtype"
        )


def refuse_of_fp8(variant: Variant) -> None:
    """Raises for what is not computed of q and k of 8 bits."""
    names = {"bias": variant.bias, "dropout_p": variant.dropout}
    names["score_mod, mask_mod or block_mask"] = variant.score != 0
    for name, given in names.items():
        if given:
            raise ValueError(f"{name} was passed with a q of {_name(FP8)}; only 16 bits take it")


def refuse_transforms(**tensors: torch.Tensor) -> None:
    """Raises TypeError for a tensor of torch.vmap or the like, which has no memory of its own."""
    for name, tensor in tensors.items():
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise TypeError(
                f"{name} is inside torch.vmap or another function transform, which kernels do not "
                "support; attention takes a batch dimension itself: call it on the whole batch"
            )


def find_first(
    find: Callable[[KernelId, Target, Progress | None], Found],
    instance: KernelId,
    device: torch.device,
    reason: str,
) -> Found:
    """The kernel, found by ``find`` or built; the build is announced, and the reason is logged."""
    target = target_of(device)
    with announce_build(instance) as progress:
        kernel = find(instance, target, progress)
    _log_kernel(instance, target, reason)
    return kernel


def _log_kernel(instance: KernelId, target: Target, reason: str) -> None:
    """Says which kernel serves calls from now on, and why; on stderr if FLASHSMITH_LOG is on."""
    if settings.LOG.get():
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.info("kernel %s on %s: %s", instance, target.name, reason)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
