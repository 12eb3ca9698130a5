"""S_dmask: the weights of a call, which FlashAttention's tests read under dropout."""

from __future__ import annotations

import torch

from flashsmith.ops.spec import AttentionSpec
from flashsmith.reference import Packing, Semantics, dropout_mask
from flashsmith.reference.scores import scores, weights


def signed_weights(q: torch.Tensor, k: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """Computes the softmax weights in plain torch; a minus sign marks a dropped weight.

    It allocates several tensors of all scores, so it is for inspection. FlashAttention's S_dmask is
    not normalised: its denominators are the sums that its kernel had at each block.

    Args:
        q, k: See ``flashsmith.attention``.
        spec: The specification, with dropout_p above 0 and rng_state.

    Returns:
        (batch, nheads, seqlen_q, seqlen_k), of q's dtype; for packed sequences with the max
        lengths, padded with zeros.
    """
    q, k = q.detach(), k.detach()
    packing = Packing(spec.cu_seqlens_q, spec.cu_seqlens_k, seqused_k=spec.seqused_k)
    meaning = Semantics(
        spec.causal, spec.softmax_scale, spec.window_size, spec.softcap, spec.alibi_slopes,
        spec.sinks, dropout_p=spec.dropout_p, rng_state=spec.rng_state,
    )  # fmt: skip
    longest_q = q.shape[1] if spec.max_seqlen_q is None else spec.max_seqlen_q
    longest_k = k.shape[1] if spec.max_seqlen_k is None else spec.max_seqlen_k
    found = []
    for sequence in packing.sequences(q, k, meaning):
        of_q, of_k, own = sequence.of_q(q), sequence.of_k(k), sequence.semantics
        p = weights(scores(of_q, of_k, own, torch.float32), own)
        found.append(_signed(p, own).to(q.dtype))
    whole = q.new_zeros(len(found), q.shape[-2], longest_q, longest_k)
    for entry, p in zip(whole, found, strict=True):
        entry[:, : p.shape[2], : p.shape[3]] = p[0]
    return whole


def no_weights(q: torch.Tensor) -> torch.Tensor:
    """Returns the empty tensor that stands for the weights without dropout."""
    return q.new_empty(0)


def _signed(p: torch.Tensor, meaning: Semantics) -> torch.Tensor:
    if meaning.rng_state is None:
        return p
    shape, first = p.shape, meaning.dropout_from
    kept = dropout_mask(meaning.rng_state, meaning.dropout_p, shape, first=first)
    return torch.where(kept, p, -p)
