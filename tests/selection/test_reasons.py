"""The reasons that are printed for a configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flashsmith.selection.choice import Choice
from support.sm80_kernels import BASE


def test_a_table_is_named_where_a_configuration_comes_from_one() -> None:
    key = SimpleNamespace(words="float16 d 64, 4k keys")
    source: Any = SimpleNamespace(
        title="your table", path=Path("/t.csv"), table=SimpleNamespace(key_of=lambda _: key)
    )
    entry: Any = SimpleNamespace(workload=None)
    choice = Choice(BASE, (), source, entry)
    assert choice.reason == "your table /t.csv, float16 d 64, 4k keys"
    assert replace(choice, source=None).reason.startswith("the heuristic: ")
    assert replace(choice, entry=None).reason.startswith("the heuristic: ")
