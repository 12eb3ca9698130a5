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
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

import flashsmith
from flashsmith import reference
from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    KernelId,
    Variant,
    Workload,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
)
from flashsmith.jit import build_library
from flashsmith.lab.bench.grid import make_grid
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.qkv import make_qkv
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.lab.bench.timer import time_interleaved
from flashsmith.problem import Problem
from flashsmith.runtime import find_kernel, load_library
from flashsmith.runtime.device import target_of

console = Console(width=140)
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
BATCH, HEADS, SEQ_LEN = 4, 16, 4096  # of the progression table
TOKENS, HIDDEN = 16384, 2048  # of the sweep over lengths: batch * seq_len, heads * d_head


def kernel(
    cfg: FlashForwardKernelConfig, qkv: Sequence[torch.Tensor], causal: bool
) -> Callable[[], object]:
    q, k, v = qkv
    o = torch.empty_like(q)
    instance = KernelId(cfg, Variant(causal))
    found = find_kernel(instance, target_of(q.device))
    return lambda: found(q, k, v, o, cfg.d_head**-0.5)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def build(configs: Iterable[FlashForwardKernelConfig]) -> list[dict[str, object]]:
    """Builds and loads full and causal kernels; returns what ptxas says of each."""
    instances = [KernelId(c, Variant(causal)) for c in configs for causal in (False, True)]
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
            wide = Problem.square(cfg.dtype, 3 * cfg.d_head, batch=2, heads=3, seq_len=1024)
            q, k, v = make_qkv(wide, "cuda")
            q, k, v = q[..., : cfg.d_head], k[..., cfg.d_head : -cfg.d_head], v[..., : cfg.d_head]
            o = torch.full(q.shape, torch.nan, dtype=q.dtype, device="cuda")
            flashsmith.forward(cfg, q, k, v, o, causal=causal)
            exact = reference.reference_attention(q, k, v, causal=causal, compute=torch.float32)
            low = reference.reference_attention(q, k, v, causal=causal, compute=q.dtype)
            result = reference.compare(o, exact, low)
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
    configs: Sequence[FlashForwardKernelConfig], workload: Workload, repeats: int
) -> list[dict[str, object]]:
    """TFLOP/s of each config and of FA2 at one shape."""
    qkv = make_qkv(workload.problem, "cuda")
    causal = workload.variant.causal
    runs = {cfg.short_form(): kernel(cfg, qkv, causal) for cfg in configs}
    runs["FA2"] = PEERS["fa2"].make(*qkv, causal)
    timings = time_interleaved(runs, repeats=repeats)
    return [
        {
            "kernel": name,
            **workload.as_row(),
            "ms": f"{t.ms:.5f}",
            "ms_p20": f"{t.low:.5f}",
            "ms_p80": f"{t.high:.5f}",
            "tflops": f"{workload.tflops(t.ms):.1f}",
            "percent_of_fa2": f"{100 * timings['FA2'].ms / t.ms:.1f}",
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
    for d_head, mask in product((128, 64), ("full", "causal")):
        configs = get_autotuning_kernel_configs([DType.FP16], d_heads=(d_head,))
        best: list[float] = []
        grid = make_grid([DType.FP16], [d_head], [mask], SEQ_LENS, tokens=TOKENS, hidden=HIDDEN)
        for workload in grid:
            *measured, fa2_row = measure(configs, workload, repeats)
            rows += [*measured, fa2_row]
            ranked = sorted(measured, key=lambda row: float(str(row["ms"])))
            best.append(float(str(ranked[0]["percent_of_fa2"])))
            show(f"{workload}: best", [*ranked[:3], fa2_row])
        mean = statistics.harmonic_mean(best)
        console.print(f"d {d_head} {mask}: harmonic mean of the best {mean:.1f} % of FA2")
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

    shape = Workload(Problem.square(DType.FP16, 128, BATCH, HEADS, SEQ_LEN))
    progression = measure(get_kernel_progression_configs(False), shape, args.repeats)
    write(args.out / "progression.csv", progression)
    show(
        f"progression: seq {SEQ_LEN}, d 128, {HEADS} heads, batch {BATCH}, FP16, full", progression
    )
    write(args.out / "tuning.csv", sweep(args.repeats))
    stamp = environment_stamp()
    (args.out / "environment.json").write_text(json.dumps(stamp, indent=1) + "\n")
    console.print(stamp)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
