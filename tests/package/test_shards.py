"""``pytest --shard``: each test of a run is in exactly one shard."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

from support.paths import ROOT


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/configs", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_three_shards_are_the_whole_run() -> None:
    chosen = ["-k", "not name", "-m", "not gpu"]
    whole = collected(*chosen)
    shards = [collected(*chosen, "--shard", f"{i}/3") for i in (1, 2, 3)]
    assert sorted(chain.from_iterable(shards)) == sorted(whole)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1 < len(whole)


def test_a_shard_that_is_none_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "tests/package", "--shard=4/3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "--shard is 4/3; expected I/N with 1 <= I <= N" in done.stderr
