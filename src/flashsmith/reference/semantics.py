"""The semantics of attention, apart from its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from flashsmith.reference.dropout import dropout_mask, dropout_scale

Mod = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class Semantics:
    """The keywords of ``flashsmith.attention`` that say what is computed, with the same meaning.

    The diagonal of query i is D(i) = i + seq_len_k - seq_len_q, or i with ``top_left``. Scores are
    q k^T * softmax_scale; then ``score_mod``; then ``softcap``; then ALiBi and ``bias`` are added;
    then the scores of keys that a query does not see become -inf.

    Attributes:
        causal: Query i sees keys up to D(i).
        softmax_scale: None: 1 / sqrt(d_head of q).
        window_size: (left, right): query i sees keys D(i) - left to D(i) + right; -1: no bound.
        softcap: Scores s become softcap * tanh(s / softcap); 0: unchanged.
        alibi_slopes: (heads,) or (batch, heads): slope * |D(i) - j| is subtracted.
        sinks: (heads,): the logits of an additional key whose value is 0.
        bias: (batch, heads, seq_len_q, seq_len_k), a size may be 1 if all share it. For packed
            sequences, the lengths are those of the longest.
        top_left: Whether the diagonal begins at the first key; see above.
        score_mod: f(score, b, h, q_idx, kv_idx), a new score; its arguments are tensors that
            broadcast.
        mask_mod: f(b, h, q_idx, kv_idx), whether that query sees that key.
        dropout_p, rng_state: See ``dropout_mask``; 0: no dropout.
        dropout_from: The sample and head of the mask that the first sample and head of this call
            have.
    """

    causal: bool = False
    softmax_scale: float | None = None
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    top_left: bool = False
    score_mod: Mod | None = None
    mask_mod: Mod | None = None
    dropout_p: float = 0.0
    rng_state: torch.Tensor | None = None
    dropout_from: tuple[int, int] = (0, 0)

    @property
    def keywords(self) -> dict[str, Any]:
        """The fields that do not have their default."""
        values = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return {
            name: value
            for name, value, default in values
            if isinstance(value, torch.Tensor) or value != default
        }

    def part(self, samples: slice, heads: slice) -> Semantics:
        """Returns the semantics of some samples and some heads of q, as if there were no others."""
        slopes, bias = self.alibi_slopes, self.bias
        sample, head = samples.start or 0, heads.start or 0
        if slopes is not None:
            slopes = slopes[samples, heads] if slopes.ndim == 2 else slopes[heads]
        if bias is not None:
            bias = bias[
                samples if bias.shape[0] > 1 else slice(None),
                heads if bias.shape[1] > 1 else slice(None),
            ]
        return replace(
            self,
            alibi_slopes=slopes,
            sinks=None if self.sinks is None else self.sinks[heads],
            bias=bias,
            score_mod=_moved(self.score_mod, sample, head),
            mask_mod=_moved(self.mask_mod, sample, head),
            dropout_from=(self.dropout_from[0] + sample, self.dropout_from[1] + head),
        )

    def sequence(self, index: int, seq_len_q: int, seq_len_k: int) -> Semantics:
        """Returns the semantics of one sequence with these numbers of queries and keys."""
        own = self.part(slice(index, index + 1), slice(None))
        if own.bias is None:
            return own
        n_q, n_k = (
            size if size == 1 else length
            for size, length in zip(own.bias.shape[2:], (seq_len_q, seq_len_k), strict=True)
        )
        return replace(own, bias=own.bias[:, :, :n_q, :n_k])

    def visible(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Returns which keys each query sees, for scores of a shape (batch, heads, seq_len_q,
        seq_len_k); the result broadcasts to it."""
        left, right = self.window_size
        if self.causal:
            right = 0 if right < 0 else min(right, 0)
        from_diagonal = self._from_diagonal(shape, device)
        visible = torch.ones_like(from_diagonal, dtype=torch.bool)
        if left >= 0:
            visible &= from_diagonal >= -left
        if right >= 0:
            visible &= from_diagonal <= right
        if self.mask_mod is not None:
            visible = visible & self.mask_mod(*_indices(shape, device))
        return visible

    def dropped(self, p: torch.Tensor) -> torch.Tensor:
        """Applies dropout to (batch, heads, seq_len_q, seq_len_k): sets the elements of dropped
        weights to 0, and multiplies the others by the scale that makes up for them."""
        if self.dropout_p == 0 or self.rng_state is None:
            return p
        kept = dropout_mask(self.rng_state, self.dropout_p, p.shape, first=self.dropout_from)
        return p * kept.to(p.device, p.dtype) * dropout_scale(self.dropout_p)

    def modified(self, s: torch.Tensor) -> torch.Tensor:
        """Returns the scores as ``score_mod`` changes them."""
        if self.score_mod is None:
            return s
        return self.score_mod(s, *_indices(s.shape, s.device))

    def addends(self, shape: torch.Size, device: torch.device) -> list[torch.Tensor]:
        """Returns the tensors that are added to scores of a shape: ALiBi's bias, exact in float32
        up to one rounding, and ``bias``."""
        found = []
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes.double()[..., None, None]
            found.append(-slopes * self._from_diagonal(shape, device).abs())
        if self.bias is not None:
            found.append(self.bias.double())
        return found

    def _from_diagonal(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Returns j - D(i), (seq_len_q, seq_len_k)."""
        seq_len_q, seq_len_k = shape[-2:]
        _, _, rows, keys = _indices(shape, device)
        return keys - rows - (0 if self.top_left else seq_len_k - seq_len_q)


def _indices(shape: torch.Size, device: torch.device) -> list[torch.Tensor]:
    """Returns b, h, q_idx and kv_idx, each along one dimension, with size 1 in the others."""
    places = [torch.arange(size, device=device) for size in shape]
    return [p.view(-1, *[1] * (len(shape) - 1 - dim)) for dim, p in enumerate(places)]


def _moved(mod: Mod | None, sample: int, head: int) -> Mod | None:
    """Returns ``mod`` for tensors that begin at this sample and head of larger ones."""
    if mod is None or sample == head == 0:
        return mod

    def moved(*arguments: torch.Tensor) -> torch.Tensor:
        *score, b, h, row, key = arguments
        return mod(*score, b + sample, h + head, row, key)

    return moved
