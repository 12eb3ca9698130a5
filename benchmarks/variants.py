"""Checks and measures masks, scores, lengths and small grids on the GPU, beside the peers.

    python benchmarks/variants.py --out benchmarks/results/h200/2026-01-01

One row a case and candidate: milliseconds in turn with a flushed L2, and the ratio of the best
peer's time to ours. Each result of ours is checked against the first peer's before it is timed.
FlashAttention-3 is upstream's C++ build where it is installed or named by FLASHSMITH_FA3_LIBRARY;
cuDNN and FlashAttention-2 are torch's; FlexAttention is compiled by torch.
Writes variants.csv and environment.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from variant_cases import GROUPS, Case

from flashsmith import settings
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.lab.bench.timer import time_interleaved

FILE_NAME = "variants.csv"
COLUMNS = ("group", "case", "candidate", "ms", "flop", "tflops", "of_best_peer", "error")


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
