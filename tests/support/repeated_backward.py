"""Makes calls of ``backward`` for ``repeated_draws``."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith import backward
from support.repeated_arguments import BAD_LAYOUTS, GOOD_LAYOUTS, config, in_mode
from support.repeated_attention import THINGS as OF_ATTENTION
from support.repeated_attention import arguments
from support.repeated_calls import World
from support.repeated_draws import Thing

_NAMED = "(FP16, 64, 64, 64, 4): backward"
_OF_FORWARD = ("out", "lse", "mode", "config")

THINGS = {name: thing for name, thing in OF_ATTENTION.items() if name not in _OF_FORWARD} | {
    "o": Thing(GOOD_LAYOUTS, (*BAD_LAYOUTS, "a head more")),
    "do": Thing((*GOOD_LAYOUTS, *BAD_LAYOUTS), ("float32",)),
    "lse": Thing((0, 1), ("a row more", "float16")),
    "dlse": Thing((None, 0, 1), ("a row more",), decides=True),
    "deterministic": Thing((False, True), (1,), decides=True),
    "mode": Thing((None, "deterministic", "no_grad"), decides=True),
    "config": Thing((None,), ("a string",), decides=True),
}


def make(world: World, chosen: dict[str, Any]) -> Any:
    tensors, keywords = arguments(world, chosen | {"out": None})
    for name in ("out", "return_lse", "config"):
        keywords.pop(name)
    q, v = tensors["q"], tensors["v"]
    o_shape = (*q.shape[:-1], v.shape[-1])
    heads = q.shape[:-1].numel() and q.shape[-2]
    rows = (heads, q.shape[0]) if q.ndim == 3 else (q.shape[0], heads, q.shape[1])
    do_dtype = torch.float32 if chosen["do"] == "float32" else q.dtype
    o_heads = (
        (*o_shape[:-2], o_shape[-2] + 1, o_shape[-1]) if chosen["o"] == "a head more" else o_shape
    )
    o = world.normal("o", o_heads, q.dtype, 0, _layout(chosen["o"]))
    do = world.normal("do", o_shape, do_dtype, 0, _layout(chosen["do"]))
    lse = _rows(world, "lse", rows, chosen["lse"], 6.0)
    dlse = _rows(world, "dlse", rows, chosen["dlse"], 0.0)
    with in_mode(chosen["mode"]):
        own = {"o": o, "lse": lse, "dlse": dlse, "deterministic": chosen["deterministic"]}
        given = {name: value for name, value in keywords.items() if value is not None}
        return backward(config(chosen["config"]), do, **tensors, **own, **given)


def _layout(name: str) -> str:
    return name if name in (*GOOD_LAYOUTS, *BAD_LAYOUTS) else "contiguous"


def _rows(world: World, name: str, sizes: tuple[int, ...], which: Any, mean: float) -> Any:
    """Returns a number for each row of queries."""
    if which is None:
        return None
    if which == "a row more":
        sizes = (*sizes[:-1], sizes[-1] + 1)
    contents = which if isinstance(which, int) else 0
    numbers = world.normal(name, sizes, torch.float32, contents)
    numbers += mean
    return numbers.half() if which == "float16" else numbers
