#!/usr/bin/env python3
"""Runs kernels on random input and prints their errors; a profiler can watch the launches.

python tools/benchmark/run_kernels.py 4096 128 --n_runs=3 --ref \
    --kernels="(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from flashsmith.cli.run_kernels import main

if __name__ == "__main__":
    sys.exit(main())
