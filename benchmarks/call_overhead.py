"""Measures what a call costs on the host, beside torch.add: what a loop of tiny problems sees.

    python benchmarks/call_overhead.py --out build/gpu

Calls of each kind run in turn, a hundred at a time behind a synchronisation, so that the driver's
queue never fills and the host never waits for the GPU. Prints microseconds a call (the median of
the turns, and the least) with the versions of what ran, and writes call_overhead.csv.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import flashsmith
from flashsmith.bench.stamp import environment_stamp
from flashsmith.configs import ForwardKernelConfig, parse_kernel_name_into_config
from flashsmith.selection.select import select_config

SHAPE = (1, 128, 2, 128)  # batch, seq_len, n_heads, d_head: less work than a launch costs
CALLS_AT_ONCE = 100
WARMUP_TURNS = 3
SM80 = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+buffer+opt_softmax"
FILE_NAME = "call_overhead.csv"

Run = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Microseconds a call, over the turns."""

    median: float
    least: float


def calls(device: torch.device) -> dict[str, Run]:
    """What is measured, torch.add first: the name of each call, and the call."""
    q, k, v = (torch.randn(SHAPE, device=device).bfloat16() for _ in range(3))
    o, operand = torch.empty_like(q), torch.randn(SHAPE, device=device)
    runs: dict[str, Run] = {
        "torch.add": lambda: torch.add(operand, operand),
        "attention": lambda: flashsmith.attention(q, k, v),
        "attention causal": lambda: flashsmith.attention(q, k, v, causal=True),
        "attention with lse": lambda: flashsmith.attention(q, k, v, return_lse=True),
    }
    for name, config in configs(q).items():
        runs |= forwards(name, config, q, k, v, o)
    return runs


def configs(q: torch.Tensor) -> dict[str, ForwardKernelConfig]:
    """One configuration of each family that the device runs."""
    return {
        config.family: config for config in (parse_kernel_name_into_config(SM80), select_config(q))
    }


def forwards(
    name: str,
    config: ForwardKernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
) -> dict[str, Run]:
    return {
        f"forward {name}": lambda: flashsmith.forward(config, q, k, v),
        f"forward {name} into o": lambda: flashsmith.forward(config, q, k, v, o),
    }


def measure(
    runs: Mapping[str, Run],
    turns: int,
    synchronize: Run,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Cost]:
    """Times each of ``runs`` in every turn, behind a few turns that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(WARMUP_TURNS + turns):
        for name, run in runs.items():
            synchronize()
            start = clock()
            for _ in range(CALLS_AT_ONCE):
                run()
            elapsed = clock() - start
            if turn >= WARMUP_TURNS:
                seconds[name].append(elapsed)
    microseconds = 1e6 / CALLS_AT_ONCE
    return {
        name: Cost(statistics.median(each) * microseconds, min(each) * microseconds)
        for name, each in seconds.items()
    }


def rows(costs: Mapping[str, Cost], stamp: Mapping[str, str]) -> list[dict[str, str]]:
    """Of the table; shares are of the first, which is torch.add."""
    first = next(iter(costs.values()))
    return [
        {
            "call": name,
            "us": f"{cost.median:.2f}",
            "least_us": f"{cost.least:.2f}",
            "times_torch_add": f"{cost.median / first.median:.2f}",
            **stamp,
        }
        for name, cost in costs.items()
    ]


def write(path: Path, table: Sequence[Mapping[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True, help="folder of call_overhead.csv")
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args(arguments)

    costs = measure(calls(torch.device("cuda")), options.turns, torch.cuda.synchronize)
    stamp = environment_stamp()
    table = rows(costs, stamp)
    print(", ".join(f"{name} {value}" for name, value in stamp.items()))
    for row in table:
        print(f"{row['call']:28} {row['us']:>7} us, least {row['least_us']:>7} us")
    write(options.out / FILE_NAME, table)


if __name__ == "__main__":
    main()
