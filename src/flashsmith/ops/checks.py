"""Checks that need Python and torch; libraries check the rest at every call."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from flashsmith.configs import KernelConfig
from flashsmith.configs.registry import DECODE, FORWARD
from flashsmith.mods.block_mask import BlockMask
from flashsmith.ops.gate import named, refuse_freed, refuse_unknown

# Bounds within which float32 numbers stay normal, also after the kernel multiplies them by log2(e)
# or inverts them.
SMALLEST, LARGEST = 1e-37, 1e37
FP8 = torch.float8_e4m3fn  # the dtype of FP8 tensors
ALL_KEYS = -1  # a side of a window that hides no key

ATTENTION_CONFIGS: tuple[type[KernelConfig], ...] = (
    *(family.config for family in FORWARD.families),
    *(family.config for family in DECODE.families),
)


def check_config(name: str, config: KernelConfig, kinds: Sequence[type[KernelConfig]]) -> None:
    if type(config) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{name} is a {type(config).__name__}; expected a {expected} "
            "(flashsmith.configs.parse_kernel_name_into_config reads its short form)"
        )


def check_tensors(**tensors: torch.Tensor) -> None:
    """Checks what only torch knows; the library checks the rest at the launch.

    Raises:
        TypeError, NotImplementedError: See ``refuse_unknown``.
        ValueError: There are no kernels for the device.
    """
    refuse_unknown(**tensors)
    for name, tensor in named(tensors):
        if tensor.device.type not in ("cuda", "cpu"):  # other devices do not even support DLPack
            raise ValueError(
                f"{name} is on device {tensor.device}; supported are cuda (NVIDIA) and cpu "
                "(emulator)"
            )
        refuse_freed(name, tensor)


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Returns whether a result of these tensors must be differentiable."""
    if not torch.is_grad_enabled():
        return False
    for t in tensors:  # noqa: SIM110 - every call asks, and any() takes twice as long
        if getattr(t, "requires_grad", False):
            return True
    return False


def refuse_gradients(**tensors: torch.Tensor | None) -> None:
    """Raises for a tensor that requires a gradient which is not computed."""
    for name, tensor in tensors.items():
        if getattr(tensor, "requires_grad", False):
            raise NotImplementedError(
                f"{name} requires a gradient, which is not computed here: call under "
                "torch.no_grad(), or detach it"
            )


def refuse_second_derivative() -> NoReturn:
    raise NotImplementedError(
        "a second derivative of attention was asked for (a gradient penalty, or create_graph=True "
        "and another backward), which is not computed: only the first is"
    )


def mark_written(*tensors: torch.Tensor | None) -> None:
    """Tells autograd that tensors were overwritten, so that it refuses gradients that need their
    saved old values, as it does after an operation of torch."""
    torch.autograd.graph.increment_version([t for t in tensors if t is not None])


def refuse_out(out: torch.Tensor | None) -> None:
    """Raises for an ``out`` if the result needs a gradient."""
    if out is not None:
        raise ValueError("out is a tensor; a result that needs a gradient is made anew: pass None")


def check_scale(value: float) -> float:
    """Returns softmax_scale. Raises unless the kernel's float32 arithmetic supports it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"softmax_scale is a {type(value).__name__}; expected a float, or None for "
            "1 / sqrt(d_head)"
        )
    if not SMALLEST <= value <= LARGEST:  # False for NaN
        raise ValueError(
            f"softmax_scale is {value}; expected a number from {SMALLEST} to {LARGEST}"
        )
    return float(value)


def check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}; expected True or False")


def check_block_mask(block_mask: BlockMask, q: torch.Tensor, k: torch.Tensor, packed: bool) -> None:
    """Raises unless a block mask fits q and k: equal lengths, and equal or single batch and
    heads."""
    if packed:
        raise ValueError(
            "block_mask was passed with cu_seqlens; its rows are those of the whole tensor, while "
            "indices of packed sequences begin anew in each: pass mask_mod alone"
        )
    batch, heads, n_q, n_k = block_mask.shape
    found = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if batch not in (1, found[0]) or heads not in (1, found[1]) or (n_q, n_k) != found[2:]:
        raise ValueError(
            f"block_mask is for (batch, n_heads, seq_len_q, seq_len_k) = {block_mask.shape}, but q "
            f"and k have {found}; only batch and n_heads may be 1 instead"
        )


def check_rank(name: str, tensor: torch.Tensor, places: str | None) -> None:
    """Raises unless the tensor has four dimensions, or three if ``places`` names its offsets."""
    expected = "(total, n_heads, d_head)" if places else "(batch, seq_len, n_heads, d_head)"
    n_dims = 3 if places else 4
    if tensor.ndim != n_dims:
        beside = f" with {places}" if places else ""
        raise ValueError(
            f"{name} has {tensor.ndim} dimensions, shape {tuple(tensor.shape)}; expected {n_dims}"
            f"{beside}: {expected}"
        )


def checked_window(window_size: Any) -> tuple[int, int]:
    """Returns the sides of a window. Raises TypeError or ValueError for anything else."""
    sides = tuple(window_size) if isinstance(window_size, tuple | list) else None
    if sides is None or len(sides) != 2 or not all(type(side) is int for side in sides):
        raise TypeError(
            f"window_size is {window_size!r}; expected two ints, (left, right); -1 is all keys"
        )
    if min(sides) < ALL_KEYS:
        raise ValueError(
            f"window_size is {sides}; expected at least 0 on either side, or -1 for all keys"
        )
    return sides[0], sides[1]


def checked_cap(softcap: Any) -> float:
    """Returns a softcap. Raises TypeError or ValueError for anything else."""
    if isinstance(softcap, bool) or not isinstance(softcap, float | int):
        raise TypeError(f"softcap is a {type(softcap).__name__}; expected a float, or 0.0 for none")
    if softcap != 0 and not SMALLEST <= softcap <= LARGEST:
        raise ValueError(
            f"softcap is {softcap}; expected 0 (none), or a number from {SMALLEST} to {LARGEST}"
        )
    return float(softcap)
