#!/usr/bin/env python3
"""Times kernels and peers with torch's events; an alias of `flashsmith bench`.

tools/benchmark/pt_bench.py --seq_lens 1024,2048 --d_heads 128 --kernels prog --out profiles/bench
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
    app(["bench", *as_commands_spell(sys.argv[1:])], prog_name="flashsmith")
