"""Measures the forward of 8 bits on a Hopper GPU beside that of 16 bits.

    python benchmarks/fp8_forward.py --out benchmarks/results/h200/2026-01-01

Writes fp8_forward.csv: at d_head 64, 128 and 256 and several lengths, full and causal, TFLOP/s and
the root of the mean square of the error of one head (against float64 on the same numbers) of
flashsmith's BF16 kernel, of Q and K in 8 bits and of V, too: what the rule chooses, and other
tiles; and of FlashAttention-3's operator, and cuDNN's kernel, whose o has 8 bits, by its Python
frontend, if they are there and take 8 bits. Timed in turn, with the L2 cache flushed. What cannot
run is left out, with a line that says why. ``--cases "d 96"`` measures that d_head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from flashsmith.configs import CAUSAL, FULL, DType, Sm90Tiles
from flashsmith.configs.sm90.fp8_space import fp8_rules, make_fp8_config
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.program import Benchmark, run_program

SHAPES = ((4, 16, 2048), (4, 16, 4096), (2, 16, 8192), (1, 16, 16384))  # batch, heads, length
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


def kernels(d_head: int) -> list[str]:
    """Returns what the rule chooses, then other tiles; those alone that can be built."""
    make: Any = partial(make_fp8_config, DType.BF16, d_head)
    found = [config for values in (False, True) for config in fp8_rules(DType.BF16, d_head, values)]
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
