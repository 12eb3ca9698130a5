"""``forward`` (this kernel) and ``attention`` (the best kernel), on torch tensors."""

from __future__ import annotations

import functools
import numbers

import torch

from flashsmith.configs import FlashForwardKernelConfig, ForwardKernelInstance, ForwardVariant
from flashsmith.functional.device import target_of
from flashsmith.functional.progress import announce_build
from flashsmith.functional.select import select_config
from flashsmith.runtime import Kernel, find_kernel

# Normal float32 numbers, also after the kernel has multiplied them by log2(e).
_MIN_SCALE, _MAX_SCALE = 1e-37, 1e37


def forward(
    cfg: FlashForwardKernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    benchmark: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, float]:
    """o = softmax(q k^T * softmax_scale) v with the kernel of ``cfg``.

    CUDA tensors run on their GPU's current stream, CPU tensors on the emulator. A kernel that no
    library holds is built first.

    Args:
        cfg: The kernel's configuration; of the tensors' dtype and d_head.
        q, k, v: (batch, seq_len, n_heads, d_head), float16 or bfloat16, equal in shape, dtype and
            device. The last dimension is contiguous, the other strides are multiples of 8
            elements, seq_len is a multiple of B_r and B_c.
        o: Where to write the result, of the same shape and dtype, in memory of its own; None: a new
            contiguous tensor.
        causal: Position i attends to positions 0 to i.
        softmax_scale: None: 1 / sqrt(d_head).
        benchmark: Also return the milliseconds between two events around the launch.

    Returns:
        o, or with ``benchmark`` (o, milliseconds).

    Raises:
        TypeError: An argument of a wrong type, a tensor of a wrong dtype.
        ValueError: A shape, stride, alignment, device or length that the kernel does not take.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be had.
        DeviceError: The GPU is too old (below compute capability 8.0), or refused the launch.
    """
    check_config(cfg=cfg)
    check_tensors(q=q, k=k, v=v)
    if o is None:
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    else:
        check_tensors(o=o)
    scale = cfg.d_head**-0.5 if softmax_scale is None else check_scale(softmax_scale)
    check_flags(causal=causal, benchmark=benchmark)
    kernel = _kernel_for(cfg, causal, q.device)
    milliseconds = kernel(q, k, v, o, scale, benchmark)
    return (o, milliseconds) if benchmark else o


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    config: FlashForwardKernelConfig | None = None,
) -> torch.Tensor:
    """softmax(q k^T * softmax_scale) v.

    Args, errors: as ``flashsmith.forward``.

    Args:
        config: The kernel to use; None: see ``select_config``.

    Returns:
        (batch, seq_len, n_heads, d_head), of q's dtype, contiguous.
    """
    check_flags(causal=causal)
    if config is None:
        check_tensors(q=q)
        config = select_config(q, causal)
    check_config(config=config)
    o = forward(config, q, k, v, causal=causal, softmax_scale=softmax_scale)
    assert isinstance(o, torch.Tensor)
    return o


@functools.cache  # a call costs microseconds; finding a kernel again would cost tens
def _kernel_for(cfg: FlashForwardKernelConfig, causal: bool, device: torch.device) -> Kernel:
    instance = ForwardKernelInstance(cfg, ForwardVariant(causal))
    with announce_build(instance) as progress:
        return find_kernel(instance, target_of(device), progress)


def check_config(**configs: FlashForwardKernelConfig) -> None:
    for name, config in configs.items():
        if not isinstance(config, FlashForwardKernelConfig):
            raise TypeError(
                f"{name} is a {type(config).__name__}; expected a FlashForwardKernelConfig "
                "(flashsmith.configs.parse_kernel_name_into_config reads its short form)"
            )


def check_tensors(**tensors: torch.Tensor) -> None:
    """What can only be asked of torch; the rest is checked beside the launch."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} has layout {tensor.layout}; expected torch.strided (dense)")
        if tensor.device.type not in ("cuda", "cpu"):  # others cannot even be handed over
            raise ValueError(
                f"{name} is on device {tensor.device}; supported are cuda (NVIDIA) and cpu "
                "(emulator)"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, and there is no backward kernel yet; "
                "call under torch.no_grad(), or detach it"
            )


def check_scale(softmax_scale: float) -> float:
    """softmax_scale, if it is a number with which the kernel's float32 arithmetic can work."""
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, numbers.Real):
        raise TypeError(
            f"softmax_scale is a {type(softmax_scale).__name__}; expected a float, or None for "
            "1 / sqrt(d_head)"
        )
    if not _MIN_SCALE <= softmax_scale <= _MAX_SCALE:  # False for NaN
        raise ValueError(
            f"softmax_scale is {softmax_scale}; expected a number from {_MIN_SCALE} to {_MAX_SCALE}"
        )
    return float(softmax_scale)


def check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}; expected True or False")
