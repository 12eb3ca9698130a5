#!/usr/bin/env python3
"""Profiles kernels with Nsight Compute; an alias of `flashsmith profile`.

tools/benchmark/ncu_bench.py --seq_lens 1024,2048 --d_heads 128 --runs 1 --csv > profile.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment
from _spelling import as_commands_spell

_environment.enter()

from flashsmith.cli import app

if __name__ == "__main__":
    app(["profile", *as_commands_spell(sys.argv[1:])], prog_name="flashsmith")
