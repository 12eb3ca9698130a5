"""tools/docs/sentences.py notices fragments and accepts sentences."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from support.scripts import load_script

SENTENCES = load_script("tools/docs/sentences.py")


def test_the_repository_has_no_fragment(capsys: pytest.CaptureFixture[str]) -> None:
    assert SENTENCES.main([]) == 0, capsys.readouterr().out


def fragments(text: str, name: str = "a.py") -> list[str]:
    return [each.head for each in SENTENCES.fragments_of(Path(name), dedent(text))]


@pytest.mark.parametrize(
    "head",
    [
        "Of a loss, by q, k and v.",
        "That a block has of a work tile that has so many.",
        "The variant of a name.",
        "Where K and V lie.",
        "By local names.",
        "Also the first alone.",
        "The rows that hold keys.",
        "The keys to share.",
    ],
)
def test_a_function_s_head_that_is_a_fragment_is_found(head: str) -> None:
    assert fragments(f'def f():\n    """{head}"""\n') == [head]


@pytest.mark.parametrize(
    "head",
    [
        "Returns the variant of a name.",
        "Write the rows of a file.",
        "The rows of a file are read once.",
        "Where a cache has pages, each page is read once.",
        "If there are no keys, o is zero.",
        "Both warpgroups share a barrier.",
        "Blanks the strings of a text.",
    ],
)
def test_a_sentence_is_none(head: str) -> None:
    assert fragments(f'def f():\n    """{head}"""\n') == []


def test_noun_phrases_are_for_classes_modules_and_properties() -> None:
    text = '''
        """Kernels of one GPU."""
        class C:
            """A point of the space."""
            @property
            def name(self):
                """The kernel's short name."""
    '''
    assert fragments(text) == []


def test_comments_with_lines_of_their_own_are_read() -> None:
    text = """
        // Of the producer at each
        // tile. It waits.
        int a;  // of a tile
        // A warp reads its rows.
    """
    assert fragments(text, "a.cuh") == ["Of the producer at each tile."]
    assert fragments("# noqa: E402\n# As before.\nx = 1\n") == ["As before."]
