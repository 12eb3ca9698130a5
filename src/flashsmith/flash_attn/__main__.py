"""Runs a program whose ``import flash_attn`` finds flashsmith's functions.

python -m flashsmith.flash_attn program.py arguments
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from flashsmith.flash_attn.install import install_as_flash_attn


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m flashsmith.flash_attn program.py [arguments]")
    del sys.argv[0]
    program = sys.argv[0]
    if not Path(program).is_file():
        sys.exit(f"flashsmith.flash_attn: there is no file {program}")
    install_as_flash_attn()
    sys.path[0] = str(Path(program).resolve().parent)  # as with `python program.py`
    runpy.run_path(program, run_name="__main__")


main()
