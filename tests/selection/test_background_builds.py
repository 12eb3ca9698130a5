"""The threads that build kernels in the background."""

from __future__ import annotations

import subprocess
import sys

ORDERS_A_BUILD_WITHOUT_END = """
import threading
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.selection import standby

begun = threading.Event()
standby.build_library = lambda *_, **__: (begun.set(), threading.Event().wait())
config = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1+tma_store")
standby._builds.order(standby._Wanted(KernelId(config), Target.emulator()), config)
assert begun.wait(60)
"""


def test_a_program_ends_though_a_kernel_is_being_built() -> None:
    subprocess.run([sys.executable, "-c", ORDERS_A_BUILD_WITHOUT_END], check=True, timeout=60)
