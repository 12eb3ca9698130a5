"""Calls of one decode kernel, with the workspace and counters that they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashsmith.runtime import CallArgs, DecodeKernel, DecodeTensors, Splitting
from flashsmith.runtime.decoding import AS_EVEN_AS_CAN_BE
from flashsmith.runtime.plan import NOTHING
from flashsmith.runtime.workspace import FRESH, Scratch


class BoundDecode:
    """Calls a decode kernel, with memory that is kept for the calls of each thread."""

    __slots__ = ("_device", "_how", "_kernel", "_scratch", "call")

    def __init__(
        self,
        kernel: DecodeKernel,
        device: torch.device,
        how: Splitting = AS_EVEN_AS_CAN_BE,
        *,
        appends: bool = False,
    ) -> None:
        self._kernel, self._device, self._how = kernel, device, how
        self.call = kernel.bind(how, appends=appends)
        self._scratch = Scratch(NOTHING, device)

    def __call__(
        self,
        tensors: tuple[Any, ...],
        softmax_scale: float,
        extras: Sequence[Any],
        append: tuple[Any, ...] = (),
    ) -> None:
        """Makes one call.

        Args:
            tensors: The fields of ``DecodeTensors``.
            extras: The fields of ``CallArgs``.
            append: The fields of ``AppendArguments`` and ``NO_SOFTMAX``, if calls append.
        """
        workspace, counters = self._scratch()
        if self.call(FRESH, *append, *tensors, counters, workspace, softmax_scale, *extras):
            return
        plan = self._kernel.plan(DecodeTensors(*tensors), how=self._how, extras=CallArgs(*extras))
        self._scratch = scratch = self._scratch.that_also_serves(plan)
        workspace, counters = scratch()
        made = self.call(FRESH, *append, *tensors, counters, workspace, softmax_scale, *extras)
        assert made, "a plan has the memory that it asks for"

    def kept(self) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
        """Returns the current stream, and the workspace and counters that this thread's next call
        on it may use; each is None if none is kept."""
        return self._scratch.kept()
