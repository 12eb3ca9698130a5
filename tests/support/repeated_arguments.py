"""Makes the modes and arguments that several operations take, for ``repeated_draws``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch

from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.ops import kv_cache, lengths
from support.repeated_calls import World

GOOD_LAYOUTS = ("contiguous", "heads first", "long rows", "16 bytes on")
BAD_LAYOUTS = ("8 bytes on", "an element on", "odd rows", "every second")


@contextmanager
def in_mode(name: str | None) -> Iterator[None]:
    """Runs a call under one of torch's modes; or as on a GPU, where lengths are not read."""
    torch.set_deterministic_debug_mode("error" if name == "deterministic" else "default")
    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "unread": _unread}
    try:
        with modes.get(name or "", nullcontext)():
            yield
    finally:
        torch.set_deterministic_debug_mode("default")


@contextmanager
def _unread() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (kv_cache, lengths):
            stack.enter_context(mock.patch.object(module, "may_look_at", lambda t: False))
        yield


def config(name: str | None) -> Any:
    return name if name in (None, "a string") else parse_kernel_name_into_config(name)


def slopes(
    world: World, chosen: tuple[str, int] | None, batch: int, heads: int
) -> torch.Tensor | None:
    if chosen is None:
        return None
    kind, contents = chosen
    shape = {"bh": (batch, heads), "h + 1": (heads + 1,)}.get(kind, (heads,))
    dtype = torch.float16 if kind == "half" else torch.float32
    return world.normal("slopes", shape, dtype, contents)


def sinks(
    world: World, chosen: tuple[str, int] | None, heads: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if chosen is None:
        return None
    kind, contents = chosen
    dtype = dtype if kind == "dtype" else getattr(torch, kind)
    return world.normal("sinks", (heads,), dtype, contents)
