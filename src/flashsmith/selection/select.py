"""Chooses the configuration of ``attention`` for tensors."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    AttentionKernelConfig,
    DType,
    ForwardKernelConfig,
    KernelConfig,
    Variant,
    Workload,
)
from flashsmith.configs.base import Capability
from flashsmith.configs.registry import reads_pages_on
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.fp8_space import fp8_heuristic
from flashsmith.errors import DeviceError
from flashsmith.gpus import count_sms
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose, forget_with_tables

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}
_PROBLEMS_REMEMBERED = 4096


def select_config(
    q: torch.Tensor,
    causal: bool = False,
    device: torch.device | None = None,
    *,
    k: torch.Tensor | None = None,
) -> AttentionKernelConfig:
    """Returns the configuration for q and k: from the GPU's tuned tables, else by heuristic.

    The order is: the user's table (`flashsmith tune`), then the table shipped with the package;
    then their entries for the other 16-bit dtype, whose tiles serve as well; then those of both
    dtypes for other fills of the GPU, most similar first; then the heuristic of the newest family
    that serves.
    The sm90 family serves compute capability 9.0 alone. CPU tensors take the heuristic of the
    plainest family that serves. For few queries over many keys, if the forward's tiles would leave
    SMs idle, decode serves (`configs/few_queries.py`). Nothing is measured here. `flashsmith tune
    --explain` shows the choice.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16.
        causal: Whether each query masks the keys ahead of its diagonal.
        device: The device on which the kernel will run; None: q's.
        k: (batch, seq_len_k, n_heads_kv, d_head); None: shaped as q.

    Raises:
        TypeError: The dtype is not supported.
        ValueError: q or k does not have 4 dimensions, they do not fit each other, or no family
            supports the d_head on the device.
    """
    return _select(device or q.device, q.dtype, q.shape, q.shape if k is None else k.shape, causal)


@functools.lru_cache(_PROBLEMS_REMEMBERED)
def _select(
    device: torch.device,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    causal: bool,
) -> AttentionKernelConfig:
    problem = Problem.of_shapes(dtype_of(dtype, device), q_shape, k_shape)
    return select_for(Workload(problem, CAUSAL if causal else FULL), device)


forget_with_tables(_select.cache_clear)


def dtype_of(dtype: torch.dtype, device: torch.device) -> DType:
    """Returns the DType of a torch dtype. Raises TypeError for a dtype without kernels."""
    if dtype not in _DTYPES:
        raise TypeError(
            f"q has dtype {dtype}; supported are torch.float16 and torch.bfloat16"
            f"{advice_under_autocast(dtype, device)}"
        )
    return _DTYPES[dtype]


def advice_under_autocast(dtype: torch.dtype, device: torch.device) -> str:
    """Returns the end of an error message about a float32 tensor under autocast, which does not
    cast the arguments of flashsmith's own functions."""
    if dtype != torch.float32 or not torch.is_autocast_enabled(device.type):
        return ""
    wanted = torch.get_autocast_dtype(device.type)
    return (
        f"; autocast is on, but it does not cast the arguments of this function: pass q, k and v "
        f"as {wanted}, or call flashsmith.scaled_dot_product_attention, which casts as torch's does"
    )


@functools.lru_cache(_PROBLEMS_REMEMBERED)
def select_for(
    workload: Workload, device: torch.device, is_cache: bool | None = None
) -> AttentionKernelConfig:
    """Returns the configuration for a workload on a device. Args, raises: see ``choose``."""
    chosen = choose(workload, *gpu_of(device), is_cache=is_cache)
    variant = chosen.kernel_variant(workload.variant)
    remember_reason(chosen.config, variant, device, chosen.reason)
    return chosen.config


forget_with_tables(select_for.cache_clear)


def select_fp8(
    q: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None, variant: Variant
) -> ForwardKernelConfig:
    """Returns the configuration for q and k of float8_e4m3fn, by heuristic.

    The configuration's dtype is O's: v's dtype, or with FP8 v ``out``'s, by default bfloat16.

    Raises:
        DeviceError: The GPU's compute capability is not 9.0.
        TypeError: The dtype of v or out is not supported.
        ValueError: No kernel has room for the rows.
    """
    gpu, capability = gpu_of(q.device)
    if capability is not None and not Sm90ForwardKernelConfig.runs_on(capability):
        version = ".".join(map(str, capability))
        raise DeviceError(
            f"q has dtype {q.dtype}, for which there are kernels for compute capability 9.0 alone; "
            f"{gpu} has {version}"
        )
    fp8_values = v.dtype == q.dtype
    name, of = (
        ("out", torch.bfloat16 if out is None else out.dtype) if fp8_values else ("v", v.dtype)
    )
    if of not in _DTYPES:
        beside = "" if name == "out" else f", or {q.dtype} as q has"
        raise TypeError(
            f"{name} has dtype {of}; supported are torch.float16 and torch.bfloat16{beside}"
        )
    problem = Problem.of_shapes(_DTYPES[of], q.shape, q.shape, v.shape[-1]).representative
    num_sms = None if gpu is None else count_sms(gpu)
    config = fp8_heuristic(problem, fp8_values, variant, num_sms)
    reason = "the heuristic: tiles of the sm90 family for each d_head and kind of v"
    remember_reason(config, variant, q.device, reason)
    return config


@functools.cache
def reads_pages(device: torch.device) -> bool:
    """Returns whether the forward's kernels read paged keys on a device. Raises DeviceError: The
    GPU is too old for every family."""
    return reads_pages_on(*gpu_of(device))


def gpu_of(device: torch.device) -> tuple[str | None, Capability | None]:
    """Returns the name and compute capability of a device; None and None for a CPU."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


_reasons: dict[tuple[KernelConfig, Variant, torch.device], str] = {}


def remember_reason(
    config: KernelConfig, variant: Variant, device: torch.device, reason: str
) -> None:
    """Remembers the reason of a choice for ``why_chosen``."""
    _reasons[config, replace(variant, padded=False), device] = reason


def why_chosen(config: KernelConfig, variant: Variant, device: torch.device) -> str | None:
    """Returns why ``select_for`` chose a configuration the last time; None if it did not."""
    return _reasons.get((config, replace(variant, padded=False), device))
