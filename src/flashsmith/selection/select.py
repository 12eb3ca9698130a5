"""Which configuration ``attention`` takes for tensors, in torch's terms."""

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
from flashsmith.selection.choice import FewQueriesChoice
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
    """Returns the configuration for q and k: from the tuned tables of its GPU, else by heuristic.

    In this order: the user's table (`flashsmith tune`), the table shipped with the package; then
    their entries for grids that fill the GPU otherwise, the most alike first; then all of this for
    the other 16-bit dtype, whose tiles serve as well; then the heuristic of the newest family that
    serves. Kernels of the sm90 family come into question on compute capability 9.0 alone. CPU
    tensors: the heuristic of the plainest family that serves. Where there are few queries for many
    keys, and the forward's tiles would leave SMs idle: decode's (`configs/few_queries.py`).
    Nothing is ever measured here.
    `flashsmith tune --explain` shows the choice.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16.
        causal: Whether the kernel masks what lies ahead.
        device: Where the kernel will run; None: where q is.
        k: (batch, seq_len_k, n_heads_kv, d_head); None: as q.

    Raises:
        TypeError: The dtype is another one.
        ValueError: q or k has not 4 dimensions, they do not fit each other, or no family takes the
            d_head there.
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
    """Returns the DType that configurations have for q's. Raises TypeError for one they lack."""
    if dtype not in _DTYPES:
        raise TypeError(
            f"q has dtype {dtype}; supported are torch.float16 and torch.bfloat16"
            f"{advice_under_autocast(dtype, device)}"
        )
    return _DTYPES[dtype]


def advice_under_autocast(dtype: torch.dtype, device: torch.device) -> str:
    """Returns the end of a message about a float32 tensor that came while autocast is on: autocast
    does not cast the arguments of flashsmith's own functions."""
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
    """Returns the configuration for a workload on a device. Args, raises: as ``choose``."""
    chosen = choose(workload, *gpu_of(device), is_cache=is_cache)
    variant = workload.variant
    if isinstance(chosen, FewQueriesChoice):
        variant = replace(variant, varlen=False)  # as its kernels have it
    remember_reason(chosen.config, variant, device, chosen.reason)
    return chosen.config


forget_with_tables(select_for.cache_clear)


def select_fp8(
    q: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None, variant: Variant
) -> ForwardKernelConfig:
    """Returns the configuration for q and k of float8_e4m3fn, by heuristic.

    Of O's dtype, which is v's; with v of 8 bits ``out``'s, or bfloat16.

    Raises:
        DeviceError: The GPU is none of compute capability 9.0.
        TypeError: v or out has another dtype.
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
    """Returns whether kernels of the forward take keys in pages on a device. Raises DeviceError:
    The GPU is too old for every family."""
    return reads_pages_on(*gpu_of(device))


def gpu_of(device: torch.device) -> tuple[str | None, Capability | None]:
    """Returns the name and compute capability of a device; None of a CPU."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


_reasons: dict[tuple[KernelConfig, Variant, torch.device], str] = {}


def remember_reason(
    config: KernelConfig, variant: Variant, device: torch.device, reason: str
) -> None:
    """For ``why_chosen``."""
    _reasons[config, replace(variant, padded=False), device] = reason


def why_chosen(config: KernelConfig, variant: Variant, device: torch.device) -> str | None:
    """Why ``select_for`` took a configuration, the last time; None if it did not."""
    return _reasons.get((config, replace(variant, padded=False), device))
