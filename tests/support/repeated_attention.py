"""Makes calls of ``attention`` for ``repeated_draws``, with or without gradients."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith import attention
from support.repeated_arguments import BAD_LAYOUTS, GOOD_LAYOUTS, config, in_mode, sinks, slopes
from support.repeated_calls import LAYOUTS, World
from support.repeated_draws import Thing
from support.repeated_functions import MASKS, SCORES, masks, score_mod

# These have other tiles than the selected kernels, and so give other bits.
_SM90 = "(FP16, 64, 64, 48, 1): wgmma+stages_1+tma_store"
_SM80 = "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_0_tiles+opt_softmax"

THINGS = {
    "dtype": Thing(("float16", "bfloat16"), ("float32",), decides=True),
    "d_head": Thing((64, 48), (44,), decides=True),
    "d_v": Thing((0, 32), decides=True),  # 0: d_head
    "batch": Thing((2, 1)),
    "heads": Thing(((2, 2), (4, 2), (2, 1)), ((3, 2),)),
    "n_q": Thing((40, 64), decides=True),
    "n_k": Thing((64, 90), (0,), decides=True),
    "q": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "k": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "v": Thing(GOOD_LAYOUTS, BAD_LAYOUTS),
    "contents": Thing((0, 1)),
    "out": Thing((None, *GOOD_LAYOUTS), (*BAD_LAYOUTS, "float32", "q", "a head more")),
    "lse": Thing((False, True)),
    "scale": Thing((None, 0.2, 1.0), (0.0, True, "0.2")),
    "causal": Thing((False, True), (1, None), decides=True),
    "window": Thing(
        ((-1, -1), (5, 9), (20, 2), (-1, 3), (7, -1), (100, 100)),
        ((5.0, 9), (5, 9, 1), (-2, 1)),
        decides=True,
    ),
    "top_left": Thing((False, True), (1,), decides=True),
    "softcap": Thing((0.0, 1.0, 3.0, 1), (True, "1", -1.0), decides=True),
    "alibi": Thing(
        (None, ("h", 0), ("h", 1), ("bh", 0)), (("half", 0), ("h + 1", 0)), decides=True
    ),
    "sinks": Thing(
        (None, ("float32", 0), ("float32", 1), ("dtype", 0)), (("float64", 0),), decides=True
    ),
    "bias": Thing(
        (None, "bhqk", "11qk", "1h1k", "bh11", "long rows"), ("float32", "bhq"), decides=True
    ),
    "lengths": Thing(
        (None, ("cu", 0), ("cu", 1), ("cu", 2), ("seqused_k", 0), ("seqused_k", 1), ("seqused", 0)),
        (("cu", "falls"), ("seqused_k", "int64"), ("seqused_k", "many")),
        decides=True,
    ),
    "max_seqlen": Thing((None, 90, 500, 3, True)),  # used only with lengths
    "dropout": Thing((0.0, (0.25, 0), (0.25, 1), (0.5, 0), (0.5, None)), ((1.0, 0),), decides=True),
    "score_mod": Thing(SCORES, decides=True),
    "mask": Thing(MASKS, decides=True),
    "config": Thing((None, _SM80, _SM90), ("a string",), decides=True),
    "mode": Thing((None, "deterministic", "no_grad", "inference", "unread")),
}


def make(world: World, chosen: dict[str, Any]) -> Any:
    """Returns the result of a call, and its gradients if any are wanted."""
    tensors, keywords = arguments(world, chosen)
    gradient = chosen.get("gradient")
    for name in gradient or ():
        t = tensors.get(name, keywords.get(name))
        if t is not None:
            t.requires_grad_()
    if "deterministic" in chosen:
        keywords["deterministic"] = chosen["deterministic"]
    with in_mode(chosen["mode"]):
        returned = attention(**tensors, **keywords)
        if not gradient:
            return returned
        results = returned if isinstance(returned, tuple) else (returned,)
        sum(t.float().square().sum() for t in results).backward()
    wanted = {n: t.grad for n, t in (tensors | keywords).items() if isinstance(t, torch.Tensor)}
    return (*results, *(t for t in wanted.values() if t is not None))


def arguments(world: World, chosen: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    dtype = getattr(torch, chosen["dtype"])
    batch, (heads, heads_kv), d_head = chosen["batch"], chosen["heads"], chosen["d_head"]
    n_q, n_k, d_v = chosen["n_q"], chosen["n_k"], chosen["d_v"] or d_head
    lengths = _lengths(world, chosen["lengths"], batch, n_q, n_k)
    packed = "cu_seqlens_q" in lengths
    of_q, of_k = (
        (n,) if packed else (batch, n)
        for n in (batch * n_q if packed else n_q, batch * n_k if packed else n_k)
    )
    shapes = {
        "q": (*of_q, heads, d_head),
        "k": (*of_k, heads_kv, d_head),
        "v": (*of_k, heads_kv, d_v),
    }
    tensors = {
        name: world.normal(name, shape, dtype, chosen["contents"], chosen[name])
        for name, shape in shapes.items()
    }
    maximum = chosen["max_seqlen"]
    keywords = {
        "out": _out(world, chosen["out"], (*of_q, heads, d_v), dtype, tensors["q"]),
        "return_lse": chosen["lse"],
        "softmax_scale": chosen["scale"],
        "causal": chosen["causal"],
        "window_size": chosen["window"],
        "top_left": chosen["top_left"],
        "softcap": chosen["softcap"],
        "alibi_slopes": slopes(world, chosen["alibi"], batch, heads),
        "sinks": sinks(world, chosen["sinks"], heads, dtype),
        "bias": _bias(world, chosen["bias"], (batch, heads, n_q, n_k), dtype),
        **lengths,
        **({"max_seqlen_q": maximum, "max_seqlen_k": maximum} if lengths else {}),
        **_dropout(world, chosen["dropout"]),
        "score_mod": score_mod(world, chosen["score_mod"], heads),
        **masks(world, chosen["mask"], n_q, n_k),
        "config": config(chosen["config"]),
    }
    return tensors, keywords


def _out(
    world: World, layout: str | None, shape: tuple[int, ...], dtype: torch.dtype, q: torch.Tensor
) -> Any:
    """Returns the tensor for the result, filled with ones."""
    if layout in (None, "q"):
        return q if layout else None
    if layout == "a head more":
        shape = (*shape[:-2], shape[-2] + 1, shape[-1])
    dtype = torch.float32 if layout == "float32" else dtype
    return world.place(
        "out", torch.ones(shape, dtype=dtype), layout if layout in LAYOUTS else "contiguous"
    )


def _bias(
    world: World, kind: str | None, sizes: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor | None:
    if kind is None:
        return None
    if kind in ("float32", "long rows"):
        dtype = torch.float32 if kind == "float32" else dtype
        return world.normal(
            "bias", sizes, dtype, 0, "long rows" if kind == "long rows" else "contiguous"
        )
    named = dict(zip("bhqk", sizes, strict=True)) | {"1": 1}
    return world.normal("bias", [named[letter] for letter in kind], dtype)


def _lengths(
    world: World, chosen: tuple[str, Any] | None, batch: int, n_q: int, n_k: int
) -> dict[str, torch.Tensor]:
    """Returns the sequences' lengths, by ``attention``'s keywords."""
    if chosen is None:
        return {}
    kind, which = chosen
    if kind == "cu":
        return {
            f"cu_seqlens_{side}": _places(world, side, which, batch * n)
            for side, n in (("q", n_q), ("k", n_k))
        }
    used = torch.tensor([{0: n_k, 1: n_k // 2, "many": n_k + 1}.get(which, n_k)] * batch)
    dtype = torch.int64 if which == "int64" else torch.int32
    found = {"seqused_k": world.place("seqused_k", used.to(dtype))}
    if kind == "seqused":
        found["seqused_q"] = world.place(
            "seqused_q", torch.full((batch,), n_q // 2, dtype=torch.int32)
        )
    return found


def _places(world: World, side: str, which: Any, total: int) -> torch.Tensor:
    inner = {
        0: [total // 2],
        1: [total // 3],
        2: [total // 4, total // 2],
        "falls": [total, total // 2],
    }
    return world.place(
        f"cu_seqlens_{side}", torch.tensor([0, *inner[which], total], dtype=torch.int32)
    )


def _dropout(world: World, chosen: Any) -> dict[str, Any]:
    if not chosen:
        return {}
    share, seed = chosen
    state = None if seed is None else world.place("rng_state", torch.tensor([seed, 7]))
    return {"dropout_p": share, "rng_state": state}
