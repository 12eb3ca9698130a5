"""Finds the characters of a C++ file that are code of the emulator build.

Everything else is replaced by spaces of the same length, so that offsets in the masked text are
offsets in the file. Operators then look for patterns in what is left.
"""

from __future__ import annotations

import re

_COMMENTS_AND_LITERALS = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*(?:(?<=\\)\n[^\n]*)*", re.MULTILINE)
_CONDITION = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b[ \t]*(.*)", re.DOTALL)
_LITERAL = "\x01"  # marks a literal until statements with messages are masked
_EMULATOR = "FLASHSMITH_EMULATOR"


def masked(text: str) -> str:
    """Returns ``text`` with spaces for comments, literals, directives, GPU code and messages."""
    text = _COMMENTS_AND_LITERALS.sub(_blank_literal, text)
    text = _without_inactive_code(text)
    text = _blank_statements(text, re.compile(r"\bstatic_assert\b|\basm\b"))
    text = _blank_messages(text)
    return text.replace(_LITERAL, " ")


def find_outside_brackets(text: str, start: int, stop: re.Pattern[str]) -> int:
    """Returns the index, from ``start``, of the first match of ``stop`` outside of brackets.

    Brackets opened before ``start`` do not count, but their closing one ends the search, as does
    the end of the text.
    """
    depth = 0
    for i in range(start, len(text)):
        if depth == 0 and stop.match(text, i):
            return i
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            if depth == 0:
                return i
            depth -= 1
    return len(text)


def statement_end(text: str, start: int, closers: str = ";") -> int:
    """Returns the index of the first of ``closers`` outside of brackets, or of the end."""
    return find_outside_brackets(text, start, re.compile(f"[{re.escape(closers)}]"))


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _blank_literal(match: re.Match[str]) -> str:
    blank = _spaces(match[0])
    return _LITERAL + blank[1:] if match[0][0] == '"' else blank


def _without_inactive_code(text: str) -> str:
    """Returns the text without directives, and code that the emulator build leaves out.

    Conditions other than the emulator's count as true.
    """
    result, position = [], 0
    active = [True]  # of the enclosing conditions, outermost first
    for directive in _DIRECTIVE.finditer(text):
        code = text[position : directive.start()]
        result += [code if all(active) else _spaces(code), _spaces(directive[0])]
        position = directive.end()
        if condition := _CONDITION.match(directive[0]):
            _enter(active, condition[1], condition[2].strip())
    result.append(text[position:])
    return "".join(result)


def _enter(active: list[bool], word: str, name: str) -> None:
    if word == "ifdef":
        active.append(True)
    elif word == "ifndef":
        active.append(name != _EMULATOR)
    elif word == "if":
        active.append(True)
    elif word in ("else", "elif"):
        active[-1] = not active[-1]
    else:
        active.pop()


def _blank_statements(text: str, start: re.Pattern[str]) -> str:
    """Returns the text without statements that begin with ``start``, up to their semicolon."""
    position = 0
    while match := start.search(text, position):
        end = statement_end(text, match.end())
        text = text[: match.start()] + _spaces(text[match.start() : end]) + text[end:]
        position = end
    return text


def _blank_messages(text: str) -> str:
    """Returns the text without statements that hold a string: they only compose messages."""
    pieces = re.split(r"([;{}])", text)
    return "".join(_spaces(piece) if _LITERAL in piece else piece for piece in pieces)
