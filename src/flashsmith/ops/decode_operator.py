"""``decode`` as operators of torch: what torch.compile and torch.export see of it.

``decode`` calls them only where something traces it, as ``attention`` does with its own.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from flashsmith.ops.cache import Cache, New, lengths_in_a_tensor
from flashsmith.ops.checks import check_scale
from flashsmith.ops.decode_calls import Asked, Call, check_rows, checked_splits, run
from flashsmith.ops.operators import fake_lse, no_lse, parsed_config
from flashsmith.ops.semantics import Functions, checked_cap, checked_window

# Where a request's keys are, and what is computed.
_ARGUMENTS = (
    "Tensor? cache_seqlens=None, Tensor? block_table=None, "
    "Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, "
    "Tensor? k_scale=None, Tensor? v_scale=None, "
    "Tensor? alibi_slopes=None, Tensor? sinks=None, "
    "bool causal=False, SymInt window_left=-1, SymInt window_right=-1, "
    "float softcap=0.0, float? softmax_scale=None, SymInt splits=0, "
    "str? config=None, bool return_lse=False, int score=0, Tensor[]? mod_tensors=None"
)
_NEW = (
    "Tensor k_new, Tensor v_new, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
    "bool rotary_interleaved=True"
)
# In the order of the fields of ``Cache``, behind k and v, and of ``New``.
_OF_CACHE = (
    *("cache_seqlens", "block_table", "cache_batch_idx", "cache_leftpad"),
    *("k_scale", "v_scale"),
)
_OF_NEW = ("k_new", "v_new", "rotary_cos", "rotary_sin", "rotary_interleaved")


def call_decode_operator(
    asked: Asked, call: Call, softmax_scale: Any, timed: bool
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """``run``, as one operator to whatever traces it."""
    if timed:
        raise ValueError("benchmark is True; a call that is compiled or exported is not measured")
    call.refuse_gradients()
    q, cache, new, out = call.q, call.cache, call.new, call.out
    check_rows(q, cache)
    cache.check_length(call.n_new)
    left, right = checked_window(asked.window_size)
    keywords: dict[str, Any] = {
        **dict(zip(_OF_CACHE, cache[2:], strict=True)),
        "cache_seqlens": lengths_in_a_tensor(cache.seqlens, q),
        "alibi_slopes": call.alibi_slopes,
        "sinks": call.sinks,
        "causal": asked.causal,
        "window_left": left,
        "window_right": right,
        "softcap": checked_cap(asked.softcap),
        "softmax_scale": None if softmax_scale is None else check_scale(softmax_scale),
        "splits": checked_splits(asked.splits),
        "config": None if asked.config is None else str(asked.config),
        "return_lse": call.with_lse,
        **call.functions._asdict(),
    }
    name = "decode"
    if new is not None:
        name += "_append"
        keywords |= zip(_OF_NEW, new, strict=True)
    name, written = (name, ()) if out is None else (f"{name}_out", (out,))
    # By its place: of a keyword of that name torch.compile takes what is contiguous alone.
    o, lse = getattr(torch.ops.flashsmith, name)(q, cache.k, cache.v, *written, **keywords)
    return o if out is None else out, lse if call.with_lse else None, 0.0


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the operators compute."""
    given: dict[str, Any] = _DEFAULTS | keywords
    new = New.of(*(given[name] for name in _OF_NEW))
    cache = Cache(k_cache, v_cache, *(given[name] for name in _OF_CACHE))
    cfg = None if given["config"] is None else parsed_config(given["config"])
    window = given["window_left"], given["window_right"]
    asked = Asked(cfg, given["causal"], window, given["softcap"], given["splits"])
    weights = given["alibi_slopes"], given["sinks"]
    functions = Functions(given["mod_tensors"], given["score"])
    call = Call(q, cache, new, out, given["return_lse"], *weights, functions)
    o, lse, _ = run(asked, call, given["softmax_scale"], False)
    return o if out is None else q.new_empty(0), no_lse(q) if lse is None else lse


def _fake_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    return_lse: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    o = q.new_empty((*q.shape[:-1], v_cache.shape[-1]) if out is None else 0)
    return o, fake_lse(q, return_lse)


# They return o, which is empty where ``out`` is given, and the log-sum-exp, which is empty where it
# is not asked for. Those alone that append write to a cache: a graph may copy what is written.
_CACHES = ("Tensor k_cache, Tensor v_cache", "Tensor(k!) k_cache, Tensor(v!) v_cache")
_library: Any = torch.library.Library("flashsmith", "FRAGMENT")  # type: ignore[no-untyped-call]
for _appends, _has_out in product((False, True), repeat=2):
    _name = "decode" + "_append" * _appends + "_out" * _has_out
    _written = ", Tensor(o!) out" * _has_out
    _keywords = f"{_NEW}, {_ARGUMENTS}" if _appends else _ARGUMENTS
    _library.define(
        f"{_name}(Tensor q, {_CACHES[_appends]}{_written}, *, {_keywords}) -> (Tensor, Tensor)"
    )
    for _key in ("CUDA", "CPU"):
        _library.impl(_name, _decode, _key)
    torch.library.register_fake(f"flashsmith::{_name}", _fake_decode, lib=_library)
_SCHEMA = torch.ops.flashsmith.decode_append.default._schema
_DEFAULTS: dict[str, Any] = {
    each.name: each.default_value for each in _SCHEMA.arguments if each.kwarg_only
}
