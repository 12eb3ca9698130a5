"""Makes calls of the functions with other libraries' signatures, for ``repeated_draws``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from flashsmith import flex_attention, scaled_dot_product_attention
from flashsmith.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from flashsmith.integrations.transformers import attention_forward
from support.repeated_arguments import BAD_LAYOUTS, GOOD_LAYOUTS, in_mode
from support.repeated_calls import World
from support.repeated_draws import Thing
from support.repeated_functions import SCORES, masks, score_mod

_BATCH, _N_K, _D_HEAD = 2, 48, 64

THINGS = {
    "function": Thing(("layer", "sdpa", "flex", "varlen", "kvcache"), decides=True),
    "n_q": Thing((48, 20)),
    "heads": Thing(((2, 2), (4, 2), (2, 1))),
    "layout": Thing((*GOOD_LAYOUTS, *BAD_LAYOUTS)),  # bad ones are copied
    "contents": Thing((0, 1)),
    "mask": Thing((None, "left", "right", "all", "bhqk", "float", "k"), decides=True),
    "causal": Thing((False, True), decides=True),
    "window": Thing((None, 9, 20), decides=True),
    "scale": Thing((None, 0.2), (-1.0, True)),
    "sinks": Thing((None, 0, 1), decides=True),
    "dropout": Thing((0.0, 0.25), (1.5,), decides=True),
    "score_mod": Thing(SCORES, decides=True),
    "blocks": Thing((None, ("filled blocks", 0), ("filled blocks", 1)), decides=True),
    "lengths": Thing((0, 1)),
    "mode": Thing((None, "deterministic", "no_grad", "inference")),
}


def make(world: World, chosen: dict[str, Any]) -> Any:
    heads, heads_kv = chosen["heads"]
    sizes = {"q": (heads, chosen["n_q"]), "k": (heads_kv, _N_K), "v": (heads_kv, _N_K)}
    tensors = [
        world.normal(
            name, (_BATCH, *size, _D_HEAD), torch.float16, chosen["contents"], chosen["layout"]
        )
        for name, size in sizes.items()
    ]
    with in_mode(chosen["mode"]):
        return _FUNCTIONS[chosen["function"]](world, chosen, *tensors)


def _layer(world: World, chosen: dict[str, Any], *qkv: torch.Tensor) -> Any:
    heads = chosen["heads"][0]
    sinks = chosen["sinks"]
    o, _ = attention_forward(
        SimpleNamespace(is_causal=chosen["causal"], config=SimpleNamespace()),  # type: ignore[arg-type]
        *qkv,
        _mask(world, chosen),
        dropout=chosen["dropout"],
        scaling=chosen["scale"],
        sliding_window=chosen["window"],
        s_aux=None if sinks is None else world.normal("s_aux", (heads,), torch.float32, sinks),
    )
    return o


def _sdpa(world: World, chosen: dict[str, Any], *qkv: torch.Tensor) -> Any:
    heads, heads_kv = chosen["heads"]
    return scaled_dot_product_attention(
        *qkv, _mask(world, chosen), chosen["dropout"], chosen["causal"], chosen["scale"],
        enable_gqa=heads != heads_kv,
    )  # fmt: skip


def _flex(world: World, chosen: dict[str, Any], *qkv: torch.Tensor) -> Any:
    heads, heads_kv = chosen["heads"]
    blocks = masks(world, chosen["blocks"], chosen["n_q"], _N_K)
    function = score_mod(world, chosen["score_mod"], heads)
    return flex_attention(
        *qkv, function, **blocks, scale=chosen["scale"], enable_gqa=heads != heads_kv
    )


def _varlen(world: World, chosen: dict[str, Any], *qkv: torch.Tensor) -> Any:
    places = []
    for side, n in (("q", chosen["n_q"]), ("k", _N_K)):
        ends = [0, (n // 2, n + 3)[chosen["lengths"]], _BATCH * n]
        places.append(world.place(f"cu_seqlens_{side}", torch.tensor(ends, dtype=torch.int32)))
    packed = [t.transpose(1, 2).flatten(0, 1) for t in qkv]
    return flash_attn_varlen_func(
        *packed, *places, 2 * chosen["n_q"], 2 * _N_K, chosen["dropout"], chosen["scale"],
        chosen["causal"], _window(chosen),
    )  # fmt: skip


def _kvcache(world: World, chosen: dict[str, Any], *qkv: torch.Tensor) -> Any:
    used = ((48, 17), (30, 48))[chosen["lengths"]]
    lengths = world.place("lengths", torch.tensor(used, dtype=torch.int32))
    return flash_attn_with_kvcache(
        *(t.transpose(1, 2) for t in qkv), cache_seqlens=lengths, softmax_scale=chosen["scale"],
        causal=chosen["causal"], window_size=_window(chosen),
    )  # fmt: skip


_FUNCTIONS = {
    "layer": _layer, "sdpa": _sdpa, "flex": _flex, "varlen": _varlen, "kvcache": _kvcache,
}  # fmt: skip


def _window(chosen: dict[str, Any]) -> tuple[int, int]:
    return (-1, -1) if chosen["window"] is None else (chosen["window"], 0)


def _mask(world: World, chosen: dict[str, Any]) -> torch.Tensor | None:
    """Returns a mask of padding, (batch, keys), always the same object, or a mask of each query and
    key."""
    kind, n_q = chosen["mask"], chosen["n_q"]
    if kind is None:
        return None
    keys = torch.arange(_N_K)
    lengths = torch.tensor([[_N_K - 9], [_N_K - chosen["lengths"]]])
    seen = {
        "left": keys >= _N_K - lengths,
        "right": keys < lengths,
        "all": keys < _N_K + 0 * lengths,
    }
    if kind in seen and chosen["function"] == "layer":
        mask: torch.Tensor = world.kept(
            "padding", lambda: torch.ones(_BATCH, _N_K, dtype=torch.bool)
        )
        return mask.copy_(seen[kind])
    whole = seen.get(kind, seen["right"])[:, None, None].expand(_BATCH, 1, n_q, _N_K)
    if kind == "float":
        return world.place("mask", torch.where(whole, 0.5, -torch.inf).half())
    return world.place("mask", whole[:, :, :1] if kind == "k" else whole)
