"""Layouts of tensors that the chosen kernels support, if the caller named no kernel."""

from __future__ import annotations

import torch

from flashsmith.configs import KernelConfig

_DENSE = 4  # dimensions of rows that are not packed
_ALIGNMENT_BYTES, _ALIGNMENT = 16, 8  # of a tensor's first byte, and of its strides in elements


def takes(config: KernelConfig, t: torch.Tensor, varlen: bool) -> bool:
    """Returns whether kernels of ``config`` support the strides of (batch, seq_len, heads, d), or
    of packed rows without a batch.

    varlen: Whether the batch is varlen.
    """
    if not config.reads_by_maps:
        return True
    if 0 in t.stride() and any(
        n > 1 and by == 0 for n, by in zip(t.shape, t.stride(), strict=True)
    ):
        return False
    if not varlen or t.ndim < _DENSE:
        return True
    batch, n_rows, *_ = t.shape
    of_batch, of_row, *_ = t.stride()
    return not (batch > 1 and n_rows > 1 and of_batch % of_row)


def laid_out(
    config: KernelConfig, varlen: bool, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Returns the tensors, with copies of those whose layout kernels of ``config`` do not
    support."""
    return tuple(t if takes(config, t, varlen) else t.contiguous() for t in tensors)


def with_aligned_rows(t: torch.Tensor) -> torch.Tensor:
    """Returns ``t``, copied unless kernels support its rows: autograd passes gradients of any
    strides, those of a sum are all 0, and hooks of saved tensors may return other strides."""
    strides = t.stride()
    if (
        strides[-1] == 1
        and t.data_ptr() % _ALIGNMENT_BYTES == 0
        and not any(stride % _ALIGNMENT or stride == 0 for stride in strides[:-1])
    ):
        return t
    return t.clone(memory_format=torch.contiguous_format)


def with_dense_rows(t: torch.Tensor) -> torch.Tensor:
    """Returns ``t``, copied if its last dimension has gaps, which kernels do not support."""
    return t if not t.ndim or t.stride(-1) == 1 else t.clone(memory_format=torch.contiguous_format)
