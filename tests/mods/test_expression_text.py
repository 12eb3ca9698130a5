"""Texts of expressions in files are read if a trace could have made them, and are refused
otherwise."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from flashsmith.mods import cpp, registry
from flashsmith.mods.expression import Expression
from flashsmith.mods.trace import trace

TABLE = torch.zeros(4, 8)


def text_of(*lines: str, buffers: str = "") -> str:
    return "".join(f"{line}\n" for line in (f"buffers {buffers}".strip(), *lines))


SOUND = [
    text_of("input float score", "constant float 0x1.0p+1", "mul float v0 v1", "score 2"),
    text_of("input int q", "input int kv", "le bool v1 v0", "visible 2"),
    text_of("input int h", "input int q", "load float 0 v0 v1", "score 2", buffers="float32[2]"),
    text_of("load float 0", "score 0", buffers="float16[0]"),
    text_of("input int q", "load float 0 v0 v0 v0 v0", "score 1", buffers="float32[4]"),
]
# The fault -> the text.
UNSOUND = {
    "operand out of range": text_of("input float score", "neg float v7", "score 1"),
    "operand of itself": text_of("neg float v0", "score 0"),
    "operand behind it": text_of("neg float v1", "input float score", "score 0"),
    "operand below 0": text_of("input float score", "neg float v-1", "score 1"),
    "root out of range": text_of("input float score", "score 1"),
    "root below 0": text_of("input float score", "score -1"),
    "score is no float": text_of("input int q", "score 0"),
    "visible is no bool": text_of("input int q", "visible 0"),
    "an input of another kind": text_of("input int score", "to_float float v0", "score 1"),
    "no buffer": text_of("load float 0", "score 0"),
    "a buffer below 0": text_of("load float -1", "score 0", buffers="float32[0]"),
    "a buffer of another kind": text_of("load int 0", "to_float float v0", "score 1",
                                        buffers="float32[0]"),
    "too few indices": text_of("input int q", "load float 0 v0", "score 1", buffers="float32[2]"),
    "an index that is no int": text_of("input float score", "load float 0 v0", "score 1",
                                       buffers="float32[1]"),
    "too many dimensions": text_of("load float 0", "score 0", buffers="float32[99]"),
    "one dimension too many": text_of("input int q", "load float 0 v0 v0 v0 v0 v0", "score 1",
                                      buffers="float32[5]"),
    "too many buffers": text_of("load float 0", "score 0", buffers="float32[0] " * 9),
    "dimensions below 0": text_of("load float 0", "score 0", buffers="float32[-1]"),
    "too many operands": text_of("input float score", "neg float v0 v0", "score 1"),
    "two operands of where": text_of("input float score", "where float v0 v0", "score 1"),
    "a condition that is no bool": text_of("input float score", "where float v0 v0 v0", "score 1"),
    "operands of two kinds": text_of("input float score", "input int q", "add float v0 v1",
                                     "score 2"),
    "exp of an int": text_of("input int q", "exp int v0", "to_float float v1", "score 2"),
    "a shift of floats": text_of("input float score", "bitwise_left_shift float v0 v0", "score 1"),
    "a comparison that gives a float": text_of("input float score", "lt float v0 v0", "score 1"),
    "an int of 64 bits": text_of("constant int 9999999999", "to_float float v0", "score 1"),
    "a bool of 2": text_of("constant bool 2", "visible 0"),
    "a constant with operands": text_of("input int q", "constant float 0x1.0p+1 v0", "score 1"),
    "an operation that is none": text_of("input float score", "system float v0", "score 1"),
}  # fmt: skip


@pytest.mark.parametrize("text", SOUND)
def test_a_sound_text_makes_cpp(text: str) -> None:
    expression = Expression.from_text(text.replace("0x1.0p+1", "0x1.0000000000000p+1"))
    assert cpp.policy(expression)


@pytest.mark.parametrize("text", UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no"):
        Expression.from_text(text.replace("0x1.0p+1", "0x1.0000000000000p+1"))


def test_whatever_is_changed_it_is_refused_or_makes_cpp() -> None:
    rng = random.Random(3)
    mods = trace(
        lambda s, b, h, q, k: torch.where(q > k, s * 0.1 + TABLE[h, q], s.exp()),
        lambda b, h, q, k: (q - k <= 128) & (h < 3),
    )
    text = mods.expression.text
    words = [*text.split(), "v0", "v9", "v-1", "-1", "99999999999", "float", "bool", "int"]
    read = 0
    for _ in range(2000):
        changed = text.split(" ")
        changed[rng.randrange(len(changed))] = rng.choice(words)
        try:
            expression = Expression.from_text(" ".join(changed))
        except ValueError:
            continue
        read += 1
        assert cpp.policy(expression) and expression.inputs_of(expression.score or 0) is not None
    assert read > 10


# ---- many kernels of one function ----


def remember_many(monkeypatch: pytest.MonkeyPatch, count: int, of: str) -> None:
    monkeypatch.setattr(registry, "_known", {})
    monkeypatch.setattr(registry, "_alike", type(registry._alike)())
    monkeypatch.setattr(registry, "_write", lambda *_: None)
    for n in range(count):
        if of == "numbers":
            mods = trace(lambda s, b, h, q, k, n=n: s * (1 + n / 64))
        else:
            mods = trace(lambda s, b, h, q, k, n=n: s + torch.exp(s) * n if n % 2 else s * n)
        registry.remember(mods.expression)


def test_a_number_that_changes_from_call_to_call_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(UserWarning, match="capture a tensor in place of a number") as warned:
        remember_many(monkeypatch, 40, "numbers")
    assert len(warned) == 1


def test_functions_that_differ_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remember_many(monkeypatch, 15, "numbers")
        remember_many(monkeypatch, 20, "functions")
