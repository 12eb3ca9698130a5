"""tools.mutants: the code that is mutated, and the mutations."""

from __future__ import annotations

import pytest
from tools.mutants import cxx_operators
from tools.mutants.cxx_operators import apply, edits
from tools.mutants.cxx_text import masked
from tools.mutants.mutant import change_between, mutant_id

CASES = [
    ("relation", "if (a < n) f();", ["if (a <= n) f();"]),
    ("relation", "x = a == b;", ["x = a != b;"]),
    ("relation", "Tile<kRows> x; operator<=>(y);", []),
    ("off_by_one", "x = n + 1;", ["x = n + 2;", "x = n + 0;"]),
    ("off_by_one", "x = n - 1 + 1.5 + 16;", ["x = n - 2 + 1.5 + 16;", "x = n - 0 + 1.5 + 16;"]),
    ("arithmetic", "x = a * b;", ["x = a / b;"]),
    ("arithmetic", "const T *p = &a; U &r = *p;", []),
    ("assignment", "x += y;", ["x = y;"]),
    ("extreme", "x = std::min(a, b);", ["x = std::max(a, b);"]),
    ("boolean", "bool x = true;", ["bool x = false;"]),
    ("negation", "if (!x) f();", ["if (x) f();"]),
    ("narrow_type", "x = static_cast<int64_t>(a);", ["x = static_cast<int>(a);"]),
    ("narrow_product", "p + row * s.stride + 1", ["p + static_cast<int>(row * s.stride) + 1"]),
    ("dropped_term", "x = a + f(b + c);", ["x = a;", "x = a + f(b);"]),
    ("dropped_term", "x = a - b * c + d;", ["x = a + d;", "x = a - b * c;"]),
    ("dropped_term", "x = n - 1; y = -a;", []),
    ("dropped_conjunct", "if (a && f(b, c)) g();", ["if (a) g();", "if (f(b, c)) g();"]),
    ("dropped_conjunct", "return x == 1 || y;", ["return x == 1;", "return y;"]),
    ("condition", "if (f(a)) g();", ["if (false) g();", "if (true) g();"]),
    ("condition", "if (int x = f(); x) g();", []),
    ("dropped_call", "{\n  a::f<3>(x, {1});\n}", ["{\n  ;\n}"]),
    ("dropped_call", "{\n  return f(x);\n  y = f(x);\n}", []),
    ("dropped_call", "int g(\n  int x);", []),
]


@pytest.mark.parametrize(("operator", "text", "expected"), CASES)
def test_operator(operator: str, text: str, expected: list[str]) -> None:
    found = [apply(text, edit) for edit in getattr(cxx_operators, operator)(masked(text))]
    assert sorted(found) == sorted(expected)


def test_every_operator_has_a_case() -> None:
    names = {n for n in dir(cxx_operators) if getattr(cxx_operators, n) in cxx_operators.OPERATORS}
    assert names == {case[0] for case in CASES} and len(names) == len(cxx_operators.OPERATORS)


MASKED = """\
#include <a>  // a < b
#define F(x) \\
  (x < 1)
const char *s = "a < b"; /* a < b
a < b */ int n = '<' < 1'000;
static_assert(a < b, "why");
if (bad < 1) throw Problem{"x" + (a < b)};
#ifdef FLASHSMITH_EMULATOR
emulated < 1;
#else
gpu < 1;
#endif
#ifndef FLASHSMITH_EMULATOR
gpu < 2;
#ifdef OTHER
gpu < 3;
#endif
#endif
last < 1;
"""


def test_what_is_not_code_of_the_emulator_is_masked() -> None:
    code = masked(MASKED)
    assert len(code) == len(MASKED) and code.count("\n") == MASKED.count("\n")
    kept = [" ".join(line.split()) for line in code.splitlines()]
    assert [line for line in kept if "<" in line] == [
        "int n = < 1'000;", "if (bad < 1) throw Problem{ };", "emulated < 1;", "last < 1;"
    ]  # fmt: skip


def test_edits_are_in_order_and_each_changes_the_text() -> None:
    text = "void f() {\n  if (a < n + 1 && !b) g(a);\n}\n"
    found = edits(text)
    assert [e.start for e in found] == sorted(e.start for e in found)
    assert len({apply(text, e) for e in found} - {text}) == len(found) >= 8


def test_names_outlive_edits_elsewhere() -> None:
    assert mutant_id("f", "o", "a < b", 0) == mutant_id("f", "o", "a < b", 0)
    different = {mutant_id(*k) for k in (("f", "o", "a", 0), ("f", "o", "a", 1), ("g", "o", "a", 0),
                                         ("f", "p", "a", 0), ("f", "o", "b", 0))}  # fmt: skip
    assert len(different) == 5


def test_a_change_is_shown_by_its_lines() -> None:
    change = change_between("a\n  b  c\nd\n", "a\n  x\nd\n")
    assert (change.before, change.after) == ("b c", "x")
