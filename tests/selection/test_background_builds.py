"""The threads that build kernels in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import support.tiny_build as tiny

ORDERS_A_BUILD_WITHOUT_END = """
import threading
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.selection import standby

begun = threading.Event()
standby.build_apart = lambda *_: (begun.set(), threading.Event().wait())
config = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1+tma_store")
standby._builds.order(standby._Wanted(KernelId(config), Target.emulator()), config)
assert begun.wait(60)
"""


def test_a_program_ends_though_a_kernel_is_being_built() -> None:
    subprocess.run([sys.executable, "-c", ORDERS_A_BUILD_WITHOUT_END], check=True, timeout=60)


ENDS_DURING_A_COMPILATION = """
import sys, time
from pathlib import Path
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.selection import standby

config = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1+tma_store")
standby._builds.order(standby._Wanted(KernelId(config), Target.emulator()), config)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def test_compilers_in_the_background_end_with_the_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    slow = f'case "$*" in *host-*) echo $$ >> {pids}; exec sleep 60;; esac'
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "log", before=slow)
    own = {"FLASHSMITH_CXX": str(compiler), "FLASHSMITH_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ENDS_DURING_A_COMPILATION, str(pids)]
    subprocess.run(command, check=True, timeout=60, env=os.environ | own)
    deadline = time.monotonic() + 20
    while running := [pid for pid in pids.read_text().split() if tiny.is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.1)
