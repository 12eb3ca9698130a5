"""Tables are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashsmith.selection.stamped_csv import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.csv"
    for text in ("first", "second"):
        replace_file(path, text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.mkdir()
    with pytest.raises(OSError):
        replace_file(path, "text")
    assert list(tmp_path.iterdir()) == [path]
