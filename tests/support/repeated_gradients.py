"""Makes calls of ``attention`` with gradients, for ``repeated_draws``."""

from __future__ import annotations

from support.repeated_attention import THINGS as OF_ATTENTION
from support.repeated_attention import make
from support.repeated_draws import Thing

__all__ = ["THINGS", "make"]

_NOT_HERE = ("out", "mode")  # these get other values below, which allow gradients
THINGS = {name: thing for name, thing in OF_ATTENTION.items() if name not in _NOT_HERE} | {
    "out": Thing((None,), ("contiguous",)),
    "mode": Thing((None, "deterministic"), ("no_grad",), decides=True),
    "gradient": Thing(
        (("q", "k", "v"), ("q",), ("v",), ("sinks", "bias", "q"), ("k", "bias"), ()),
        (("alibi_slopes",),),
    ),
    "deterministic": Thing((False, True), (1,), decides=True),
}
