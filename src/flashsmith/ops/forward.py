"""``forward``, which launches the kernel of a configuration, and the launch of ``attention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashsmith.configs import AttentionKernelConfig
from flashsmith.ops.checks import (
    ATTENTION_CONFIGS,
    check_config,
    check_flags,
    check_rank,
    check_tensors,
    mark_written,
    needs_gradient,
    refuse_gradients,
)
from flashsmith.ops.gate import are_memory, refuse_all_but_memory
from flashsmith.ops.launch import launch, measure
from flashsmith.ops.results import new_lse, new_o
from flashsmith.ops.spec import (
    CAUSAL,
    FULL,
    AttentionSpec,
    given_tensors,
    is_plain,
    ready,
    spec_of,
    tensors_of,
)
from flashsmith.runtime.launch_cache import MADE, UNKNOWN, launch_cache

_CONTIGUOUS = torch.contiguous_format
# The dtype of o by the launch cache's answer, if q's dtype or rows are not o's.
_O_DTYPES = {2: torch.float16, 4: torch.bfloat16}


def forward(
    cfg: AttentionKernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    benchmark: bool = False,
    return_lse: bool = False,
    **semantics: Any,
) -> torch.Tensor | tuple[torch.Tensor | float, ...]:
    """Computes o = softmax(q k^T * softmax_scale) v with the kernel of ``cfg``.

    CUDA tensors run on their GPU's current stream, CPU tensors on the emulator. A kernel that no
    library holds is built first.

    Args:
        cfg: The kernel's configuration, for the tensors' dtypes, and for their d_head or a larger
            one.
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16; float8_e4m3fn with fp8_scores.
            The last dimension is contiguous, the other strides are multiples of 16 bytes.
        k, v: (batch, seq_len_k, n_heads_kv, d_head), of q's dtype and device, with the same layout.
            n_heads is a multiple of n_heads_kv: neighbouring heads of q share a head of k and v.
            The rows of v may have another length than those of q and k; o has v's. With fp8_scores
            v has the configuration's dtype; with fp8_values it has q's.
        o: The tensor for the result, of the configuration's dtype, in memory that no input shares;
            None: a new contiguous tensor.
        causal: Query i attends to keys 0 to i + seq_len_k - seq_len_q. A query that sees no key
            gets zeros, and -inf as log-sum-exp.
        softmax_scale: None: 1 / sqrt(d_head).
        benchmark: Whether to also return the milliseconds between two events around the launch.
        return_lse: Whether to also return the natural logarithm of the sum of each row's
            exponentials, (batch, n_heads, seq_len_q), float32.
        semantics: Further keywords of ``attention``, and block_table, int32 (batch, pages): then k
            and v are (n_pages, page_size, n_heads_kv, d_head), and sequence i has the pages that
            row i lists and as many rows as seqused_k says. Beyond them, the page table and pages
            may hold anything; page numbers outside the tensors are not followed: their keys are
            zeros. Pages need a 16-bit kernel of the sm90 family without clusters, and page sizes
            that are multiples of 16.

    Returns:
        o; or the tuple of o, with ``return_lse`` lse, and with ``benchmark`` milliseconds.

    Raises:
        NotImplementedError: A tensor requires a gradient: ``attention`` is differentiable.
        TypeError: An argument has a wrong type, or a tensor a wrong dtype.
        ValueError: The kernel does not support a shape, stride, alignment, device or length.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be found or
            built.
        DeviceError: The kernel does not support the GPU (compute capability 8.0 or newer for the
            sm80 family, 9.0 for sm90), or the GPU refused the launch.
    """
    if not type(causal) is type(benchmark) is type(return_lse) is bool:
        check_flags(causal=causal, benchmark=benchmark, return_lse=return_lse)
    check_config("cfg", cfg, ATTENTION_CONFIGS)
    if softmax_scale is None and not semantics:
        spec = CAUSAL if causal else FULL
    else:
        spec = spec_of(q, k, {"causal": causal, "softmax_scale": softmax_scale, **semantics})
    given = given_tensors(spec)
    if o is not None:
        given = [o, *given]
    if not are_memory(q, k, v, *given):
        named = tensors_of(spec) | ({} if o is None else {"o": o})
        refuse_all_but_memory(q=q, k=k, v=v, **named)
    if torch.is_grad_enabled() and needs_gradient(q, k, v, *given):
        refuse_gradients(q=q, k=k, v=v, o=o, **semantics)
    milliseconds: list[float] = []
    if benchmark:
        o, lse, *milliseconds = _slowly(measure, cfg, q, k, v, o, spec, return_lse)
    else:
        o, lse = _attend(cfg, q, k, v, o, spec, return_lse)
    mark_written(o)
    if lse is None and not benchmark:
        return o
    return (o, *([] if lse is None else [lse]), *milliseconds)


def run_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None = None,
    config: AttentionKernelConfig | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``attention`` of tensors that are memory: launches now."""
    if type(return_lse) is not bool:
        check_flags(return_lse=return_lse)
    o, lse = _attend(config, q, k, v, out, spec, return_lse)
    if out is not None:
        mark_written(out)
    return o if lse is None else (o, lse)


def _attend(
    config: AttentionKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    spec: AttentionSpec,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns o and lse. On the hot path ``launch_cache`` makes the call, as an earlier one like
    it."""
    try:
        told: tuple[Any, ...] = spec[:2]  # the rest of a plain call is known
        if spec is not FULL and spec is not CAUSAL:
            told = spec = ready(spec, q, k)
        o = torch.empty_like(q, memory_format=_CONTIGUOUS) if out is None else out
        lse = new_lse(q) if with_lse else None
        named = 0 if config is None else id(config)
        answer = launch_cache.attend(named, q, k, v, o, lse, out is None, *told)
        if answer == MADE:
            return o, lse
        if answer != UNKNOWN:
            o = new_o(q, v.shape[-1], _O_DTYPES[answer])
            if launch_cache.attend(named, q, k, v, o, lse, True, *told) == MADE:
                return o, lse
    except Exception:
        pass  # the cold path refuses it with a better message
    if config is not None:
        check_config("config", config, ATTENTION_CONFIGS)
    return _slowly(launch, config, q, k, v, out, spec, with_lse)


def _slowly(
    run: Callable[..., tuple[Any, ...]],
    config: AttentionKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: AttentionSpec,
    with_lse: bool,
) -> tuple[Any, ...]:
    """Makes the call by ``run``, which is ``launch`` or ``measure``."""
    if type(spec.causal) is not bool:
        check_flags(causal=spec.causal)
    try:
        return run(config, q, k, v, o, spec, with_lse)
    except Exception:
        if not is_plain(spec):
            _check(spec, {"q": q, "k": k, "v": v} | ({} if o is None else {"o": o}))
        raise


def _check(spec: AttentionSpec, tensors: dict[str, torch.Tensor]) -> None:
    """Raises for a tensor of a failed call if no call supports it."""
    check_tensors(**tensors, **tensors_of(spec))
    for name, t in tensors.items():
        offsets = "cu_seqlens_q" if name in "qo" else "cu_seqlens_k"
        check_rank(name, t, offsets if getattr(spec, offsets) is not None else None)
