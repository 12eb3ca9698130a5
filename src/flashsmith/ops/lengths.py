"""Checks of lengths, offsets and scales. Their values are on the device, so they are read only if
that costs nothing, or if the user enables it."""

from __future__ import annotations

import functools
from itertools import pairwise

import torch
from torch.compiler import is_compiling

from flashsmith import settings
from flashsmith.ops.checks import check_tensors


def check_longest(**lengths: int | None) -> None:
    for name, value in lengths.items():
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"{name} is {value!r}; expected an int from 0 on, or None")


def check_lengths(
    side: str,
    batch: int,
    rows: int,
    offsets: torch.Tensor | None,
    used: torch.Tensor | None,
    maximum: int | None,
) -> None:
    """Raises ValueError for lengths of sequences that kernels would clamp.

    Args:
        side: "q" or "k".
        batch, rows: Sizes of the side's tensor; packed rows have no batch.
        offsets, used, maximum: cu_seqlens, seqused and max_seqlen of the side.
    """
    lengths: list[int] | None  # None: the host may not read them
    if offsets is None:
        lengths = [rows] * batch
    else:
        lengths = _lengths_between(f"cu_seqlens_{side}", offsets, side, rows)
    if used is not None:
        lengths = _lengths_used(f"seqused_{side}", used, side, lengths)
    _check_none_longer(side, maximum, lengths)


def are_for_the_device_alone(offsets: torch.Tensor | None, used: torch.Tensor | None) -> bool:
    """Returns whether a side has lengths that the host may not read, so that nothing is known of
    its sequences."""
    given = used if offsets is None else offsets
    return given is not None and not may_look_at(given)


def _check_none_longer(side: str, maximum: int | None, lengths: list[int] | None) -> None:
    """Raises ValueError for a length above max_seqlen: rows beyond would not be computed, and
    bounds that reach them would be dropped."""
    if maximum is None or lengths is None:
        return
    if (longest := max(lengths, default=0)) > maximum:
        raise ValueError(f"max_seqlen_{side} is {maximum}, but a sequence has {longest} rows")


def may_look_at(t: torch.Tensor) -> bool:
    """Returns whether the host may read the values of lengths and offsets; not while a graph is
    traced."""
    if is_compiling():
        return False
    if t.is_cpu:
        return True
    return asked_to_look() and not torch.cuda.is_current_stream_capturing()


@functools.cache
def asked_to_look() -> bool:
    """Returns whether FLASHSMITH_CHECK_LENGTHS is on. It is read once, because each look-up of the
    variable would cost a call a microsecond."""
    return bool(settings.CHECK_LENGTHS.get())


def check_fp8_scales(**scales: torch.Tensor | None) -> None:
    """Raises TypeError or ValueError for invalid FP8 scales; their values are read only if that
    costs nothing, or if the user enables it."""
    for name, t in scales.items():
        if t is None:
            continue
        check_tensors(**{name: t})
        if t.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {t.dtype}; it must be torch.float32")
        if is_of_tokens(t) or not may_look_at(t):
            continue  # many per-token scales belong to no key
        if not (t.isfinite() & (t > 0)).all():
            raise ValueError(f"{name} has {t.min().item()}; expected positive numbers")


def is_of_tokens(scale: torch.Tensor) -> bool:
    """Returns whether there is a scale for each row of a cache (per-token scales)."""
    return scale.ndim == 3


def _is_vector(t: torch.Tensor) -> bool:
    """Returns whether t is an int32 vector; if not, the library says what is wrong."""
    return t.dtype == torch.int32 and t.ndim == 1


def _lengths_between(name: str, offsets: torch.Tensor, side: str, rows: int) -> list[int] | None:
    if not _is_vector(offsets) or not may_look_at(offsets):
        return None
    values = offsets.tolist()
    if not values or values[0] < 0 or values[-1] > rows:
        raise ValueError(
            f"{name} is {values}; expected offsets from 0 to the {rows} rows of {side}"
        )
    for i, (before, after) in enumerate(pairwise(values), 1):
        if after < before:
            raise ValueError(
                f"{name} must be non-decreasing, but {name}[{i}] = {after} follows {before}"
            )
    return [after - before for before, after in pairwise(values)]


def _lengths_used(
    name: str, used: torch.Tensor, side: str, lengths: list[int] | None
) -> list[int] | None:
    if lengths is None or not _is_vector(used) or not may_look_at(used):
        return None
    values = used.tolist()
    for value, maximum in zip(values, lengths, strict=False):
        if not 0 <= value <= maximum:
            raise ValueError(
                f"{name} has {value}; expected 0 to {maximum}, the rows of {side} there"
            )
    return values
