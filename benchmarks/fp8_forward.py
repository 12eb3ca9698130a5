"""Measures the forward of 8 bits on a Hopper GPU beside that of 16 bits.

    python benchmarks/fp8_forward.py --out benchmarks/results/h200/2026-01-01
    python benchmarks/fp8_forward.py --dry     # tiny, on the emulator: whether all of it runs

Writes fp8_forward.csv: at d_head 64, 128 and 256 and several lengths, full and causal, TFLOP/s and
the root of the mean square of the error of one head (against float64 on the same numbers) of
flashsmith's BF16 kernel, of Q and K in 8 bits and of V, too: what the rule chooses, and other
tiles; and of FlashAttention-3's operator, and cuDNN's kernel, whose o has 8 bits, by its Python
frontend, if they are there and take 8 bits. Timed in turn, with the L2 cache flushed. What cannot
run is left out, with a line that says why.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fp8_peers import PEERS
from rich.console import Console

import flashsmith
from flashsmith.configs import CAUSAL, FULL, DType, Sm90ForwardKernelConfig, Sm90Tiles, Workload
from flashsmith.configs.sm90.fp8_space import fp8_rules, make_fp8_config
from flashsmith.lab.bench.rows_file import write_stamp
from flashsmith.lab.bench.timer import time_interleaved
from flashsmith.problem import Problem
from flashsmith.reference import reference_attention

console = Console(width=180)
FP8 = torch.float8_e4m3fn
SHAPES = [(4, 16, 2048), (4, 16, 4096), (2, 16, 8192), (1, 16, 16384)]  # batch, heads, length
TINY_SHAPES = [(1, 8, 256)]  # more tiles than the emulator has multiprocessors
_Long = partial(Sm90Tiles, ping_pong=True, long_turns=True)
# Beside the rule's; of V in 8 bits each with sums of one level and of two.
SCORE_TILES = {
    64: [_Long(4, 64, 4, 0), _Long(3, 96, 4, 0), _Long(3, 128, 2, 0)],
    96: [Sm90Tiles(3, 96, 3, 0, ping_pong=True), _Long(3, 96, 3, 0), _Long(2, 128, 2, 3)],
    128: [
        *(_Long(3, 80, 3, 0), _Long(2, 128, 2, 4), _Long(2, 160, 2, 4)),
        Sm90Tiles(2, 160, 2, 4, ping_pong=True),
    ],
    256: [_Long(2, 64, 2, 4), _Long(2, 80, 2, 0), Sm90Tiles(2, 64, 2, 8, ping_pong=True)],
}
VALUE_TILES = {
    64: [_Long(3, 128, 4, 0), _Long(3, 96, 4, 0), _Long(2, 192, 3, 0), _Long(4, 64, 4, 0)],
    96: [_Long(2, 128, 3, 0), _Long(3, 96, 3, 0)],
    128: [
        *(_Long(2, 128, 2, 0), _Long(2, 160, 2, 0), _Long(2, 192, 2, 0), _Long(3, 96, 3, 0)),
        Sm90Tiles(2, 128, 2, 0, ping_pong=True),
    ],
    256: [_Long(2, 96, 2, 0), _Long(2, 64, 2, 8), Sm90Tiles(2, 64, 2, 8, ping_pong=True)],
}
Run = Callable[[], torch.Tensor]
Row = dict[str, object]


def configs(d_head: int) -> list[Sm90ForwardKernelConfig]:
    """What the rule chooses, then other tiles; those alone that can be built."""
    bf16 = DType.BF16
    make: Any = partial(make_fp8_config, bf16, d_head)
    found = fp8_rules(bf16, d_head, False) + fp8_rules(bf16, d_head, True)
    found += [make(tiles, fp8_values=False) for tiles in SCORE_TILES[d_head]]
    for tiles, two_level in product(VALUE_TILES[d_head], (True, False)):
        found.append(make(tiles, fp8_values=True, two_level=two_level))
    return [cfg for cfg in dict.fromkeys(found) if cfg.is_buildable()]


class Tensors:
    """q, k and v of 8 bits with a scale each, and the same numbers in BF16."""

    def __init__(self, problem: Problem, device: str):
        self.small, self.scales, self.wide = {}, {}, {}
        for name in "qkv":
            t = torch.randn(problem.q_shape, device=device)
            scale = t.abs().amax().div(torch.finfo(FP8).max).reshape(1)
            self.small[name] = (t / scale).to(FP8)
            self.scales[name] = scale
            self.wide[name] = (self.small[name].float() * scale).bfloat16()

    def error(self, o: torch.Tensor, names_of_8_bits: str, causal: bool, o_scale: float) -> float:
        """Of the first head, times o_scale, against float64 on what a kernel was given."""
        exact = {
            name: (
                self.small[name][:1, :, :1].double() * self.scales[name].double()
                if name in names_of_8_bits
                else self.wide[name][:1, :, :1].double()
            )
            for name in "qkv"
        }
        truth = reference_attention(**exact, causal=causal)
        return float((o[:1, :, :1].double() * o_scale - truth).square().mean().sqrt())

    def given_to(self, cfg: Sm90ForwardKernelConfig) -> dict[str, torch.Tensor]:
        names = cfg.fp8_tensors
        scales = {f"{name}_scale": self.scales[name] for name in names}
        return {
            name: self.small[name] if name in names else self.wide[name] for name in "qkv"
        } | scales


class Candidate(NamedTuple):
    """A function that computes o, the names of its tensors of 8 bits, and o's scale."""

    run: Run
    small: str = ""
    o_scale: float = 1.0


def candidates(tensors: Tensors, d_head: int, causal: bool) -> dict[str, Callable[[], Candidate]]:
    """By name, what makes each."""
    attention: Any = partial(flashsmith.attention, causal=causal)

    def of_config(cfg: Sm90ForwardKernelConfig) -> Candidate:
        run = partial(attention, **tensors.given_to(cfg), config=cfg)
        return Candidate(run, "".join(cfg.fp8_tensors))

    def of_peer(name: str) -> Candidate:
        run, o_scale = PEERS[name](tensors.small, tensors.scales, causal)
        return Candidate(run, "qkv", o_scale)

    found = {"flashsmith BF16": lambda: Candidate(partial(attention, **tensors.wide))}
    found |= {str(cfg): partial(of_config, cfg) for cfg in configs(d_head)}
    if tensors.small["q"].is_cuda:
        found |= {name: partial(of_peer, name) for name in PEERS}
    return found


def measure(workload: Workload, device: str, repeats: int, errors_up_to: int = 8192) -> list[Row]:
    problem, causal = workload.problem, workload.variant == CAUSAL
    tensors = Tensors(problem, device)
    runs: dict[str, Run] = {}
    errors: dict[str, float] = {}
    for name, make in candidates(tensors, problem.d_head, causal).items():
        try:
            run, small, o_scale = make()
            o = run()
        except Exception as error:  # a candidate that is not for here does not end the others
            console.print(f"left out: {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        runs[name] = run
        if problem.seq_len_q <= errors_up_to:
            errors[name] = tensors.error(o, small, causal, o_scale)
    rows = []
    for name, ms in time_all(runs, device, repeats).items():
        row: Row = {
            "kernel": name,
            **workload.as_row(),
            "ms": f"{ms:.5f}",
            "tflops": f"{workload.tflops(ms):.1f}",
            "rmse": f"{errors[name]:.2e}" if name in errors else "",
        }
        rows.append(row)
        console.print(row)
    return rows


def time_all(runs: Mapping[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Milliseconds; on the emulator the host's, which say nothing of a GPU."""
    if device == "cuda":
        timings = time_interleaved(runs, repeats=repeats)
        return {name: timing.ms for name, timing in timings.items()}
    found = {}
    for name, run in runs.items():
        start = time.monotonic()
        run()
        found[name] = 1e3 * (time.monotonic() - start)
    return found


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--d-heads", default="64,128,256", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="tiny, on the emulator")
    args = parser.parse_args()
    device = "cpu" if args.dry else "cuda"
    if not args.dry and torch.cuda.get_device_capability() != (9, 0):
        console.print("no GPU of compute capability 9.0: 8 bits are left out")
        return 0
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_stamp(args.out / "fp8_forward.csv", device)
    rows: list[Row] = []
    for d_head in map(int, args.d_heads.split(",")):
        shapes = TINY_SHAPES if args.dry else SHAPES
        for (batch, heads, length), variant in product(shapes, (FULL, CAUSAL)):
            problem = Problem.square(DType.BF16, d_head, batch, heads, length)
            rows += measure(Workload(problem, variant), device, args.repeats)
            if args.out:
                write(args.out / "fp8_forward.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
