"""``decode`` as operators of torch, for torch.compile and torch.export.

``decode`` calls them only when it is traced, as ``attention`` does with its operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from flashsmith.ops.checks import check_scale, checked_cap, checked_window, needs_gradient
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_calls import run
from flashsmith.ops.decode_checks import check_rows, checked_splits
from flashsmith.ops.functions import Functions
from flashsmith.ops.kv_cache import KVAppend, KVCache, lengths_in_a_tensor
from flashsmith.ops.operators import fake_lse, no_lse, parsed_config
from flashsmith.ops.sharding import let_dtensors_know

# These arguments say where a request's keys are, and what is computed.
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
# The names follow the fields of ``KVCache``, without k and v, and of ``KVAppend``.
_OF_CACHE = (
    *("cache_seqlens", "block_table", "cache_batch_idx", "cache_leftpad"),
    *("k_scale", "v_scale"),
)
_OF_NEW = ("k_new", "v_new", "rotary_cos", "rotary_sin", "rotary_interleaved")


def call_decode_operator(
    asked: DecodeOptions, call: DecodeCall, timed: bool
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Calls ``run`` as one operator, for code that traces it."""
    let_dtensors_know(*_ARGUMENTS_OF)
    if timed:
        raise ValueError("benchmark is True; a call that is compiled or exported is not measured")
    if needs_gradient(*call.given):
        call.refuse_gradients()
    q, cache, new, out = call.q, call.cache, call.new, call.out
    check_rows(q, cache)
    cache.check_length(call.n_new)
    left, right = checked_window(asked.window_size)
    scale = asked.softmax_scale
    keywords: dict[str, Any] = {
        **dict(zip(_OF_CACHE, cache[2:], strict=True)),
        "cache_seqlens": lengths_in_a_tensor(cache.seqlens, q),
        "alibi_slopes": call.alibi_slopes,
        "sinks": call.sinks,
        "causal": asked.causal,
        "window_left": left,
        "window_right": right,
        "softcap": checked_cap(asked.softcap),
        "softmax_scale": None if scale is None else check_scale(scale),
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
    # out is positional: torch.compile accepts only contiguous tensors for a keyword of that name.
    o, lse = getattr(torch.ops.flashsmith, name)(q, cache.k, cache.v, *written, **keywords)
    return o if out is None else out, lse if call.with_lse else None, 0.0


# The operators return o, which is empty if ``out`` is given, and the log-sum-exp, which is empty
# unless it is requested. Only those that append write to a cache, because a graph may copy a
# written tensor. No argument is keyword-only, because DTensors in keywords are never redistributed.
_CACHES = ("Tensor k_cache, Tensor v_cache", "Tensor(k!) k_cache, Tensor(v!) v_cache")
_library: Any = torch.library.Library("flashsmith", "FRAGMENT")  # type: ignore[no-untyped-call]
_ARGUMENTS_OF: dict[str, dict[str, Any]] = {}  # the arguments of each operator, with defaults
for _appends, _has_out in product((False, True), repeat=2):
    _name = "decode" + "_append" * _appends + "_out" * _has_out
    _written = ", Tensor(o!) out" * _has_out
    _others = f"{_NEW}, {_ARGUMENTS}" if _appends else _ARGUMENTS
    _library.define(
        f"{_name}(Tensor q, {_CACHES[_appends]}{_written}, {_others}) -> (Tensor, Tensor)"
    )
    _schema = getattr(torch.ops.flashsmith, _name).default._schema
    _ARGUMENTS_OF[_name] = {each.name: each.default_value for each in _schema.arguments}

NAMES = tuple(_ARGUMENTS_OF)


def _given(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an operator's arguments by name; None for arguments of other operators."""
    defaults = _ARGUMENTS_OF[name]
    absent = dict.fromkeys(("out", *_OF_NEW))
    return {**absent, **defaults, **dict(zip(defaults, arguments, strict=False)), **keywords}


def _decode(name: str, *arguments: Any, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the operators' results."""
    given = _given(name, arguments, keywords)
    q, out = given["q"], given["out"]
    new = KVAppend.of(*(given[each] for each in _OF_NEW))
    cache = KVCache(given["k_cache"], given["v_cache"], *(given[each] for each in _OF_CACHE))
    cfg = None if given["config"] is None else parsed_config(given["config"])
    window = given["window_left"], given["window_right"]
    asked = DecodeOptions(
        cfg, given["causal"], window, given["softcap"], given["splits"], given["softmax_scale"]
    )
    weights = given["alibi_slopes"], given["sinks"]
    functions = Functions(given["mod_tensors"], given["score"])
    call = DecodeCall(q, cache, new, out, given["return_lse"], *weights, functions)
    if needs_gradient(*call.given):  # for direct callers of the operator
        call.refuse_gradients()
    o, lse, _ = run(asked, call)
    return o if out is None else q.new_empty(0), no_lse(q) if lse is None else lse


def _fake_decode(name: str, *arguments: Any, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = _given(name, arguments, keywords)
    q, d_v = given["q"], given["v_cache"].shape[-1]
    o = q.new_empty((*q.shape[:-1], d_v) if given["out"] is None else 0)
    return o, fake_lse(q, given["return_lse"])


for _name in _ARGUMENTS_OF:
    for _key in ("CUDA", "CPU"):
        _library.impl(_name, partial(_decode, _name), _key)
    torch.library.register_fake(f"flashsmith::{_name}", partial(_fake_decode, _name), lib=_library)
