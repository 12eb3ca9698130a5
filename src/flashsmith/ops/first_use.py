"""The first use of a kernel: checks that can save a build, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from flashsmith import settings
from flashsmith.configs import DType, KernelConfig, KernelId, Variant
from flashsmith.jit import Progress, Target
from flashsmith.ops.checks import FP8, check_tensors
from flashsmith.ops.gate import refuse_unknown
from flashsmith.runtime import CallArgs
from flashsmith.runtime.device import target_of
from flashsmith.runtime.progress import announce_build
from flashsmith.selection.select import advice_under_autocast, why_chosen

logger = logging.getLogger("flashsmith")
Found = TypeVar("Found")


def check_before_building(
    cfg: KernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    o: torch.Tensor | None = None,
    do: torch.Tensor | None = None,
    suffix: str = "",
) -> None:
    """Refuses invalid tensors early, so that the caller need not wait for a kernel to be built.

    The library checks the same and more at every call, with the same messages.

    Args:
        suffix: The end of the names of k and v in messages.

    Raises:
        TypeError: A tensor has another dtype than q or ``cfg``, or is inside a function transform.
        ValueError: ``cfg`` has no room for the rows.
    """
    named = {"q": q, f"k{suffix}": k, f"v{suffix}": v, "o": o, "do": do}
    tensors = {name: t for name, t in named.items() if t is not None}
    refuse_unknown(**tensors)
    _check_dtypes(cfg, tensors)
    for name, t, what in (("q", q, "d_head"), (f"v{suffix}", v, "d_v")):
        size = t.shape[-1]
        if size > cfg.d_head:
            raise ValueError(
                f"{name} has {what} {size}, but the configuration is for at most {cfg.d_head}; "
                "pass a configuration of that d_head (64, 96, 128, 192 or 256)"
            )


def check_extras_before_building(
    extras: CallArgs, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor | None = None
) -> None:
    """Refuses invalid dtypes, devices and shapes of a call's other tensors, as the library does at
    every call, so that the caller need not wait for a kernel first.

    Args:
        q, k: Tensors of four dimensions, packed or not.
        lse: The log-sum-exp of a backward.

    Raises:
        TypeError, ValueError: An argument is invalid; the message names it.
    """
    n_heads, batch = q.shape[2], q.shape[0]
    offsets = extras.cu_seqlens_q if extras.cu_seqlens_q is not None else extras.cu_seqlens_k
    if offsets is not None:
        batch = offsets.numel() - 1
    sizes = {
        "batch": batch, "batch + 1": batch + 1, "n_heads": n_heads, "seq_len_q": q.shape[1],
        "seq_len_k": k.shape[1], "batch of q": q.shape[0], "seed and offset": 2,
    }  # fmt: skip
    shapes: dict[str, tuple[torch.dtype, list[tuple[str, ...]]]] = {
        "alibi_slopes": (torch.float32, [("n_heads",), ("batch", "n_heads")]),
        "sinks": (torch.float32, [("n_heads",)]),
        "cu_seqlens_q": (torch.int32, [("batch + 1",)]),
        "cu_seqlens_k": (torch.int32, [("batch + 1",)]),
        "seqused_q": (torch.int32, [("batch",)]),
        "seqused_k": (torch.int32, [("batch",)]),
        "rng_state": (torch.int64, [("seed and offset",)]),
        "bias": (q.dtype, [("batch of q", "n_heads", "seq_len_q", "seq_len_k")]),
        "lse": (torch.float32, [("batch of q", "n_heads", "seq_len_q")]),
    }
    for name, (dtype, dims) in shapes.items():
        t = lse if name == "lse" else getattr(extras, name)
        if t is None:
            continue
        check_tensors(**{name: t})
        if t.dtype != dtype:
            raise TypeError(f"{name} has dtype {_name(t.dtype)}; it must be {_name(dtype)}")
        if t.device != q.device:
            raise ValueError(f"{name} is on device {t.device}, but q is on {q.device}")
        expected = [tuple(sizes[dim] for dim in each) for each in dims]
        shape = tuple(t.shape)
        if name == "bias" and t.ndim == len(expected[0]):
            shape = tuple(whole if n == 1 else n for n, whole in zip(shape, *expected, strict=True))
        if shape not in expected:
            words = " or ".join(
                f"({', '.join(each)}) = ({', '.join(str(sizes[dim]) for dim in each)})"
                for each in dims
            )
            repeated = ": each size is that, or 1 but for the last" if name == "bias" else ""
            raise ValueError(
                f"{name} has shape ({', '.join(map(str, t.shape))}); it must be contiguous and of "
                f"shape {words}{repeated}"
            )
    if extras.bias is not None and extras.is_varlen:
        raise ValueError(
            "bias was passed with cu_seqlens or seqused; it is supported for sequences of equal "
            "lengths alone"
        )


def _check_dtypes(cfg: KernelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    q, expected = tensors["q"], cfg.dtype.to_torch_dtype()
    supported = [dtype.to_torch_dtype() for dtype in DType]
    of_fp8 = cfg.fp8_tensors
    for name, tensor in tensors.items():
        if name.removesuffix("_cache") in of_fp8:
            if tensor.dtype != FP8:
                raise TypeError(
                    f"{name} has dtype {_name(tensor.dtype)}, but the configuration is for one of "
                    f"{_name(FP8)}"
                )
            continue
        if tensor.dtype not in supported:
            raise TypeError(
                f"{name} has dtype {_name(tensor.dtype)}; supported are {_supported(name)}"
                f"{advice_under_autocast(tensor.dtype, tensor.device)}"
            )
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


def _supported(name: str) -> str:
    """Returns an argument's dtypes in words; a KV cache may also be FP8."""
    names = [_name(dtype.to_torch_dtype()) for dtype in DType]
    if name.endswith("_cache"):
        names.append(_name(FP8))
    return f"{', '.join(names[:-1])} and {names[-1]}"


def refuse_of_fp8(variant: Variant) -> None:
    """Raises for options that do not support FP8 q and k."""
    names = {"bias": variant.bias, "dropout_p": variant.dropout}
    names["score_mod, mask_mod or block_mask"] = variant.score != 0
    for name, given in names.items():
        if given:
            raise ValueError(f"{name} was passed with a q of {_name(FP8)}; only 16 bits take it")


def find_first(
    find: Callable[[KernelId, Target, Progress | None], Found],
    instance: KernelId,
    device: torch.device,
) -> Found:
    """Returns the kernel, which ``find`` finds or builds. The build is announced, and the log says
    why the kernel serves: a table, a heuristic, or the caller's choice."""
    target = target_of(device)
    with announce_build(instance) as progress:
        kernel = find(instance, target, progress)
    reason = why_chosen(instance.config, instance.variant, device)
    _log_kernel(instance, target, reason or "named by the caller")
    return kernel


def _log_kernel(instance: KernelId, target: Target, reason: str) -> None:
    """Logs which kernel serves calls from now on, and why; to stderr if FLASHSMITH_LOG is on."""
    if settings.LOG.get():
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.info("kernel %s on %s: %s", instance, target.name, reason)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
