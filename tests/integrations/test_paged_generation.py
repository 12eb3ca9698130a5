"""transformers' continuous batching over its paged cache, with flashsmith in place of flash_attn:
the example runs in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.paths import ROOT

pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")

EXAMPLE = ROOT / "examples" / "paged_generation.py"
SMALL = (
    "--device=cpu", "--dtype=float16", "--steps=20", "--requests=3", "--max-new=12",
    "--d-model=64", "--layers=2", "--page-size=8",
)  # fmt: skip
# The program counts calls, and changes the calls of {name}.
PROGRAM = """
import collections, runpy, sys
import flashsmith.flash_attn as flash

calls = collections.Counter()

def recorded(name, function):
    def call(*arguments, **keywords):
        calls[name] += 1
        if name == {name!r} and calls[name] > 4:
            {change}
        return function(*arguments, **keywords)
    call.__signature__ = __import__("inspect").signature(function)
    setattr(flash, name, call)

for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func"):
    recorded(name, getattr(flash, name))
sys.argv = {arguments!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(dict(calls))
"""


def run(*arguments: str, name: str = "", change: str = "pass") -> tuple[int, str]:
    """Returns the exit status of the example, and its output."""
    program = PROGRAM.format(name=name, change=change, arguments=[str(EXAMPLE), *arguments])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_tokens_are_those_of_eager_attention_in_float32() -> None:
    """Each token is the first choice after the tokens before it, so that the texts are the same.
    FP16 is precise enough to tell all these choices apart."""
    status, printed = run(*SMALL, "--seed=1")
    assert status == 0, printed
    found = re.search(r"(\d+) texts, (\d+) tokens\n", printed)
    assert found and int(found[1]) > 6
    assert f"\n{found[2]} tokens are the first choice of float32" in printed
    calls = re.search(r"'flash_attn_with_kvcache': (\d+)", printed)
    assert calls and int(calls[1]) > 20 and "'flash_attn_varlen_func': " in printed


def test_requests_that_fork_share_pages_and_go_their_own_ways() -> None:
    status, printed = run(*SMALL, "--steps=10", "--sample", "--copies=3")
    assert status == 0 and printed.splitlines()[-2] == "right", printed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("flash_attn_with_kvcache", "keywords['cache_seqlens'] = keywords['cache_seqlens'] - 1"),
        ("flash_attn_varlen_func", "keywords['causal'] = False"),
    ],
    ids=["a lost key", "keys ahead"],
)
def test_what_is_wrong_is_noticed(name: str, change: str) -> None:
    status, printed = run(*SMALL, "--steps=6", name=name, change=change)
    assert status == 1 and "WRONG" in printed, printed


def test_forks_of_first_choices_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--copies=2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--copies needs --sample" in done.stderr
