"""The threads that build kernels in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import support.tiny_build as tiny
from flashsmith import settings
from flashsmith.configs import DType, KernelId
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.jit import Target, build_kernels
from flashsmith.ops.attention import attention
from flashsmith.ops.choices import Choices
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.selection import standby
from support.caches import kernel_free_cache
from support.waiting import wait_for

ORDERS_A_BUILD_WITHOUT_END = """
import threading
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.selection import standby

begun = threading.Event()
standby.build_apart = lambda *_: (begun.set(), threading.Event().wait())
config = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1+tma_store")
standby._builds.order(standby._BuildKey(KernelId(config), Target.emulator()), config)
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
standby._builds.order(standby._BuildKey(KernelId(config), Target.emulator()), config)
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


def test_attention_switches_to_the_kernel_that_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A build on the emulator by the real compiler prints nothing."""
    cache = kernel_free_cache(tmp_path / "cache")
    monkeypatch.setenv(settings.CACHE_DIR.name, str(cache.root))
    monkeypatch.setenv(settings.BACKGROUND_BUILD.name, "on")
    monkeypatch.setattr(standby, "_builds", standby._Builds())
    monkeypatch.setattr("flashsmith.ops.launch._kernels", {})
    monkeypatch.setattr("flashsmith.ops.launch._choices", Choices())
    launch_cache.forget()
    monkeypatch.setattr("flashsmith.runtime.kernels._loaded", {})
    from flashsmith.ops import launch
    from flashsmith.selection import choose

    of_calls = [launch._choices.clear, lambda: launch_cache.forget()]
    monkeypatch.setattr(choose, "_of_calls", of_calls)
    of_lengths = (Workload.square(DType.FP16, 96, length) for length in (128, 64))
    chosen, other = map(SM80_FORWARD.heuristic, of_lengths)
    assert chosen != other
    build_kernels([KernelId(other)], Target.emulator())
    q = torch.randn(1, 128, 1, 96).half()

    def in_use() -> Any:
        attention(q, q.clone(), q.clone())
        calls = list(launch._choices.values())
        return calls[0].config if calls else None  # they may be forgotten at any time

    first = attention(q, q.clone(), q.clone())
    assert in_use() == other
    wait_for(lambda: in_use() == chosen)
    torch.testing.assert_close(attention(q, q.clone(), q.clone()), first, atol=2e-3, rtol=1e-2)
    assert capfd.readouterr() == ("", "")
