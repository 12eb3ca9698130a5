"""The operators' FLOPs for torch's FlopCounterMode: all matrix products, whatever a mask hides, as
for torch's own attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flashsmith.ops.decode_operator import NAMES

_Formula = Callable[[dict[str, Any]], int]


def register() -> None:
    """Registers flashsmith's operators with torch's FlopCounterMode. Importing that calls this, so
    this module does not import it before."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    formulas: dict[str, _Formula] = {
        "attention_forward": forward_flops,
        "attention_forward_out": forward_flops,
        "attention_backward": backward_flops,
        **dict.fromkeys(NAMES, decode_flops),
    }
    for name, formula in formulas.items():
        operator = getattr(torch.ops.flashsmith, name)
        register_flop_formula(operator, get_raw=True)(_of_arguments(operator, formula))
    operators = [getattr(torch.ops.flashsmith, name) for name in formulas]
    _tell_counters({each: flop_registry[each] for each in operators})


def _tell_counters(registered: dict[Any, Any]) -> None:
    """Tells counters that count already of operators: each has a copy of what was registered when
    it was made."""
    for mode in _get_current_dispatch_mode_stack():
        known = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if isinstance(known, dict):
            known.update(registered)


def _of_arguments(operator: Any, formula: _Formula) -> Callable[..., int]:
    defaults = {a.name: a.default_value for a in operator.default._schema.arguments}

    def flops(*arguments: Any, out_val: Any = None, **keywords: Any) -> int:
        return formula({**defaults, **dict(zip(defaults, arguments, strict=False)), **keywords})

    return flops


def forward_flops(given: dict[str, Any]) -> int:
    """Returns the FLOPs of q k^T and of p v."""
    return _products(given, given["q"].shape[-1] + given["v"].shape[-1])


def backward_flops(given: dict[str, Any]) -> int:
    """Returns the FLOPs of q k^T again, of do v^T, and of the gradients by q, k and v."""
    return _products(given, 3 * given["q"].shape[-1] + 2 * given["v"].shape[-1])


def decode_flops(given: dict[str, Any]) -> int:
    """Returns the FLOPs of ``decode`` over the requests' keys: new keys count, padding does not."""
    q, k = given["q"], given["k_cache"]
    table, new = given["block_table"], given.get("k_new")
    rows = k.shape[1] * (1 if table is None else table.shape[1])
    lengths = _numbers(given["cache_seqlens"], q.shape[0], rows)
    if new is not None and given["cache_seqlens"] is not None:
        lengths = [min(n + new.shape[1], rows) for n in lengths]
    pads = _numbers(given["cache_leftpad"], q.shape[0], 0)
    keys = sum(max(n - pad, 0) for n, pad in zip(lengths, pads, strict=True))
    return int(2 * q.shape[2] * q.shape[1] * keys * (q.shape[3] + given["v_cache"].shape[3]))


def _products(given: dict[str, Any], elements: int) -> int:
    """Returns the FLOPs of products whose matrices have a row a query and a column a key;
    ``elements`` is the number of elements of d_head and d_v that each score multiplies."""
    scores = sum(
        n_q * n_k for n_q, n_k in zip(_lengths(given, "q"), _lengths(given, "k"), strict=True)
    )
    return int(2 * given["q"].shape[-2] * scores * elements)


def _lengths(given: dict[str, Any], side: str) -> Sequence[int]:
    """Returns the rows of each sequence if they are known, else their upper bound."""
    t, offsets = given[side], given[f"cu_seqlens_{side}"]
    if offsets is None:
        lengths: Sequence[int] = [t.shape[1]] * t.shape[0]
    else:
        maximum = given[f"max_seqlen_{side}"]
        maximum = t.shape[0] if maximum is None else maximum
        lengths = _numbers(offsets, offsets.shape[0] - 1, maximum, lambda known: known.diff())
    used = given[f"seqused_{side}"]
    return lengths if used is None else _numbers(used, len(lengths), max(lengths, default=0))


def _numbers(
    t: torch.Tensor | None,
    n: int,
    otherwise: int,
    of: Callable[[torch.Tensor], torch.Tensor] = lambda known: known,
) -> Sequence[int]:
    """Returns the numbers in a tensor; for None, and for a tensor without data in a graph,
    ``otherwise``."""
    if t is None or type(t) is not torch.Tensor or t.is_meta:
        return [otherwise] * n
    found: list[int] = of(t).tolist()
    return found
