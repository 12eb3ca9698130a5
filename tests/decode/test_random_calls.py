"""Random calls of ``decode`` with new keys, angles, windows, padding, pages and scales, against a
float64 reference."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.reference import Semantics
from support.decoding import Requests, assert_near_truth
from support.fp8_caches import FP8, LARGEST
from support.new_keys import angles, turned

D_HEAD, HALVES = 64, (8, 16, 32)


class Drawn:
    """A call, drawn from a seed. Rows outside the requests and unused pages hold NaN."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        torch.manual_seed(seed)
        self.batch, self.n_q = rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 3, 5, 17))
        self.heads = rng.choice(((2, 2), (4, 2), (6, 1)))
        self.n_new = rng.choice((None, 0, 1, self.n_q, self.n_q, 7))
        n_new = self.n_new or 0
        self.page_size = rng.choice((None, None, 1, 3, 8, 16))
        pages = -(-(rng.randint(1, 70) + n_new) // (self.page_size or 1))
        self.rows = pages * (self.page_size or 1)
        room = self.rows - n_new
        self.used = [rng.choice((0, room, rng.randint(0, room))) for _ in range(self.batch)]
        self.pads = [0 if rng.random() < 0.7 else rng.randint(0, n) for n in self.used]
        self.causal = rng.random() < 0.4
        self.window = self._side(self.rows), self._side(self.n_q)
        self.fp8 = rng.random() < 0.25
        self.half = rng.choice((None, *HALVES)) if self.n_new is not None else None
        self.pairs = rng.random() < 0.5
        self.scale = rng.choice((None, None, 0.05, 0.4))

    def _side(self, reach: int) -> int:
        near = [max(reach + by, 0) for by in (-3, -2, -1, 0, 1)]
        return self.rng.choice((-1, -1, -1, 0, self.rng.randint(0, 80), *near))

    def __repr__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "rng"})

    @property
    def turns_in_a_row(self) -> bool:
        return self.causal or any(0 <= side < self.rows for side in self.window)

    def run(self) -> None:
        dtype = torch.bfloat16
        n_new = self.n_new or 0
        shape = (self.batch, self.rows, self.heads[1], D_HEAD)
        q = torch.randn(self.batch, self.n_q, self.heads[0], D_HEAD).to(dtype)
        k, v = torch.randn(2, *shape).to(dtype)
        new = torch.randn(2, self.batch, n_new, self.heads[1], D_HEAD).to(dtype)
        scales = (torch.rand(2, self.heads[1]) + 0.5).div(64) if self.fp8 else None
        if scales is not None:
            k, v = (quantised(t, scale) for t, scale in zip((k, v), scales, strict=True))
        given: dict[str, Any] = {"causal": self.causal, "window_size": self.window}
        expected_q, expected_new = q, list(new)
        if self.half is not None:
            cos, sin = angles(self.rows, self.half)
            first = torch.tensor(self.used)[:, None]
            along = torch.arange(self.n_q) * self.turns_in_a_row
            places = (first + along).clamp(max=self.rows - 1)
            expected_q = turned(q, cos, sin, places, self.pairs)
            places = first + torch.arange(n_new)
            expected_new[0] = turned(new[0], cos, sin, places, self.pairs)
            given |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": self.pairs}
        if scales is not None:
            given |= {"k_scale": scales[0], "v_scale": scales[1]}
            expected_new = [
                quantised(t, scale) for t, scale in zip(expected_new, scales, strict=True)
            ]
        whole = [self._with(t, of_new) for t, of_new in zip((k, v), expected_new, strict=True)]
        placed = self._placed(k, v)
        before = {name: placed[name].clone() for name in ("k_cache", "v_cache")}
        if self.n_new is not None:
            given |= {"k_new": new[0], "v_new": new[1]}
        found = flashsmith.decode(
            None, q, **placed, softmax_scale=self.scale, return_lse=True, **given
        )
        window = self.window[0], 0 if self.causal else self.window[1]
        meant = Semantics(causal=self.causal, window_size=window, softmax_scale=self.scale)
        asked = self._requests(expected_q, whole, scales)
        assert_near_truth(found, asked, meant)  # type: ignore[arg-type]
        self._assert_written(placed, before, expected_new)

    def _with(self, t: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Returns the slots, with the new rows behind the used rows."""
        whole = t.clone()
        for request, n in enumerate(self.used):
            whole[request, n : n + new.shape[1]] = new[request]
        return whole

    def _requests(
        self, q: torch.Tensor, whole: list[torch.Tensor], scales: torch.Tensor | None
    ) -> Requests:
        """Returns the keys and values of each request, from the first key on."""
        n_new = self.n_new or 0
        lengths = [n + n_new - pad for n, pad in zip(self.used, self.pads, strict=True)]
        of_scales = [1.0, 1.0] if scales is None else [s.double()[:, None] for s in scales]
        k, v = (
            torch.full((self.batch, max(1, *lengths), *t.shape[2:]), math.nan).double()
            for t in whole
        )
        for request, (pad, n) in enumerate(zip(self.pads, lengths, strict=True)):
            for to, t, scale in zip((k, v), whole, of_scales, strict=True):
                to[request, :n] = t[request, pad : pad + n].double() * scale
        if scales is None:
            k, v = k.to(q.dtype), v.to(q.dtype)
        return Requests(q, k, v, tuple(lengths))

    def _placed(self, k: torch.Tensor, v: torch.Tensor) -> dict[str, Any]:
        """Returns the KV cache, with NaN outside the used rows, and the tensors that locate
        these."""
        where: dict[str, Any] = {"cache_seqlens": ints(*self.used)}
        if any(self.pads):
            where["cache_leftpad"] = ints(*self.pads)
        for request, (pad, n) in enumerate(zip(self.pads, self.used, strict=True)):
            for t in (k, v):
                t[request, :pad] = t[request, n:] = math.nan
        if self.page_size is None and self.rng.random() < 0.5:
            where["cache_batch_idx"] = ints(*self.rng.sample(range(self.batch + 2), self.batch))
        if self.page_size is not None:
            pages = self.rows // self.page_size
            order = self.rng.sample(range(self.batch * pages + 2), self.batch * pages)
            where["block_table"] = ints(*order).view(self.batch, pages)
        self.places = self._places(where)
        size = self.page_size or self.rows
        count = self.batch + 2
        if self.page_size is not None:
            count = self.batch * pages + 2
        elif "cache_batch_idx" not in where:
            count = self.batch
        for name, t in (("k_cache", k), ("v_cache", v)):
            where[name] = torch.full((count, size, *t.shape[2:]), math.nan).to(t.dtype)
            where[name][self.places] = t
        return where

    def _places(self, where: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the slot or page of each row of a request, and the row's index there."""
        rows = torch.arange(self.rows)[None].expand(self.batch, -1)
        if self.page_size is not None:
            table = where["block_table"].long()
            return table[:, rows[0] // self.page_size], rows % self.page_size
        entries = where.get("cache_batch_idx", torch.arange(self.batch)).long()
        return entries[:, None].expand_as(rows), rows

    def _assert_written(
        self, placed: dict[str, Any], before: dict[str, torch.Tensor], new: list[torch.Tensor]
    ) -> None:
        """Checks that the new rows were written, and nothing else."""
        for name, of_new in zip(("k_cache", "v_cache"), new, strict=True):
            expected = before[name].float()
            for request, n in enumerate(self.used):
                entries, rows = (t[request, n : n + of_new.shape[1]] for t in self.places)
                expected[entries, rows] = of_new[request].float()
            # A rotated number may round differently, to FP8 as well.
            close = 0.13 if self.fp8 else 2**-7
            torch.testing.assert_close(
                placed[name].float(), expected, rtol=close, atol=close, equal_nan=True
            )


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def quantised(t: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns FP8 numbers as an append computes them, from 16-bit numbers."""
    return (t.float() / scale[:, None]).clamp(-LARGEST, LARGEST).to(FP8)


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_calls_are_right(start: int) -> None:
    for seed in range(start, start + 10):
        drawn = Drawn(seed)
        try:
            drawn.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {drawn}") from error
