"""The operators for C++: each finds places in masked text (see cxx_text), and replacements.

They rely on clang-format's spacing: binary operators have a space on both sides, but the brackets
of templates, references and pointers do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.mutants.cxx_text import find_outside_brackets, masked, statement_end


@dataclass(frozen=True)
class Edit:
    """The characters from ``start`` to before ``end`` of the file are replaced by ``text``."""

    operator: str
    start: int
    end: int
    text: str


Operator = Callable[[str], Iterator[Edit]]


def edits(text: str) -> list[Edit]:
    """Returns every edit of every operator, by position in the file."""
    code = masked(text)
    found = {edit: None for operator in OPERATORS for edit in operator(code)}
    return sorted(found, key=lambda e: (e.start, e.end, e.operator, e.text))


def apply(text: str, edit: Edit) -> str:
    return text[: edit.start] + edit.text + text[edit.end :]


def _replace(name: str, pattern: str, replacements: dict[str, tuple[str, ...]]) -> Operator:
    """Returns an operator that replaces group 1 of ``pattern`` by each of its ``replacements``."""
    compiled = re.compile(pattern)

    def find(code: str) -> Iterator[Edit]:
        for match in compiled.finditer(code):
            for text in replacements[match[1]]:
                yield Edit(name, match.start(1), match.end(1), text)

    return find


# A relation's bound moves by one, and an equality is negated.
relation = _replace(
    "relation",
    r" (<|<=|>|>=|==|!=)\s",
    {"<": ("<=",), "<=": ("<",), ">": (">=",), ">=": (">",), "==": ("!=",), "!=": ("==",)},
)
off_by_one = _replace(
    "off by one",
    r"[ (]([+-] 1)\b(?![.\w'])",
    {"+ 1": ("+ 2", "+ 0"), "- 1": ("- 2", "- 0")},
)
arithmetic = _replace(
    "arithmetic",
    r"[\w)\]] ([*/%^|&]|<<|>>) ",
    {"*": ("/",), "/": ("*",), "%": ("/",), "^": ("|",), "|": ("&",), "&": ("|",), "<<": (">>",),
     ">>": ("<<",)},
)  # fmt: skip
assignment = _replace(
    "assignment",
    r" ([-+*/|&^]=) ",
    dict.fromkeys(("+=", "-=", "*=", "/=", "|=", "&=", "^="), ("=",)),
)
extreme = _replace(
    "extreme",
    r"\b(std::min|std::max|fmaxf|fminf)\b",
    {"std::min": ("std::max",), "std::max": ("std::min",), "fmaxf": ("fminf",),
     "fminf": ("fmaxf",)},
)  # fmt: skip
boolean = _replace("boolean", r"\b(true|false)\b(?!_)", {"true": ("false",), "false": ("true",)})
negation = _replace("negation", r"[\s(](!)(?=[\w(])", {"!": ("",)})
narrow_type = _replace(
    "narrow type",
    r"\b(int64_t|uint64_t|size_t|uintptr_t)\b(?=>\(| \w+ = [^;]*\*)",
    {"int64_t": ("int",), "uint64_t": ("unsigned",), "size_t": ("unsigned",),
     "uintptr_t": ("unsigned",)},
)  # fmt: skip


def narrow_product(code: str) -> Iterator[Edit]:
    """Yields edits that round a product with a stride to 32 bits."""
    for match in re.finditer(r"[\w.]+(?:\([\w.]+\))? \* [\w.]*stride[\w.]*", code):
        yield Edit("narrow product", *match.span(), f"static_cast<int>({match[0]})")


_OPERAND_BEFORE = re.compile(r"(?:[(\[{,;?:]| = |&&|\|\||\breturn\b)\s*")
_TERM_END = re.compile(r" [-+<>=!?:&|]|[,;]|<<|>>")


def dropped_term(code: str) -> Iterator[Edit]:
    """Yields ``a + b - c`` without b, and without c."""
    for match in re.finditer(r"(?<=[\w)\]]) [+-] (?=[\w(])", code):
        end = _term_end(code, match.end())
        if end > match.end() and not re.fullmatch(r"1", code[match.end() : end].strip()):
            yield Edit("dropped term", match.start(), end, "")


def dropped_conjunct(code: str) -> Iterator[Edit]:
    """Yields ``a && b`` and ``a || b`` without b, and without a."""
    for match in re.finditer(r"\s(&&|\|\|)\s", code):
        end = _operand_end(code, match.end())
        start = _operand_start(code, match.start())
        yield Edit("dropped conjunct", match.start(), end, "")
        yield Edit("dropped conjunct", start, match.end(), "")


def condition(code: str) -> Iterator[Edit]:
    """Yields edits that make the condition of an ``if`` always false, or always true."""
    for match in re.finditer(r"\bif (?:constexpr )?\(", code):
        end = statement_end(code, match.end(), ")")
        if ";" not in code[match.end() : end] and " = " not in code[match.end() : end]:
            yield Edit("condition", match.end(), end, "false")
            yield Edit("condition", match.end(), end, "true")


_CALL = re.compile(
    r"^[ ]+(?!(?:return|if|for|while|switch|else|throw|delete|using)\b)"
    r"(?:\w+(?:::|\.|->))*(?:template )?\w+(?:<[^;\n]*?>)?\(",
    re.MULTILINE,
)


def dropped_call(code: str) -> Iterator[Edit]:
    """Yields edits that drop a statement that is one call whose value is not used."""
    for match in _CALL.finditer(code):
        before = code[: match.start()].rstrip()
        after = statement_end(code, match.end(), ")") + 1
        if before[-1:] in ";{})" and code[after : after + 1] == ";":
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            yield Edit("dropped call", start, after, "")


OPERATORS: tuple[Operator, ...] = (
    relation,
    off_by_one,
    arithmetic,
    assignment,
    extreme,
    boolean,
    negation,
    narrow_type,
    narrow_product,
    dropped_term,
    dropped_conjunct,
    condition,
    dropped_call,
)


def _term_end(code: str, start: int) -> int:
    return find_outside_brackets(code, start, _TERM_END)


def _operand_end(code: str, start: int) -> int:
    return find_outside_brackets(code, start, re.compile(r"\s(?:&&|\|\|)\s|\s[?:]\s|[,;]"))


def _operand_start(code: str, end: int) -> int:
    """Returns the beginning of the operand that ends before ``end``."""
    depth = 0
    for i in range(end - 1, -1, -1):
        if depth == 0 and (match := _OPERAND_BEFORE.match(code, i)):
            return match.end()
        if code[i] in ")]}":
            depth += 1
        elif code[i] in "([{":
            depth -= 1
    return 0
