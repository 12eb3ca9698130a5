"""Loads the GPU with other work while a kernel runs."""

from __future__ import annotations

import torch

_MATRIX = 4096
_COPIED_BYTES = 256 << 20


class CardLoad:
    """Matrix products and copies on a separate stream.

    They take SMs, L2 and DRAM bandwidth from the kernel beside them, so that its loads arrive later
    and in another order than on an idle GPU.
    """

    def __init__(self, device: str = "cuda") -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._a = torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.float16)
        self._product = torch.empty_like(self._a)
        self._source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)
        torch.cuda.synchronize()

    def add(self) -> None:
        """Enqueues work of about a third of a millisecond (H200) without waiting for it."""
        with torch.cuda.stream(self._stream):
            torch.mm(self._a, self._a, out=self._product)
            self._target.copy_(self._source)

    def wait(self) -> None:
        """Waits until the GPU has finished this work."""
        self._stream.synchronize()
