"""Compiles ahead the headers that many units of one build include, once for all of these.

A unit's code is the same with and without: gcc takes a header that it has compiled in place of the
text, and reads the text where it cannot take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashsmith.jit.ninja_files import shell_value
from flashsmith.jit.toolchain import Compiler

# A compiled header takes about as long as it saves in five units.
_FEWEST_UNITS = 7

# If anything fails here, the units read the text. A compiled header is tried before it is used,
# because gcc ends with an error where it can read one but not place it in memory.
_RULE = r"""
rule precompile
  command = { $compiler -x c++-header $in -o $out && $
    $compiler -include $in -fsyntax-only -x c++ /dev/null; } > /dev/null 2>&1 || rm -f $out
  description = $in
"""


@dataclass(frozen=True)
class Prelude:
    """Includes that a unit begins with, or could begin with, and the command that compiles them."""

    text: str
    command: tuple[str, ...]  # with the flags of the unit, without those of the linker

    @classmethod
    def of(cls, compiler: Compiler, text: str, flags: Sequence[str]) -> Prelude | None:
        """Returns None for another compiler than gcc, which may refuse what it finds compiled."""
        is_gcc = compiler.identity.startswith("(")  # clang's version has no package in brackets
        return cls(text, (str(compiler.path), *flags)) if text and is_gcc else None


class Precompiled:
    """The preludes of a build that enough units share, as files of ninja's folder."""

    def __init__(self, preludes: Sequence[Prelude | None]) -> None:
        counts = Counter(each for each in preludes if each)
        shared = [each for each, units in counts.items() if units >= _FEWEST_UNITS]
        shared.sort(key=lambda each: each.command)
        self._names = {each: f"prelude-{i}.hpp" for i, each in enumerate(shared)}

    @property
    def files(self) -> Mapping[str, str]:
        """The names and texts of the headers."""
        return {name: each.text for each, name in self._names.items()}

    def ninja_lines(self) -> list[str]:
        lines = [_RULE] if self._names else []
        for each, name in self._names.items():
            lines += [
                f"build {name}.gch: precompile {name}",
                f"  compiler = {shell_value(each.command)}",
            ]
        return lines

    def needed_by(self, prelude: Prelude | None) -> str:
        """Returns what ninja makes before it compiles a unit, as the end of a line."""
        name = self._name_of(prelude)
        return f" || {name}.gch" if name else ""

    def command(self, command: Sequence[str], prelude: Prelude | None) -> list[str]:
        """Returns a unit's command, which takes the compiled header if there is one."""
        name = self._name_of(prelude)
        first, *others = command
        return [first, *(["-include", name] if name else []), *others]

    def _name_of(self, prelude: Prelude | None) -> str | None:
        return self._names.get(prelude) if prelude else None
