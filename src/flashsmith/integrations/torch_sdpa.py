"""flashsmith as the flash backend of torch's own scaled_dot_product_attention and varlen_attn.

from flashsmith.integrations import torch_sdpa
torch_sdpa.register()
torch.nn.attention.activate_flash_attention_impl("flashsmith")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashsmith.errors import FlashsmithError
from flashsmith.integrations.heads import attend_any_head, readable
from flashsmith.integrations.pages import attend_pages
from flashsmith.ops.backward import run_backward
from flashsmith.ops.checks import needs_gradient
from flashsmith.ops.dropout import dropout_keywords
from flashsmith.ops.layout import with_dense_rows
from flashsmith.ops.spec import AttentionSpec
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime import GradientTensors

NAME = "flashsmith"

# The elements are (out, lse, rng_state, offset, debug_mask).
_Forward = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
# The elements are (grad_query, grad_key, grad_value).
_Backward = tuple[torch.Tensor, ...]


def register() -> None:
    """Registers flashsmith for torch.nn.attention.activate_flash_attention_impl.

    Raises:
        FlashsmithError: torch is too old to register implementations.
    """
    try:
        from torch.nn.attention import register_flash_attention_impl
    except ImportError:
        raise FlashsmithError(
            f"torch {torch.__version__} has no register_flash_attention_impl; call "
            "flashsmith.scaled_dot_product_attention, or install a newer torch"
        ) from None
    register_flash_attention_impl(NAME, register_fn=override)


class Override:
    """Overrides torch's operators with flashsmith's until ``remove``."""

    def __init__(self, key: str) -> None:
        self._library: Any = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
        for name, function in _OPERATORS.items():
            if hasattr(torch.ops.aten, name):  # not every torch has the last one
                self._library.impl(name, function, key, allow_override=True)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Restores torch's own kernels."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


def override(key: str = "CUDA") -> Override:
    """Makes torch's flash operators call flashsmith for tensors of a dispatch key."""
    return Override(key)


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Computes aten::_scaled_dot_product_flash_attention: (batch, heads, seq_len, d_head), causal
    from the top left. The result has query's memory layout, which torch.compile relies on."""
    _refuse(return_debug_mask)
    out = torch.empty_like(query)
    dropout = _dropout(query, dropout_p)
    _, lse = _attend(
        *(t.transpose(1, 2) for t in (query, key, value)),
        causal=is_causal,
        top_left=is_causal,
        softmax_scale=scale,
        out=out.transpose(1, 2),
        **dropout,
    )
    return out, lse, None, None, query.shape[2], key.shape[2], *_of_dropout(query, **dropout)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    out: torch.Tensor | None = None,
    **options: Any,
) -> _Forward:
    """Computes aten::_flash_attention_forward: (batch, seq_len, heads, d_head) or packed, causal
    from the bottom right."""
    _refuse(return_debug_mask)
    dropout = _dropout(query, dropout_p)
    if needs_gradient(query, key, value):
        _refuse_unknown_to_backward(**options)
    o, lse = _attend(
        query,
        key,
        value,
        causal=is_causal,
        out=out,
        **_packing(cum_seq_q, cum_seq_k, max_q, max_k),
        **_options(**options),
        **dropout,
    )
    return o, lse, *_of_dropout(query, **dropout)


def _forward_in_place(out: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """Computes aten::_flash_attention_forward_no_dropout_inplace: ``_forward`` into ``out``."""
    return _forward(*arguments, out=out, **options)[1]


def _sdpa_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: torch.Tensor,
    _offset: torch.Tensor | None = None,
    scale: float | None = None,
) -> _Backward:
    """Computes aten::_scaled_dot_product_flash_attention_backward, the backward of ``_sdpa``.
    ``out`` and ``logsumexp`` may be combined from several calls, as in context_parallel."""
    gradients = tuple(torch.empty_like(t) for t in (query, key, value))
    _differentiate(
        [t.transpose(1, 2) for t in (grad_out, query, key, value, out)],
        logsumexp,
        [t.transpose(1, 2) for t in gradients],
        causal=is_causal,
        top_left=is_causal,
        softmax_scale=scale,
        **_dropout(query, dropout_p, rng_state),
    )
    return gradients


def _backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: torch.Tensor,
    _offset: torch.Tensor | None = None,
    **options: Any,
) -> _Backward:
    """Computes aten::_flash_attention_backward, the backward of ``_forward``. Rows outside all
    sequences are 0."""
    packing = _packing(cum_seq_q, cum_seq_k, max_q, max_k)
    make = torch.zeros_like if packing else torch.empty_like
    gradients = tuple(make(t) for t in (query, key, value))
    _differentiate(
        (grad_out, query, key, value, out), logsumexp, gradients,
        causal=is_causal, **packing, **_options(**options),
        **_dropout(query, dropout_p, rng_state),
    )  # fmt: skip
    return gradients


_OPERATORS = {
    "_scaled_dot_product_flash_attention": _sdpa,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
    "_flash_attention_forward_no_dropout_inplace": _forward_in_place,
}


def _packing(
    cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int
) -> dict[str, Any]:
    """Returns the keywords of packed sequences; torch passes max lengths without offsets, too."""
    found: dict[str, Any] = {}
    if cum_seq_q is not None:
        found |= {"cu_seqlens_q": with_dense_rows(cum_seq_q), "max_seqlen_q": max_q}
    if cum_seq_k is not None:
        found |= {"cu_seqlens_k": with_dense_rows(cum_seq_k), "max_seqlen_k": max_k}
    return found


def _options(
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> dict[str, Any]:
    if num_splits not in (None, 0, 1):
        raise NotImplementedError(f"num_splits is {num_splits}; only 0 and 1 are supported yet")
    window = (-1 if side is None else side for side in (window_size_left, window_size_right))
    return {
        "softmax_scale": scale,
        "window_size": tuple(window),
        "seqused_k": None if seqused_k is None else with_dense_rows(seqused_k),
        "alibi_slopes": alibi_slopes,
        **({} if block_table is None else {"block_table": block_table, "splits": num_splits or 0}),
    }


def _dropout(
    query: torch.Tensor, dropout_p: float, rng_state: torch.Tensor | None = None
) -> dict[str, Any]:
    """Returns the keywords of dropout; torch's states are unsigned."""
    if not check_dropout(dropout_p):
        return {}
    state = None if rng_state is None else rng_state.view(torch.int64)
    return dropout_keywords(query, dropout_p, state)


def _refuse(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise NotImplementedError("return_debug_mask is True; only False is supported")


def _refuse_unknown_to_backward(**options: Any) -> None:
    """Raises for arguments that torch does not pass to its backward operator."""
    for name in ("alibi_slopes", "seqused_k", "block_table"):
        if options.get(name) is not None:
            raise NotImplementedError(
                f"{name} is given and a gradient is needed; torch's operator computes none with "
                f"{name}: call flashsmith.attention, or under torch.no_grad()"
            )


@torch.no_grad()
def _attend(*tensors: torch.Tensor, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention without autograd: torch's operators have separate backward operators."""
    attend: Any = attend_pages if "block_table" in keywords else attend_any_head
    result = attend(*tensors, return_lse=True, **keywords)
    assert isinstance(result, tuple)
    return result


def _differentiate(
    tensors: Sequence[torch.Tensor],
    lse: torch.Tensor,
    into: Sequence[torch.Tensor],
    *,
    causal: bool,
    softmax_scale: float | None,
    **semantics: Any,
) -> None:
    """Computes the gradients by query, key and value into ``into``.

    Args:
        tensors: grad_out, query, key, value and out: (batch, seq_len, heads, d_head) or packed.
    """
    grad_out, query, key, value, out = map(readable, tensors)
    found = GradientTensors(query, key, value, out, lse.contiguous(), grad_out, *into)
    run_backward(found, AttentionSpec(causal, softmax_scale, **semantics))


def _of_dropout(
    query: torch.Tensor, dropout_p: float = 0.0, rng_state: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns rng_state, an unused offset, and an empty debug_mask."""
    unused = query.new_empty((), dtype=torch.uint64), query.new_empty(0)
    if rng_state is None:
        return query.new_empty(2, dtype=torch.uint64), *unused
    return rng_state.view(torch.uint64), *unused
