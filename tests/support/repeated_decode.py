"""Makes calls of ``decode`` for ``repeated_draws``."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith import decode
from support.repeated_arguments import BAD_LAYOUTS, GOOD_LAYOUTS, config, in_mode, sinks, slopes
from support.repeated_calls import World
from support.repeated_draws import Thing
from support.repeated_functions import SCORES, score_mod

_NAMED = "(FP16, 64, 16, 32, 2): decode+stages_3+blocks_4"
_ROWS, _PAGE = 96, 16

THINGS = {
    "dtype": Thing(("float16", "bfloat16"), ("float32",), decides=True),
    "d_head": Thing((64, 48), (44,), decides=True),
    "d_v": Thing((0, 32), decides=True),
    "batch": Thing((2, 1)),
    "heads": Thing(((2, 2), (4, 2), (2, 1)), ((3, 2),), decides=True),
    "n_q": Thing((2, 1, 3), (0,), decides=True),
    "q": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "k": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "v": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "contents": Thing((0, 1)),
    "seqlens": Thing(("a", "b", 70, 30, None), ("int64", "too many", 7.0, "a request more")),
    "table": Thing((None, "a", "b", "wider"), ("nowhere", "int64")),
    "entries": Thing((None, "a", "b"), ("nowhere",)),
    "leftpad": Thing((None, "a", "b"), ("too many",)),
    "new": Thing((None, 1, 2), ("float32", "v alone"), decides=True),
    "rotary": Thing(
        (None, ("turned", 0), ("turned", 1), ("halves", 0)), (("a row", 0), ("1", 0)), decides=True
    ),
    "cache": Thing((None, "1", "h", "bh", "tokens", "no scales"), ("negative",), decides=True),
    "causal": Thing((False, True), (1,), decides=True),
    "window": Thing(
        ((-1, -1), (20, 0), (9, 5), (-1, 0), [20, 0]), ((20.0, 0), (5, 9, 1), (-2, 1)), decides=True
    ),
    "softcap": Thing((0.0, 1.0, 3.0, 1), (True, "1", -1.0), decides=True),
    "alibi": Thing(
        (None, ("h", 0), ("h", 1), ("bh", 0)), (("half", 0), ("h + 1", 0)), decides=True
    ),
    "sinks": Thing(
        (None, ("float32", 0), ("float32", 1), ("dtype", 0)), (("float64", 0),), decides=True
    ),
    "scale": Thing((None, 0.2, 1.0), (0.0, True, "0.2")),
    "score_mod": Thing(SCORES, decides=True),
    "splits": Thing((0, 1, 3), (True, 1.0, -1)),
    "out": Thing((None, *GOOD_LAYOUTS), (*BAD_LAYOUTS, "float32", "a head more")),
    "lse": Thing((False, True), (1,)),
    "config": Thing((None, _NAMED), ("a string",), decides=True),
    "mode": Thing((None, "deterministic", "no_grad", "inference", "unread")),
}


def make(world: World, chosen: dict[str, Any]) -> Any:
    tensors, keywords = _arguments(world, chosen)
    with in_mode(chosen["mode"]):
        return decode(config(chosen["config"]), *tensors, **keywords)


def _arguments(world: World, chosen: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    dtype = getattr(torch, chosen["dtype"])
    batch, (heads, heads_kv), d_head = chosen["batch"], chosen["heads"], chosen["d_head"]
    n_q, d_v, contents = chosen["n_q"], chosen["d_v"] or d_head, chosen["contents"]
    pages = chosen["table"] is not None
    of_cache = (10 * batch, _PAGE) if pages else (batch + 2 if chosen["entries"] else batch, _ROWS)
    stored = dtype if chosen["cache"] is None else torch.float8_e4m3fn
    sizes = {"q": (batch, n_q, heads, d_head), "k": (*of_cache, heads_kv, d_head)} | {
        "v": (*of_cache, heads_kv, d_v)
    }
    tensors = [
        world.normal(name, size, dtype if name == "q" else stored, contents, chosen[name])
        for name, size in sizes.items()
    ]
    out = chosen["out"]
    o_dtype = torch.float32 if out == "float32" else dtype
    o_shape = (batch, n_q, heads + (out == "a head more"), d_v)
    keywords = {
        "cache_seqlens": _lengths(world, chosen["seqlens"], batch),
        "block_table": _table(world, chosen["table"], batch),
        "cache_batch_idx": None
        if pages and chosen["entries"] != "nowhere"
        else _numbers(
            world,
            "entries",
            chosen["entries"],
            {"a": [1, 0], "b": [2, 1], "nowhere": [99, 0]},
            batch,
        ),
        "cache_leftpad": _numbers(
            world,
            "leftpad",
            chosen["leftpad"],
            {"a": [3, 0], "b": [0, 9], "too many": [95, 0]},
            batch,
        ),
        **_scales(world, chosen["cache"], (*of_cache, heads_kv), batch),
        **_new(world, chosen["new"], (batch, heads_kv, d_head, d_v), dtype),
        **_rotary(world, chosen["rotary"], chosen["new"], dtype),
        "causal": chosen["causal"],
        "window_size": chosen["window"],
        "softcap": chosen["softcap"],
        "alibi_slopes": slopes(world, chosen["alibi"], batch, heads),
        "sinks": sinks(world, chosen["sinks"], heads, dtype),
        "softmax_scale": chosen["scale"],
        "score_mod": score_mod(world, chosen["score_mod"], heads),
        "splits": chosen["splits"],
        "out": out
        and world.place(
            "out",
            torch.ones(o_shape, dtype=o_dtype),
            out if out in (*GOOD_LAYOUTS, *BAD_LAYOUTS) else "contiguous",
        ),
        "return_lse": chosen["lse"],
    }
    return tensors, keywords


def _numbers(
    world: World,
    name: str,
    which: str | None,
    values: dict[str, list[int]],
    batch: int,
    dtype: torch.dtype = torch.int32,
) -> Any:
    return (
        None
        if which is None
        else world.place(name, torch.tensor(values[which][:batch], dtype=dtype))
    )


def _lengths(world: World, which: Any, batch: int) -> Any:
    if which is None or isinstance(which, int | float):
        return which
    values = {
        "a": [80, 41],
        "b": [17, 80],
        "int64": [80, 41],
        "too many": [999, 3],
        "a request more": [80, 41, 7],
    }
    n = batch + (which == "a request more")
    return _numbers(
        world, "seqlens", which, values, n, torch.int64 if which == "int64" else torch.int32
    )


def _table(world: World, which: str | None, batch: int) -> torch.Tensor | None:
    """Returns a page table whose requests have pages in random order."""
    if which is None:
        return None
    width = 8 if which == "wider" else 6
    order = torch.randperm(10 * batch, generator=torch.Generator().manual_seed(int(which == "b")))
    pages = (
        order[: batch * width]
        .view(batch, width)
        .to(torch.int64 if which == "int64" else torch.int32)
    )
    if which == "nowhere":
        pages[0, 0] = 1000
    return world.place("table", pages)


def _scales(world: World, which: str | None, rows: tuple[int, ...], batch: int) -> dict[str, Any]:
    """Returns the scales of an FP8 cache."""
    if which in (None, "no scales"):
        return {}
    heads = rows[-1]
    shape = {"h": (heads,), "bh": (batch, heads), "tokens": rows}.get(which, (1,))
    sign = -1 if which == "negative" else 1
    return {
        name: world.place(name, sign * world.normal(name, shape, torch.float32).abs() + 0.1 * sign)
        for name in ("k_scale", "v_scale")
    }


def _new(world: World, which: Any, sizes: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    if which is None:
        return {}
    batch, heads, d_head, d_v = sizes
    n = which if isinstance(which, int) else 1
    dtype = torch.float32 if which == "float32" else dtype
    new = {
        "k_new": world.normal("k_new", (batch, n, heads, d_head), dtype),
        "v_new": world.normal("v_new", (batch, n, heads, d_v), dtype),
    }
    return {"v_new": new["v_new"]} if which == "v alone" else new


def _rotary(
    world: World, which: tuple[str, int] | None, new: Any, dtype: torch.dtype
) -> dict[str, Any]:
    if which is None:
        return {}
    kind, contents = which
    if new is None and kind != "1":  # decode refuses it
        return {}
    sizes = (_ROWS * 2 if kind != "a row" else 1, 1 if kind == "1" else 16)
    angles = {
        name: world.normal(name, sizes, dtype, contents) for name in ("rotary_cos", "rotary_sin")
    }
    return angles | {"rotary_interleaved": 1 if kind == "1" else kind == "turned"}
