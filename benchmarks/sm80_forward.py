"""Checks every sm80 kernel on the GPU, then measures them against FlashAttention-2.

    python benchmarks/sm80_forward.py --out benchmarks/results/h200/2026-01-01

Writes resources.csv (registers, spills), correctness.csv, progression.csv, tuning.csv and
environment.json. FlashAttention-2 is torch's scaled_dot_product_attention with the flash backend,
in the same run, interleaved.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashsmith
from flashsmith import bench
from flashsmith.build import build_library
from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    ForwardVariant,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
)
from flashsmith.functional import target_of
from flashsmith.runtime import load_library

console = Console(width=140)
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
TORCH = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
BATCH, HEADS, SEQ_LEN = 4, 16, 4096  # of the progression table
TOKENS = 16384  # of the sweep over lengths: batch * seq_len


def tensors(batch: int, seq_len: int, heads: int, d_head: int, dtype: DType) -> list[torch.Tensor]:
    shape = (batch, seq_len, heads, d_head)
    return [torch.randn(shape, dtype=TORCH[dtype], device="cuda") for _ in range(3)]


def fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Callable[[], object]:
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def run() -> object:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*heads_first, is_causal=causal)

    return run


def kernel(
    cfg: FlashForwardKernelConfig, qkv: Sequence[torch.Tensor], causal: bool
) -> Callable[[], object]:
    o = torch.empty_like(qkv[0])
    return lambda: flashsmith.forward(cfg, *qkv, o, causal=causal)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def build(configs: Iterable[FlashForwardKernelConfig]) -> list[dict[str, object]]:
    """Builds and loads full and causal kernels; returns what ptxas says of each."""
    instances = [
        ForwardKernelInstance(c, ForwardVariant(causal))
        for c in configs
        for causal in (False, True)
    ]
    start = time.monotonic()
    library = build_library(instances, target_of(torch.device("cuda")))
    load_library(library)
    console.print(f"built {len(instances)} kernels in {time.monotonic() - start:.0f} s")
    return [
        {"kernel": kernel["name"]} | {k: v for k, v in figures.items() if k != "function"}
        for kernel in library.kernels.values()
        for figures in kernel["resources"]
    ]


def correctness(configs: Sequence[FlashForwardKernelConfig]) -> list[dict[str, object]]:
    """Every config, full and causal, on strided input, against float32."""
    rows: list[dict[str, object]] = []
    for cfg in track(configs, "checking", console=console):
        for causal in (False, True):
            q, k, v = tensors(2, 1024, 3, 3 * cfg.d_head, cfg.dtype)
            q, k, v = q[..., : cfg.d_head], k[..., cfg.d_head : -cfg.d_head], v[..., : cfg.d_head]
            o = torch.full(q.shape, torch.nan, dtype=q.dtype, device="cuda")
            flashsmith.forward(cfg, q, k, v, o, causal=causal)
            exact = bench.reference_attention(q, k, v, causal=causal, compute=torch.float32)
            low = bench.reference_attention(q, k, v, causal=causal, compute=q.dtype)
            result = bench.compare(o, exact, low)
            rows.append(
                {
                    "config": cfg.short_form(),
                    "mask": "causal" if causal else "full",
                    "error": f"{result.error:.3e}",
                    "tolerance": f"{result.tolerance:.3e}",
                    "ok": result.ok,
                }
            )
            if not result.ok:
                console.print(f"WRONG {cfg.short_form()} causal={causal}: {result.worst}")
    return rows


def measure(
    configs: Sequence[FlashForwardKernelConfig],
    batch: int,
    seq_len: int,
    heads: int,
    causal: bool,
    repeats: int,
) -> list[dict[str, object]]:
    """TFLOP/s of each config and of FA2 at one shape; all configs share dtype and d_head."""
    d_head = configs[0].d_head
    qkv = tensors(batch, seq_len, heads, d_head, configs[0].dtype)
    runs = {cfg.short_form(): kernel(cfg, qkv, causal) for cfg in configs}
    runs["FA2"] = fa2(*qkv, causal)
    flop = configs[0].attn_flop(batch, heads, seq_len) * (0.5 if causal else 1)
    timings = bench.time_interleaved(runs, repeats=repeats)
    return [
        {
            "kernel": name,
            "dtype": configs[0].dtype.name,
            "d_head": d_head,
            "mask": "causal" if causal else "full",
            "batch": batch,
            "heads": heads,
            "seq_len": seq_len,
            "ms": f"{t.median:.5f}",
            "ms_p20": f"{t.low:.5f}",
            "ms_p80": f"{t.high:.5f}",
            "tflops": f"{flop / t.median / 1e9:.1f}",
            "percent_of_fa2": f"{100 * timings['FA2'].median / t.median:.1f}",
        }
        for name, t in timings.items()
    ]


def show(title: str, rows: Iterable[dict[str, object]]) -> None:
    console.print(title)
    for r in rows:
        console.print(
            f"  {r['kernel']:<92} {r['ms']:>9} ms {r['tflops']:>7} TFLOP/s "
            f"{r['percent_of_fa2']:>6} % of FA2"
        )


def sweep(repeats: int) -> list[dict[str, object]]:
    """All tuning configs over the lengths; prints the best of each, and the harmonic means."""
    rows: list[dict[str, object]] = []
    for d_head in (128, 64):
        for causal in (False, True):
            best: list[float] = []
            for seq_len in SEQ_LENS:
                configs = get_autotuning_kernel_configs([DType.FP16], d_heads=(d_head,))
                measured = measure(
                    configs, TOKENS // seq_len, seq_len, 2048 // d_head, causal, repeats
                )
                rows += measured
                ranked = sorted(
                    (r for r in measured if r["kernel"] != "FA2"), key=lambda r: float(str(r["ms"]))
                )
                best.append(float(str(ranked[0]["percent_of_fa2"])))
                fa2_row = next(r for r in measured if r["kernel"] == "FA2")
                show(f"d {d_head} causal={causal} seq {seq_len}: best", [*ranked[:3], fa2_row])
            mean = statistics.harmonic_mean(best)
            console.print(
                f"d {d_head} causal={causal}: harmonic mean of the best {mean:.1f} % of FA2"
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    configs = [*get_kernels_to_build(), *get_autotuning_kernel_configs(d_heads=(64,))]
    write(args.out / "resources.csv", build(configs))
    checked = correctness(configs)
    write(args.out / "correctness.csv", checked)
    wrong = sum(not row["ok"] for row in checked)
    console.print(
        f"correct: {len(checked) - wrong} of {len(checked)} (165 configs, full and causal)"
    )

    progression = measure(
        get_kernel_progression_configs(False), BATCH, SEQ_LEN, HEADS, False, args.repeats
    )
    write(args.out / "progression.csv", progression)
    show(
        f"progression: seq {SEQ_LEN}, d 128, {HEADS} heads, batch {BATCH}, FP16, full", progression
    )
    write(args.out / "tuning.csv", sweep(args.repeats))
    stamp = bench.environment_stamp()
    (args.out / "environment.json").write_text(json.dumps(stamp, indent=1) + "\n")
    console.print(stamp)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
