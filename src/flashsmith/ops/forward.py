"""``forward`` (this kernel) and ``attention`` (the best kernel), on torch tensors."""

from __future__ import annotations

import numbers
from dataclasses import dataclass

import torch

from flashsmith.configs import (
    CONFIG_CLASSES,
    ForwardKernelConfig,
    KernelId,
    Variant,
)
from flashsmith.ops.first_use import (
    check_before_building,
    log_kernel,
    refuse_transforms,
)
from flashsmith.runtime import Kernel, find_kernel
from flashsmith.runtime.device import target_of
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.progress import announce_build
from flashsmith.runtime.workspace import workspace_for
from flashsmith.selection.choose import forget_with_tables, select_config, why_chosen

# Normal float32 numbers, also after the kernel has multiplied them by log2(e).
_MIN_SCALE, _MAX_SCALE = 1e-37, 1e37


def forward(
    cfg: ForwardKernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    benchmark: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor | float, ...]:
    """o = softmax(q k^T * softmax_scale) v with the kernel of ``cfg``.

    CUDA tensors run on their GPU's current stream, CPU tensors on the emulator. A kernel that no
    library holds is built first.

    Args:
        cfg: The kernel's configuration; of the tensors' dtype and d_head.
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16. The last dimension is
            contiguous, the other strides are multiples of 8 elements.
        k, v: (batch, seq_len_k, n_heads_kv, d_head), of q's dtype and device, laid out like it.
            n_heads is a multiple of n_heads_kv: neighbouring heads of q share one of k and v.
        o: Where to write the result, of q's shape and dtype, in memory of its own; None: a new
            contiguous tensor.
        causal: Query i attends to keys 0 to i + seq_len_k - seq_len_q. A query that sees no key
            gets zeros, and -inf as log-sum-exp.
        softmax_scale: None: 1 / sqrt(d_head).
        benchmark: Also return the milliseconds between two events around the launch.
        return_lse: Also return the natural logarithm of the sum of each row's exponentials,
            (batch, n_heads, seq_len_q), float32.

    Returns:
        o; or the tuple of o, with ``return_lse`` lse, and with ``benchmark`` milliseconds.

    Raises:
        TypeError: An argument of a wrong type, a tensor of a wrong dtype.
        ValueError: A shape, stride, alignment, device or length that the kernel does not take.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be had.
        DeviceError: The GPU is not one for the kernel (compute capability 8.0 or newer for the
            sm80 family, 9.0 for sm90), or refused the launch.
    """
    if not type(causal) is type(benchmark) is type(return_lse) is bool:
        check_flags(causal=causal, benchmark=benchmark, return_lse=return_lse)
    check_config("cfg", cfg)
    o, lse, milliseconds = _launch(
        cfg, q, k, v, o, causal=causal, scale=softmax_scale, with_lse=return_lse, timed=benchmark
    )
    if lse is None and not benchmark:
        return o
    return (o, *([] if lse is None else [lse]), *([milliseconds] if benchmark else []))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    config: ForwardKernelConfig | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * softmax_scale) v.

    Args, errors: as ``flashsmith.forward``. Mind the layout: (batch, seq_len, n_heads, d_head).
    torch's scaled_dot_product_attention has (batch, n_heads, seq_len, d_head), which is not told
    apart by its sizes: pass ``q.transpose(1, 2)``, a view that costs nothing.

    Lengths may be any from 1 on; d_head 64, 96, 128, 192 or 256. CPU tensors run on the emulator.

    ``FLASHSMITH_LOG=1`` says on stderr which kernel serves, and why, when it is first used.

    Args:
        config: The kernel to use; None: see ``select_config``.

    Returns:
        (batch, seq_len_q, n_heads, d_head), of q's dtype, contiguous; with ``return_lse`` also the
        log-sum-exp.
    """
    if not type(causal) is type(return_lse) is bool:
        check_flags(causal=causal, return_lse=return_lse)
    if config is not None:
        check_config("config", config)
    o, lse, _ = _launch(
        config, q, k, v, None, causal=causal, scale=softmax_scale, with_lse=return_lse, timed=False
    )
    return o if lse is None else (o, lse)


@dataclass(frozen=True)
class _Call:
    """What all calls on tensors of some shapes have in common."""

    config: ForwardKernelConfig  # kept alive: its id is in the key
    kernel: Kernel
    plan: Plan
    scale: float  # where the caller names none


# The key says the configuration (by its id; None: ``select_config`` chooses), whether the mask is
# causal, whether the log-sum-exp is wanted, the shapes of q and k, the dtype and the device.
_Key = tuple[int | None, bool, bool, torch.Size, torch.Size, torch.dtype, torch.device]
_calls: dict[_Key, _Call] = {}
_CALLS_REMEMBERED = 4096
forget_with_tables(_calls.clear)


def _launch(
    config: ForwardKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    *,
    causal: bool,
    scale: float | None,
    with_lse: bool,
    timed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """o, lse and milliseconds of one call, whose flags and configuration were checked.

    The hot path. It asks the tensors what the library cannot see, and what tells calls apart; the
    library sees the rest. Only if something fails, thorough checks say what, in the house's words.
    """
    try:
        known = None if config is None else id(config)
        key = (known, causal, with_lse, q.shape, k.shape, q.dtype, q.device)
        if (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (o is not None and o.requires_grad)
        ):
            check_tensors(**_named(q, k, v, o))
        call = _calls.get(key) or _first_call(key, config, **_named(q, k, v, o))
    except AttributeError:
        check_tensors(**_named(q, k, v, o))
        raise
    scale = call.scale if scale is None else check_scale(scale)
    if o is None:
        o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = _empty_lse(q) if with_lse else None
    workspace = workspace_for(call.plan, q.device) if call.plan.workspace_bytes else None
    kernel = call.kernel
    try:
        # Without Kernel's own call, which would cost half a microsecond.
        milliseconds = kernel.entry(kernel.handle, q, k, v, o, lse, workspace, scale, timed)
    except Exception:
        check_tensors(**_named(q, k, v, o))
        refuse_transforms(q=q, k=k, v=v)  # torch's error of a tensor without memory says less
        raise
    return o, lse, milliseconds


def _first_call(key: _Key, config: ForwardKernelConfig | None, **tensors: torch.Tensor) -> _Call:
    """What later calls of this key have in common, found out once."""
    check_tensors(**tensors)
    _, causal, *_ = key
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    if config is None:
        config = select_config(q, causal, k=k)
    kernel = _kernels.get((config, causal, q.device))
    if kernel is None:
        check_before_building(config, **tensors)
        kernel = kernel_for(config, causal, q.device)
    plan = kernel.plan(q, k, v, tensors.get("o", q))
    if len(_calls) >= _CALLS_REMEMBERED:
        _calls.clear()
    return _calls.setdefault(key, _Call(config, kernel, plan, config.d_head**-0.5))


def _named(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    return {"q": q, "k": k, "v": v} | ({} if o is None else {"o": o})


def _empty_lse(q: torch.Tensor) -> torch.Tensor:
    batch, seq_len, n_heads, _ = q.shape
    return torch.empty((batch, n_heads, seq_len), dtype=torch.float32, device=q.device)


# A call costs microseconds; finding a kernel again would cost tens.
_kernels: dict[tuple[ForwardKernelConfig, bool, torch.device], Kernel] = {}


def kernel_for(cfg: ForwardKernelConfig, causal: bool, device: torch.device) -> Kernel:
    """The kernel that ``forward`` launches, found or built when it is first asked for."""
    kernel = _kernels.get((cfg, causal, device))
    if kernel is None:
        instance, target = KernelId(cfg, Variant(causal)), target_of(device)
        with announce_build(instance) as progress:
            kernel = find_kernel(instance, target, progress)
        log_kernel(instance, target, why_chosen(cfg, causal, device) or "named by the caller")
        kernel = _kernels.setdefault((cfg, causal, device), kernel)
    return kernel


def check_config(name: str, config: ForwardKernelConfig) -> None:
    if type(config) not in CONFIG_CLASSES:
        expected = " or ".join(kind.__name__ for kind in CONFIG_CLASSES)
        raise TypeError(
            f"{name} is a {type(config).__name__}; expected a {expected} "
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
