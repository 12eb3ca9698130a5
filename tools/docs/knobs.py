#!/usr/bin/env python3
"""Regenerates docs/knobs.md from the descriptions of the configuration classes' fields.

python tools/docs/knobs.py            # after a change of a field, its description or its name
python tools/docs/knobs.py --check    # compares only
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from flashsmith.configs import CONFIG_CLASSES, KernelConfig
from flashsmith.configs.descriptions import descriptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "knobs.md"
_WIDTH = 120
_INTRO = """\
# The knobs

<!-- Made by tools/docs/knobs.py from the docstrings of the configuration classes. -->

Every field of a configuration, in order: where it stands in the short form, and what it does. What
each is worth, with counts and times, is told on the page of the family's kernels. `flashsmith
report` shows counts and times of any kernel, `flashsmith configs` lists the tuning spaces.
"""


def page() -> str:
    """Returns the text of docs/knobs.md."""
    return "\n".join([_INTRO, *(line for kind in CONFIG_CLASSES for line in _family(kind))])


def title(kind: type[KernelConfig]) -> str:
    """Returns the title of a class's section."""
    if kind.operation == "forward":
        return f"The {kind.family} family"
    return f"The {kind.kernels_name().replace('_', ' ')} of the {kind.family} family"


def _family(kind: type[KernelConfig]) -> Iterator[str]:
    yield f"## {title(kind)}\n"
    features = [each.name for each in kind.feature_table if each.name in kind.markers]
    form = f"({', '.join(kind.tuple_fields)}): {'+'.join(features)}"
    page = f"kernels/{kind.family}-forward" if kind.operation == "forward" else kind.operation
    yield _wrapped(
        f"`{kind.__name__}`. A short form begins with `{form.strip()}`; the features below follow, "
        f"joined by `+`. What each field is worth is told on [the page of its kernels]({page}.md)."
    )
    for names, meaning in descriptions(kind).items():
        yield f"### {', '.join(names)}\n"
        yield _wrapped(f"{_short_form(kind, names)} {meaning[0].upper()}{meaning[1:]}")


def _short_form(kind: type[KernelConfig], names: Sequence[str]) -> str:
    """Says where the fields stand in a short form, as the beginning of a paragraph."""
    if names[0] in kind.tuple_fields:
        return f"*{_ORDINALS[kind.tuple_fields.index(names[0])]} in the brackets.*"
    feature = next(each for each in kind.feature_table if each.fields == tuple(names))
    if feature.absent is None:
        return f"*`{feature.name}`, always there.*"
    left_out = "off" if feature.absent == (False,) else str(feature.absent[0])
    return f"*`{feature.name}`, left out where it is {left_out}.*"


_ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/knobs.md anew.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    args = parser.parse_args(arguments)
    text = page()
    if PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} {'differs from the classes' if args.check else 'written'}")
    if not args.check:
        PAGE.write_text(text)
    return int(args.check)


if __name__ == "__main__":
    sys.exit(main())
