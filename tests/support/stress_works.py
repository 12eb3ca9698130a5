"""Calls of all kinds whose results have the same bits at every run, for tests of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.dtype import DType
from flashsmith.ops import decode_calls
from flashsmith.selection.choose import forget_calls

Call = Callable[[], tuple[torch.Tensor, ...]]
_BF16 = torch.bfloat16


@dataclass(frozen=True)
class Work:
    """make: Returns a call that writes to its own tensors, on the current stream, and reads shared
    ones."""

    name: str
    make: Callable[[], Call]
    in_graphs: bool = True

    def counted(self, call: Call) -> tuple[tuple[torch.Tensor, ...], int]:
        """Returns a call's results, and the number of launches in decode's plan of it, or 1 without
        a plan."""
        forget_calls()
        found = call()
        plans = [each.call._scratch._plan for each in decode_calls._choices.values()]
        return found, sum(len(plan.launches) for plan in plans) or 1


class Maker:
    """Makes tensors and works on a device. On the emulator, shapes are small."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_small = device.type == "cpu"
        self._generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(_BF16).to(self.device)

    def ints(self, *values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def size(self, on_gpu: int, on_emulator: int) -> int:
        return on_emulator if self.is_small else on_gpu

    def decode(
        self, name: str, batch: int, rows: int, heads: tuple[int, int], d: int, **keywords: Any
    ) -> Work:
        """Returns a decode whose requests fill less and less of their rows."""
        n_q = keywords.pop("queries", 1)
        q = self.normal(batch, n_q, heads[0], d)
        k, v = (self.normal(batch, rows, heads[1], d) for _ in range(2))
        lengths = self.ints(*(rows - i * (rows // (2 * batch)) for i in range(batch)))

        def call() -> tuple[torch.Tensor, ...]:
            given = {"cache_seqlens": lengths, "return_lse": True, **keywords}
            return tuple(flashsmith.decode(None, q, k, v, **given))

        return Work(f"decode {name}, {batch} x {rows} of {heads[0]}/{heads[1]} d {d}", lambda: call)

    def decodes_alike(self, n: int) -> list[Work]:
        """Returns calls of two launches, ``n`` of each, that differ in their numbers alone, so that
        a partial result is wrong if another call's combine reads it."""
        works = []
        for i in range(n):
            works += [
                self.decode(f"long {i}", 1, self.size(32768, 300), (32, 8), 128),
                self.decode(f"of one head {i}", 1, self.size(8192, 250), (8, 1), 128),
                self.decode(f"of two {i}", 2, self.size(30000, 200), (16, 2), 64),
            ]
        return works

    def pages(self) -> Work:
        batch, size, pages = 4, 16, self.size(60, 6)
        q = self.normal(batch, 2, 8, 128)
        k, v = (self.normal(batch * pages, size, 2, 128) for _ in range(2))
        table = torch.randperm(batch * pages, generator=self._generator).int().to(self.device)
        table = table.view(batch, pages)
        lengths = self.ints(*(size * pages - 7 * i for i in range(batch)))

        def call() -> tuple[torch.Tensor, ...]:
            given = {"cache_seqlens": lengths, "block_table": table, "causal": True}
            return (flashsmith.decode(None, q, k, v, **given),)  # type: ignore[return-value]

        return Work("decode over pages", lambda: call)

    def append(self) -> Work:
        """Returns a call that appends the same keys each time, to its own cache."""
        batch, rows, n_new = 3, self.size(9000, 60), 2
        q = self.normal(batch, n_new, 8, 128)
        k, v = (self.normal(batch, rows, 2, 128) for _ in range(2))
        new = [self.normal(batch, n_new, 2, 128) for _ in range(2)]
        cos, sin = (self.normal(rows, 32) for _ in range(2))
        used = self.ints(*(rows - n_new - 11 * i for i in range(batch)))
        places = used.long()[:, None] + torch.arange(n_new, device=self.device)
        requests = torch.arange(batch, device=self.device)[:, None]

        def make() -> Call:
            own_k, own_v = k.clone(), v.clone()

            def call() -> tuple[torch.Tensor, ...]:
                o = flashsmith.decode(
                    None, q, own_k, own_v, cache_seqlens=used, k_new=new[0], v_new=new[1],
                    rotary_cos=cos, rotary_sin=sin, causal=True,
                )  # fmt: skip
                assert isinstance(o, torch.Tensor)
                return o, own_k[requests, places], own_v[requests, places]

            return call

        return Work("decode that appends", make)

    def with_function(self) -> Work:
        rows = self.size(3000, 40)
        q, k, v = (self.normal(2, n, 4, 64) for n in (1, rows, rows))
        table = torch.rand(rows, generator=self._generator).to(self.device)

        def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score * table[kv_idx]

        def call() -> tuple[torch.Tensor, ...]:
            return (flashsmith.decode(None, q, k, v, score_mod=mod),)  # type: ignore[return-value]

        return Work("decode with score_mod", lambda: call)

    def attention(self, name: str, rows: tuple[int, int], heads: int, **keywords: Any) -> Work:
        d = keywords.pop("d", 128)
        q = self.normal(2, rows[0], heads, d)
        k, v = (self.normal(2, rows[1], 2, d) for _ in range(2))

        def call() -> tuple[torch.Tensor, ...]:
            return tuple(flashsmith.attention(q, k, v, return_lse=True, **keywords))

        return Work(f"attention {name}", lambda: call)

    def packed(self) -> Work:
        lengths = [self.size(n, n // 10) for n in (700, 10, 300, 1000)]
        places = self.ints(*(sum(lengths[:i]) for i in range(len(lengths) + 1)))
        q, k, v = (self.normal(sum(lengths), n, 128) for n in (4, 2, 2))
        given: dict[str, Any] = {
            "cu_seqlens_q": places, "cu_seqlens_k": places, "max_seqlen_q": max(lengths),
            "max_seqlen_k": max(lengths), "causal": True, "return_lse": True,
        }  # fmt: skip

        def call() -> tuple[torch.Tensor, ...]:
            return tuple(flashsmith.attention(q, k, v, **given))

        return Work("attention packed", lambda: call)

    def named(self, cfg: ForwardKernelConfig) -> Work:
        q, k, v = (self.normal(2, self.size(1500, 100), 4, cfg.d_head) for _ in range(3))
        return Work(f"forward {cfg}", lambda: lambda: (flashsmith.forward(cfg, q, k, v),))  # type: ignore[return-value]

    def gradients(self, by_autograd: bool) -> Work:
        rows = self.size(600, 40)
        q, k, v, do = (self.normal(2, rows, heads, 128) for heads in (4, 2, 2, 4))
        o, lse = flashsmith.attention(q, k, v, causal=True, return_lse=True)

        def direct() -> tuple[torch.Tensor, ...]:
            found = flashsmith.backward(None, do, q, k, v, o, lse, causal=True, deterministic=True)
            return tuple(found[:3])  # type: ignore[arg-type]

        def autograd() -> tuple[torch.Tensor, ...]:
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            with torch.enable_grad():
                result = flashsmith.attention(*leaves, causal=True, deterministic=True)
            return torch.autograd.grad(result, leaves, do)  # type: ignore[arg-type]

        if by_autograd:
            return Work("gradients by autograd", lambda: autograd, in_graphs=False)
        return Work("backward", lambda: direct)


def works_on(device: torch.device) -> list[Work]:
    """Returns works with one launch and with two, with partial results, counters and queues."""
    make = Maker(device)
    works = [
        *make.decodes_alike(1 if make.is_small else 3),
        make.decode("short", 8, make.size(1000, 30), (8, 2), 128),
        make.decode("in parts", 3, make.size(3000, 130), (8, 2), 128, splits=64, queries=4),
        make.pages(),
        make.append(),
        make.with_function(),
        make.attention("full", (make.size(512, 70), make.size(700, 70)), 4),
        make.attention("causal", (make.size(1024, 70),) * 2, 8, causal=True),
        make.attention("of few queries", (4, make.size(9000, 200)), 8, causal=True),
        make.packed(),
        make.gradients(by_autograd=False),
        make.gradients(by_autograd=True),
    ]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0):
        queued = SM90_FORWARD.heuristic(Workload.square(DType.BF16, 128, 4096))
        assert queued.dynamic_queue  # type: ignore[attr-defined]
        works.append(make.named(queued))
    return works
