"""``pytest --shard``: each test of a run is in exactly one shard."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain

import pytest

from support.paths import ROOT

# One process collects the same tests once for each value of --shard: importing torch takes longer.
COLLECT = """
import json, sys, pytest

class Collected:
    nodes = ()

    def pytest_collection_finish(self, session):
        self.nodes = [item.nodeid for item in session.items]

found = []
for shard in sys.argv[1:]:
    plugin = Collected()
    chosen = ["-k", "not name", "-m", "not gpu", f"--shard={shard}"]
    code = pytest.main(["--collect-only", "-qq", "tests/configs", *chosen], [plugin])
    found.append((int(code), list(plugin.nodes)))
print("\\n" + json.dumps(found))
"""
Collection = tuple[dict[str, tuple[int, list[str]]], str]
SHARDS = ("1/1", "1/3", "2/3", "3/3", "4/3")


@pytest.fixture(scope="module")
def collection() -> Collection:
    """Returns the exit code and the tests of each shard, and what stands on standard error."""
    command = [sys.executable, "-c", COLLECT, *SHARDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(SHARDS, json.loads(done.stdout.splitlines()[-1]), strict=True)), done.stderr


def test_three_shards_are_the_whole_run(collection: Collection) -> None:
    nodes = {shard: found for shard, (code, found) in collection[0].items() if code == 0}
    whole = nodes.pop("1/1")
    shards = [nodes[f"{i}/3"] for i in (1, 2, 3)]
    assert sorted(chain.from_iterable(shards)) == sorted(whole)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1 < len(whole)


def test_a_shard_that_is_none_is_refused(collection: Collection) -> None:
    found, errors = collection
    assert found["4/3"][0] == pytest.ExitCode.USAGE_ERROR
    assert "--shard is 4/3; expected I/N with 1 <= I <= N" in errors
