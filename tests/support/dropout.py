"""Calls that show which weights kernels drop: all weights of a query are equal, and each column of
the result is one weight's."""

from __future__ import annotations

from typing import Any

import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, ForwardKernelConfig
from flashsmith.reference import dropout_scale

STATE = torch.tensor([2**40 + 17, -3])
P = 0.3
BATCH, HEADS, HEADS_KV = 2, 4, 2


def show_rows(into: torch.Tensor, first: int) -> int:
    """Makes row first + j of each head a one in column j alone; returns the number of ones."""
    n = min(into.shape[-1], into.shape[1] - first)
    into[:] = 0
    into[:, first : first + n, :, :n] = torch.eye(n, device=into.device)[:, None]
    return n


def counted(t: torch.Tensor, n_keys: int) -> torch.Tensor:
    """Returns how many weights each element is a sum of: 1 / n_keys, scaled up for dropout."""
    return (t.double() * n_keys / dropout_scale(P)).round().int()


def kept_by(cfg: ForwardKernelConfig, n_q: int, n_k: int, device: str = "cpu") -> torch.Tensor:
    """Returns a mask of the weights that a forward kernel keeps, (BATCH, HEADS, n_q, n_k)."""
    of_q, of_k = (BATCH, n_q, HEADS, cfg.d_head), (BATCH, n_k, HEADS_KV, cfg.d_head)
    dtype = cfg.dtype.to_torch_dtype()
    q, k, v = (torch.zeros(shape, dtype=dtype, device=device) for shape in (of_q, of_k, of_k))
    parts = []
    for first in range(0, n_k, cfg.d_head):
        n = show_rows(v, first)
        o: Any = flashsmith.forward(cfg, q, k, v, dropout_p=P, rng_state=STATE.to(device))
        parts.append(counted(o.transpose(1, 2), n_k)[..., :n])
    found = torch.cat(parts, -1)
    assert ((found == 0) | (found == 1)).all()
    return found == 1


class Alike:
    """A call of a backward whose weights are all equal."""

    def __init__(self, cfg: BackwardKernelConfig, n_q: int, n_k: int, device: str = "cpu") -> None:
        self.cfg, self.n_k = cfg, n_k
        like = torch.zeros(0, dtype=cfg.dtype.to_torch_dtype(), device=device)
        self.q, self.do = like.new_zeros(2, BATCH, n_q, HEADS, cfg.d_head)
        self.k, self.v = like.new_zeros(2, BATCH, n_k, HEADS_KV, cfg.d_head)
        self.lse = torch.full((BATCH, HEADS, n_q), n_k, device=device).log()

    def have_gradients(self) -> None:
        """Makes the gradient of each weight 1."""
        self.v[..., 0] = self.do[..., 0] = 1

    def count(self, name: str, into: torch.Tensor) -> torch.Tensor:
        """Returns the gradient `name`, with each row of a tensor in a separate column, by several
        calls: (batch, heads, rows of the gradient, rows of the tensor)."""
        parts = []
        for first in range(0, into.shape[1], self.cfg.d_head):
            n = show_rows(into, first)
            found = getattr(self._gradients(), name).transpose(1, 2)
            parts.append(counted(found, self.n_k)[..., :n])
        into[:] = 0
        return torch.cat(parts, -1)

    def _gradients(self) -> Any:
        return flashsmith.backward(
            self.cfg, self.do, self.q, self.k, self.v, torch.zeros_like(self.do), self.lse,
            softmax_scale=1.0, dropout_p=P, rng_state=STATE.to(self.q.device),
        )  # fmt: skip


def masks_differ(cfg: BackwardKernelConfig, kept: torch.Tensor, device: str = "cpu") -> list[str]:
    """Lists the gradients whose dropout mask is not ``kept``, (BATCH, HEADS, n_q, n_k)."""
    n_q, n_k = kept.shape[2:]
    call, kept = Alike(cfg, n_q, n_k, device), kept.int()
    of_keys = kept.view(BATCH, HEADS_KV, -1, n_q, n_k).sum(2).mT
    found = {"v": (call.count("v", call.do), of_keys)}
    call.have_gradients()
    found["q"] = call.count("q", call.k), kept
    found["k"] = call.count("k", call.q), of_keys
    return [name for name, (own, right) in found.items() if not torch.equal(own, right)]
