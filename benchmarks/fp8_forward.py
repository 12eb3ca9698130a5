"""Measures the FP8 forward on a Hopper GPU beside the 16-bit one.

    python benchmarks/fp8_forward.py --out benchmarks/results/h200/2026-01-01

Writes fp8_forward.csv: TFLOP/s and the RMS error of one head (against float64 on the same numbers),
at d_head 64, 128 and 256 and several lengths, full and causal. Candidates are flashsmith's BF16
kernel; FP8 Q and K, with V in BF16 and in FP8, each with the heuristic's choice and with other
tiles; and FlashAttention-3's operator, and cuDNN's kernel, whose o is FP8, by its Python frontend,
if they are installed and take FP8. Timed in turn, with the L2 cache flushed. A candidate that
cannot run is left out, with a line that says why. ``--cases "d 96"`` measures that d_head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from flashsmith.configs import CAUSAL, FULL, DType, Sm90Tiles
from flashsmith.configs.sm90.fp8_space import fp8_candidates, make_fp8_config
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.program import Benchmark, run_program

SHAPES = ((4, 16, 2048), (4, 16, 4096), (2, 16, 8192), (1, 16, 16384))  # batch, heads, length
_Long = partial(Sm90Tiles, ping_pong=True, ping_pong_until_exp=True)
# Tiles that are measured beside the heuristic's; FP8 V with one-level and with two-level sums.
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


def kernels(d_head: int) -> list[str]:
    """Returns the heuristic's choices, then other tiles, without those that cannot be built."""
    make: Any = partial(make_fp8_config, DType.BF16, d_head)
    found = [
        config for values in (False, True) for config in fp8_candidates(DType.BF16, d_head, values)
    ]
    found += [make(tiles, fp8_values=False) for tiles in SCORE_TILES[d_head]]
    for tiles, two_level in product(VALUE_TILES[d_head], (True, False)):
        found.append(make(tiles, fp8_values=True, two_level=two_level))
    return [str(config) for config in dict.fromkeys(found) if config.is_buildable()]


def cases(d_heads: Sequence[int]) -> list[Case]:
    return [
        Case(
            "forward in 8 bits",
            workload_of(d_head, *shape, mask),
            ("flashsmith BF16", *kernels(d_head), "FlashAttention-3", "cuDNN"),
        )
        for d_head, shape, mask in product(d_heads, SHAPES, (FULL, CAUSAL))
    ]


BENCHMARK = Benchmark(
    "fp8_forward",
    ("kernel", *ROW_COLUMNS, *K_COLUMNS, "ms", "tflops", "rmse"),
    lambda: cases((64, 128, 256)),
    more=lambda: cases((96,)),
    needs=(9, 0),
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
