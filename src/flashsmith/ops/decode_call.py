"""One call of ``decode``: its tensors and its options."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.ops.checks import checked_window, refuse_gradients
from flashsmith.ops.decode_checks import check_decode
from flashsmith.ops.functions import NO_FUNCTIONS, Functions
from flashsmith.ops.gate import CAPTURED
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.runtime import DecodeTensors


class DecodeOptions(NamedTuple):
    """The options of a call."""

    config: DecodeKernelConfig | None
    causal: bool
    window_size: Any
    softcap: Any
    splits: Any
    softmax_scale: Any = None

    @property
    def window_left(self) -> int:
        return checked_window(self.window_size)[0]

    def turns_in_a_row(self, rows: int) -> bool:
        """Returns whether query i has the rotary angle of new key i, as in FlashAttention: it
        depends on the mask that the caller passes, whether or not that hides a key; a side of all
        ``rows`` is no window."""
        return self.causal or any(0 <= side < rows for side in checked_window(self.window_size))


class DecodeCall(NamedTuple):
    """The tensors of a call."""

    q: torch.Tensor
    cache: KVCache
    new: KVAppend | None
    out: torch.Tensor | None
    with_lse: bool
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    functions: Functions = NO_FUNCTIONS

    @property
    def given(self) -> list[Any]:
        """The call's tensors, and objects that were passed in place of some."""
        q, cache, new, out, _, alibi_slopes, sinks, functions = self
        optional = [*cache, out, alibi_slopes, sinks]
        if type(cache.seqlens) is int:
            optional[2] = None
        if new is not None:
            optional += new[:4]
        if functions.mod_tensors:
            optional += functions.mod_tensors
        return [q, *[t for t in optional if t is not None]]

    @property
    def named(self) -> dict[str, Any]:
        """The call's tensors by the names of ``decode``'s arguments; captured tensors are a
        list."""
        q, cache, new, out, _, alibi_slopes, sinks, functions = self
        k, v, lengths, table, batch_idx, leftpad, k_scale, v_scale = cache
        optional = {
            "cache_seqlens": None if type(lengths) in (int, torch.SymInt) else lengths,
            "block_table": table, "cache_batch_idx": batch_idx, "cache_leftpad": leftpad,
            "k_scale": k_scale, "v_scale": v_scale, "alibi_slopes": alibi_slopes, "sinks": sinks,
            "out": out, CAPTURED: functions.mod_tensors,
        }  # fmt: skip
        if new is not None:
            names = ("k_new", "v_new", "rotary_cos", "rotary_sin")
            optional |= dict(zip(names, new[:4], strict=True))
        given = {name: t for name, t in optional.items() if t is not None}
        return {"q": q, "k_cache": k, "v_cache": v, **given}

    def refuse_gradients(self) -> None:
        """Raises NotImplementedError for a tensor that requires a gradient."""
        refuse_gradients(**self.named)

    def check(self) -> None:
        """Raises TypeError or ValueError if no kernel supports the tensors."""
        check_decode(self.q, self.cache, self.new, self.out, self.alibi_slopes, self.sinks)

    @property
    def is_ready(self) -> bool:
        """Whether the library's checks at every call suffice."""
        return self.cache.is_ready and (self.new is None or self.cache.seqlens is not None)

    def told(self, asked: DecodeOptions) -> tuple[Any, ...]:
        """Returns the arguments of ``run_as_before``."""
        q, cache, new, out, with_lse, alibi_slopes, sinks, functions = self
        others = alibi_slopes, sinks, functions.score, functions.mod_tensors
        return asked.config, q, out, with_lse, cache, asked[1:], others, new or ()

    @property
    def n_new(self) -> int:
        return 0 if self.new is None else self.new.k.shape[1]

    def tensors(self, o: torch.Tensor, lse: torch.Tensor | None) -> DecodeTensors:
        k, v, _, table, batch_idx, leftpad, k_scale, v_scale = self.cache
        return DecodeTensors(self.q, k, v, o, lse, table, batch_idx, leftpad, k_scale, v_scale)
