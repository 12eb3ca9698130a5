"""Checks the gradients of ``attention`` through autograd, on the emulator or a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import torch

import flashsmith
from flashsmith.configs import FULL, DType, KernelConfig, Variant
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import D_HEADS, BackwardWorkload
from flashsmith.lab.soak import Extent, SoakCase, Values, prepare_gradients, random_case
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS

_PLAINEST = BACKWARD.families[0]  # it serves every dtype and d_head


def plain_cases(seed: int, extent: Extent, variants: tuple[Variant, ...]) -> Iterator[SoakCase]:
    """Yields cases of normal values: at least one for each variant, dtype and d_head."""
    rng = Random(seed)
    kinds = [(dtype, d_head) for d_head in D_HEADS for dtype in DType]
    for i in range(max(len(kinds), len(variants))):
        config: KernelConfig = _PLAINEST.heuristic(
            BackwardWorkload.square(*kinds[i % len(kinds)], 256)
        )
        case = random_case(rng, config, variants[i % len(variants)], extent)
        while case.values != Values():
            case = random_case(rng, config, case.variant, extent)
        yield case


ALL_VARIANTS = (FULL, Variant(causal=True), *MIXED_VARIANTS)


def what_is_wrong(case: SoakCase, device: str) -> str:
    """Compares the gradients of a case through autograd; returns what is wrong, or ""."""
    prepared = prepare_gradients(case, device)
    forward, meaning = prepared.forward, prepared.forward.semantics
    placed = forward.placed
    leaves = {"dq": placed.q, "dk": placed.k, "dv": placed.v}
    leaves |= {"dsinks": meaning.sinks, "dbias": meaning.bias}  # type: ignore[dict-item]
    leaves = {name: t.detach().requires_grad_() for name, t in leaves.items() if t is not None}
    keywords: dict[str, Any] = meaning.keywords | vars(forward.packing)
    keywords |= {name[1:]: leaves[name] for name in ("dsinks", "dbias") if name in leaves}
    keywords["softmax_scale"] = case.scale
    q, k, v = (leaves[name] for name in ("dq", "dk", "dv"))
    o, lse = flashsmith.attention(q, k, v, return_lse=True, **keywords)
    outputs, given = [o], [prepared.do]
    if prepared.dlse is not None:
        outputs, given = [o, lse], [prepared.do, prepared.dlse]
    gradients = torch.autograd.grad(outputs, [*leaves.values()], given)
    found = dict(zip(leaves, gradients, strict=True))
    for name, t in found.items():
        t.masked_fill_(~prepared.truth.used[name], math.nan)
    compared = prepared.truth.compare(found)
    return "; ".join(f"{case}: {name} {each}" for name, each in compared.items() if not each.ok)


def runs_that_differ(runs: int, device: str, load: Any = None) -> int:
    """Counts runs of a small deterministic call whose gradients differ from the first run's bits.

    load: Other work for the GPU, beside which the calls run.
    """
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(2, 130, 4, 64).half().to(device) for _ in range(4))
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def gradients() -> torch.Tensor:
        o = flashsmith.attention(*leaves, causal=True, deterministic=True)
        assert isinstance(o, torch.Tensor)
        return torch.stack(torch.autograd.grad(o, leaves, do))

    first = gradients()
    differing = torch.zeros((), dtype=torch.int64, device=device)
    for i in range(runs):
        if load is not None and i % 10 == 0:
            load.add()
        differing += (gradients().view(torch.int16) != first.view(torch.int16)).any()
    return int(differing)
