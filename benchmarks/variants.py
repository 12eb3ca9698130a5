"""Checks and measures masks, scores, lengths and small grids on the GPU, beside the peers.

    python benchmarks/variants.py --out benchmarks/results/h200/2026-01-01

One row a case and candidate: milliseconds in turn with a flushed L2, and the ratio of the best
peer's time to ours. Each result of ours is checked against a peer's or plain torch before it is
timed. FlashAttention-3 is upstream's C++ build where it is installed or named by
FLASHSMITH_FA3_LIBRARY; cuDNN and FlashAttention-2 are torch's; FlexAttention is compiled by torch.
Writes variants.csv and environment.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import flashsmith
from flashsmith import settings
from flashsmith.bench import fa3
from flashsmith.bench.peers import PEERS
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import time_interleaved

FILE_NAME = "variants.csv"
COLUMNS = ("group", "case", "candidate", "ms", "flop", "tflops", "of_best_peer", "error")
SKEWED = (8192, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 96, 64, 33, 17)

Run = Callable[[], torch.Tensor]


@dataclass
class Case:
    """One problem: how we and the peers run it."""

    group: str
    name: str
    flop: float
    ours: Run
    peers: dict[str, Run] = field(default_factory=dict)
    check: Run | None = None  # instead of a peer


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def fa3_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any) -> Run:
    operators = fa3.load_operators()
    return lambda: operators.fwd(q, k, v, softmax_scale=q.shape[-1] ** -0.5, **arguments)[0]


def flex_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any) -> Run:
    """Causal, compiled by torch."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    n = q.shape[1]
    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, n, n, device="cuda")
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    return lambda: compiled(*heads_first, score_mod=score_mod, block_mask=mask).transpose(1, 2)


def dense_peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    if not fa3.why_missing():
        runs["fa3"] = fa3_run(q, k, v, is_causal=causal)
    if q.shape[1] == k.shape[1] or not causal:
        shared = q.shape[2] // k.shape[2]
        wide = [t.repeat_interleave(shared, 2) if shared > 1 else t for t in (k, v)]
        for name in ("cudnn", "fa2"):
            if PEERS[name].is_available and shared == 1:
                runs[name] = PEERS[name].make(q, *wide, causal)  # type: ignore[assignment]
    return runs


def dense_cases() -> Iterator[Case]:
    """Small grids, odd lengths, shared heads, and lengths that differ."""
    small = [(1, 16, 16, n, n) for n in (256, 512, 1024, 2048, 4096)]
    small += [(2, 16, 16, 1024, 1024), (4, 16, 16, 512, 512)]
    odd = [(16, 16, 16, 777, 777), (8, 16, 16, 1536, 1536), (4, 16, 16, 3000, 3000)]
    shared = [(4, 32, 8, 4096, 4096), (4, 32, 4, 4096, 4096), (1, 32, 8, 8192, 8192)]
    unequal = [(1, 32, 8, 1024, 8192), (1, 32, 8, 512, 8192)]
    groups = {"small": small, "odd": odd, "gqa": shared, "unequal": unequal}
    for d in (64, 128, 256):
        for group, shapes in groups.items():
            for batch, heads, heads_kv, n_q, n_k in shapes:
                for causal in (False, True):
                    q = randn(batch, n_q, heads, d)
                    k, v = randn(batch, n_k, heads_kv, d), randn(batch, n_k, heads_kv, d)
                    scores = n_q * n_k - (n_q * (n_q - 1) / 2 if causal else 0)
                    name = f"d{d} {batch}x{heads}/{heads_kv}x{n_q}/{n_k} " + (
                        "causal" if causal else "full"
                    )
                    yield Case(
                        group,
                        name,
                        4 * d * batch * heads * scores,
                        lambda q=q, k=k, v=v, c=causal: flashsmith.attention(q, k, v, causal=c),
                        dense_peers(q, k, v, causal),
                    )


def window_cases() -> Iterator[Case]:
    """A sliding window of 1024 keys at 16k, beside no window."""
    n, window = 16384, 1024
    for d, heads in ((64, 32), (128, 16), (256, 8)):
        q, k, v = (randn(1, n, heads, d) for _ in range(3))
        visible = n * window - window * (window - 1) / 2
        peers = {}
        if not fa3.why_missing():
            sides = {"window_size_left": window - 1, "window_size_right": 0}
            peers["fa3"] = fa3_run(q, k, v, is_causal=True, **sides)
        yield Case(
            "window",
            f"d{d} 1x{heads}x{n} window {window}",
            4 * d * heads * visible,
            lambda q=q, k=k, v=v: flashsmith.attention(
                q, k, v, causal=True, window_size=(window - 1, 0)
            ),
            peers,
        )
        yield Case(
            "window",
            f"d{d} 1x{heads}x{n} causal",
            4 * d * heads * n * (n + 1) / 2,
            lambda q=q, k=k, v=v: flashsmith.attention(q, k, v, causal=True),
            dense_peers(q, k, v, True),
        )


def packed_run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, n: int, causal: bool
) -> Run:
    def run() -> Any:
        lengths = {"cu_seqlens_q": places, "cu_seqlens_k": places}
        most = {"max_seqlen_q": n, "max_seqlen_k": n}
        return flashsmith.attention(q, k, v, causal=causal, **lengths, **most)  # type: ignore[arg-type]

    return run


def packed_cases() -> Iterator[Case]:
    """Sequences of one length, and of a skewed mix of lengths."""
    mixes = {"skewed": SKEWED, "equal": (1024,) * 16}
    for d, heads, heads_kv in ((64, 32, 8), (128, 16, 16), (128, 32, 8), (256, 8, 8)):
        for mix, lengths in mixes.items():
            total = sum(lengths)
            q = randn(total, heads, d)
            k, v = randn(total, heads_kv, d), randn(total, heads_kv, d)
            places = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
            for causal in (False, True):
                scores = sum(n * n if not causal else n * (n + 1) / 2 for n in lengths)
                peers = {}
                if not fa3.why_missing():
                    sizes = {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
                    cu = {"cu_seqlens_q": places, "cu_seqlens_k": places}
                    peers["fa3"] = fa3_run(q, k, v, is_causal=causal, **cu, **sizes)
                yield Case(
                    "packed",
                    f"d{d} {heads}/{heads_kv} {mix} " + ("causal" if causal else "full"),
                    4 * d * heads * scores,
                    packed_run(q, k, v, places, max(lengths), causal),
                    peers,
                )


def score_cases() -> Iterator[Case]:
    """What is done to scores, beside the plain kernel."""
    n, heads = 4096, 16
    for d in (64, 128):
        q, k, v = (randn(4, n, heads, d) for _ in range(3))
        flop = 4 * d * 4 * heads * n * (n + 1) / 2
        slopes = torch.rand(heads, device="cuda")
        kinds: Mapping[str, dict[str, Any]] = {
            "plain": {},
            "softcap": {"softcap": 30.0},
            "alibi": {"alibi_slopes": slopes},
            "sinks": {"sinks": torch.randn(heads, device="cuda")},
        }
        mods = {
            "plain": None,
            "softcap": lambda s, _b, _h, _i, _j: 30.0 * torch.tanh(s / 30.0),
            "alibi": lambda s, _b, h, i, j, slopes=slopes: s - slopes[h] * (i - j).abs(),
        }
        for name, arguments in kinds.items():
            peers = {}
            if name in mods:
                peers["flex"] = flex_run(q, k, v, mods[name])
            if not fa3.why_missing() and name == "plain":
                peers["fa3"] = fa3_run(q, k, v, is_causal=True)
            yield Case(
                "score",
                f"d{d} 4x{heads}x{n} causal {name}",
                flop,
                lambda q=q, k=k, v=v, a=arguments: flashsmith.attention(q, k, v, causal=True, **a),
                peers,
            )


GROUPS: Mapping[str, Callable[[], Iterator[Case]]] = {
    "dense": dense_cases,
    "window": window_cases,
    "packed": packed_cases,
    "score": score_cases,
}


def rows_of(case: Case, repeats: int) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one case."""
    o = case.ours()
    error = math.nan
    if case.peers:
        expected = next(iter(case.peers.values()))()
        error = (o.float() - expected.float()).abs().max().item()
        if not error < 0.05:
            raise SystemExit(f"{case.name}: off by {error}")
    times = time_interleaved({"flashsmith": case.ours, **case.peers}, repeats=repeats)
    of_peers = [t.ms for name, t in times.items() if name != "flashsmith"]
    for name, timing in times.items():
        is_ours = name == "flashsmith"
        yield {
            "group": case.group,
            "case": case.name,
            "candidate": name,
            "ms": f"{timing.ms:.5f}",
            "flop": f"{case.flop:.4g}",
            "tflops": f"{case.flop / timing.ms / 1e9:.1f}",
            "of_best_peer": f"{min(of_peers) / timing.ms:.3f}" if is_ours and of_peers else "",
            "error": f"{error:.2g}" if is_ours else "",
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--groups", default=",".join(GROUPS), help="comma-separated")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "environment.json").write_text(json.dumps(environment_stamp(), indent=2))
    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # what is measured is what was chosen
    torch.manual_seed(0)
    with (arguments.out / FILE_NAME).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for group in arguments.groups.split(","):
            for case in GROUPS[group]():
                for row in rows_of(case, arguments.repeats):
                    writer.writerow(row)
                    if row["candidate"] == "flashsmith":
                        print(
                            row["case"], row["ms"], row["tflops"], row["of_best_peer"], flush=True
                        )
                file.flush()


if __name__ == "__main__":
    main()
