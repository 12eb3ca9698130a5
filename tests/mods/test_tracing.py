"""Tracing: what is refused, with the line; captured tensors; the hash."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.errors import TracingError
from flashsmith.mods import Expression
from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.trace import trace

TABLE, VECTOR, SQUARE = torch.randn(3, 5), torch.randn(7), torch.randn(3, 3)


def in_place(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    s += 1  # makes a new value, as for any number
    s.add_(1)
    return s


def assigned(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    VECTOR[q] = 1.0
    return s


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "if": (lambda s, b, h, q, k: s if q >= k else -s, "cannot branch on it; use torch.where"),
    "and": (lambda s, b, h, q, k: (q > k) and s, "&, | and ~ for and, or and not"),
    "between": (lambda s, b, h, q, k: s * (0 < q < k), "(a <= x) & (x < b) for a <= x < b"),
    "max": (lambda s, b, h, q, k: max(q, k), "torch.maximum for min and max"),
    "float": (lambda s, b, h, q, k: math.exp(s), "cannot become a Python float; use functions of"),
    "int": (lambda s, b, h, q, k: int(q), "cannot become a Python int"),
    "item": (lambda s, b, h, q, k: s + q.item(), "cannot become a Python float"),
    "list": (lambda s, b, h, q, k: [1, 2][q], "cannot become a Python index"),
    "dict": (lambda s, b, h, q, k: {1: 2}[q], "cannot become a Python key of a dictionary"),
    "loop": (lambda s, b, h, q, k: list(s), "nothing to iterate over"),
    "index": (lambda s, b, h, q, k: s[0], "nothing to index"),
    "in place": (in_place, "torch's 'add_' is not supported; supported are abs, acos, add, "),
    "assigned": (assigned, "torch's '__setitem__' is not supported"),
    "unknown": (lambda s, b, h, q, k: torch.softmax(s, -1), "torch's 'softmax' is not supported"),
    "random": (lambda s, b, h, q, k: s * torch.rand(()), "'rand' draws anew at every call"),
    "whole": (lambda s, b, h, q, k: s + TABLE, "shape (3, 5) is used whole; index all of"),
    "on the left": (lambda s, b, h, q, k: TABLE * s, "shape (3, 5) is used whole; index all of"),
    "part": (lambda s, b, h, q, k: s + TABLE[h], "a captured tensor's dimensions: 1 are left"),
    "sum": (lambda s, b, h, q, k: s + TABLE[h].sum(), "dimensions: 1 are left"),
    "slice": (lambda s, b, h, q, k: TABLE[:, q], "indexed by slice(None, None, None); expected"),
    "by a float": (lambda s, b, h, q, k: VECTOR[s], "indexed by <a traced float>; expected"),
    "by a bool": (lambda s, b, h, q, k: VECTOR[q > k], "indexed by <a traced bool>; expected"),
    "too many": (lambda s, b, h, q, k: VECTOR[q, k], "2 indices for a tensor of 1 dimensions"),
    "int64": (lambda s, b, h, q, k: s + q.long(), "cannot be torch.int64: values are float32, "),
    "half": (lambda s, b, h, q, k: s.to(torch.float16), "cannot be torch.float16"),
    "big": (lambda s, b, h, q, k: s + q * 2**31, "2147483648 is no 32-bit integer"),
    "negative power": (lambda s, b, h, q, k: q**-1, "no negative power; use .float()"),
    "bools": (lambda s, b, h, q, k: (q > k) - (q < k), "bools are not subtracted"),
    "bitwise": (lambda s, b, h, q, k: s & 1, "bitwise_and takes no float"),
    "condition": (lambda s, b, h, q, k: torch.where(q, s, 0), "condition is int; expected bool"),
    "argument": (lambda s, b, h, q, k: torch.add(s, q, alpha=2), "'add': .* argument 'alpha'"),
    "string": (lambda s, b, h, q, k: s + "1", "got a str; expected a traced value"),
    "bool": (lambda s, b, h, q, k: q > k, "it returns bool; expected float"),
    "none": (lambda s, b, h, q, k: None, "it returns a NoneType; expected float"),
    "vector": (
        lambda s, b, h, q, k: VECTOR,
        "it returns a tensor of shape (7,); expected one float",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_can_do_is_refused_with_its_line(name: str) -> None:
    function, words = REFUSED[name]
    lines, start = inspect.getsourcelines(function)
    with pytest.raises(TracingError) as caught:
        trace(function)
    found = re.match(r"score_mod, (.+):(\d+): (.+)", str(caught.value), re.DOTALL)
    assert found, caught.value
    assert found[1] == __file__
    assert start <= int(found[2]) < start + len(lines)
    assert re.search(words if ".*" in words else re.escape(words), found[3]), caught.value


def test_the_line_is_that_of_the_innermost_function_of_the_user() -> None:
    def inner(q: Any) -> Any:
        return q if q else -q

    line = inner.__code__.co_firstlineno + 1
    with pytest.raises(TracingError, match=rf"mask_mod, .*:{line}: its value"):
        trace(None, lambda b, h, q, k: inner(q) > k)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(3, dtype=torch.int64), r"dtype int64; supported are .* as .to\(torch.int32\)"),
        (torch.zeros(3, dtype=torch.float64), "dtype float64; supported are float32"),
        (torch.zeros(0), r"shape \(0,\) .* has no elements"),
        (torch.zeros(1).expand(2**31), "is too large: indices are 32-bit integers"),
        (torch.zeros(2, 2**30 + 1, device="meta"), "is too large"),
        (torch.zeros(3, requires_grad=True), "requires a gradient"),
        (torch.zeros(3).to_sparse(), "layout torch.sparse_coo; expected torch.strided"),
    ],
    ids=["int64", "float64", "empty", "wide", "large", "gradient", "sparse"],
)
def test_tensors_that_cannot_be_read_are_refused(tensor: torch.Tensor, words: str) -> None:
    with pytest.raises(TracingError, match=words):
        trace(lambda s, b, h, q, k: s + tensor[(h,) * tensor.dim()])


def test_a_tensor_has_at_most_four_dimensions() -> None:
    five = torch.zeros(1, 1, 1, 1, 1)
    with pytest.raises(TracingError, match="supported are at most 4 dimensions"):
        trace(lambda s, b, h, q, k: s + five[0:1][b, h, q, k, 0])


def test_at_most_eight_tensors_are_read() -> None:
    tables = [torch.zeros(3) for _ in range(9)]
    eight = trace(lambda s, b, h, q, k: sum((t[h] for t in tables[:8]), s))
    assert all(a is b for a, b in zip(eight.buffers, tables[:8], strict=True))
    with pytest.raises(TracingError, match="this is captured tensor number 9; at most 8"):
        trace(lambda s, b, h, q, k: sum((t[h] for t in tables), s))


def test_a_tensor_is_passed_once_and_only_if_it_is_used() -> None:
    other = torch.zeros(3)

    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        _ = other[h]
        return s + TABLE[h, 0] * TABLE[0][h] + TABLE[0][h] + TABLE[0, h]

    mods = trace(function, lambda b, h, q, k: TABLE[h, q] > 0)
    assert [tuple(t.shape) for t in mods.buffers] == [(3, 5), (5,)]
    assert mods.buffers[0] is TABLE
    assert len([n for n in mods.expression.nodes if n.operation == "load"]) == 4


@pytest.mark.parametrize(
    "view",
    [SQUARE.T, SQUARE[:2], SQUARE.view(torch.int32), SQUARE[0].expand(3, 3)],
    ids=["transpose", "part", "dtype", "row"],
)
def test_a_tensor_and_a_view_of_its_memory_are_two(view: torch.Tensor) -> None:
    h, k = (torch.arange(4, dtype=torch.int32) // n % 2 for n in (2, 1))
    for one, other in ((SQUARE, view), (view, SQUARE)):

        def both(h: Any, k: Any, one: Any = one, other: Any = other) -> Any:
            return one[h, k] * 1.0 - other[h, k] * 2.0

        mods = trace(lambda s, b, h, q, k, both=both: s + both(h, k))
        assert [t is same for t, same in zip(mods.buffers, (one, other), strict=True)] == [True] * 2
        inputs = {"score": torch.zeros(4), "h": h, "kv": k}
        assert evaluate(mods, mods.expression.score or 0, inputs).equal(both(h, k))


def test_numbers_are_constants_and_a_tensor_of_one_float_is_read() -> None:
    slope, window, on = torch.tensor(0.5), torch.tensor(7), torch.tensor(True)
    mods = trace(lambda s, b, h, q, k: s * slope + window, lambda b, h, q, k: on & (q - k < window))
    assert [t is slope for t in mods.buffers] == [True]
    constants = {n.value for n in mods.expression.nodes if n.operation == "constant"}
    assert constants == {7, 1}


def test_equal_values_stand_once() -> None:
    mods = trace(lambda s, b, h, q, k: (q - k) * (q - k) + (q - k).abs() * s)
    assert sum(node.operation == "sub" for node in mods.expression.nodes) == 1


def test_limits_are_told_from_extremes_where_they_have_derivatives() -> None:
    def operations(function: Callable[..., Any]) -> list[str]:
        return [node.operation for node in trace(function).expression.nodes if node.operands]

    assert operations(lambda s, b, h, q, k: s.clamp(0, 1)) == ["clamp_min", "clamp_max"]
    assert operations(lambda s, b, h, q, k: torch.relu(s)) == ["clamp_min"]
    assert operations(lambda s, b, h, q, k: torch.maximum(s, s * 2)) == ["mul", "maximum"]
    whole = lambda s, b, h, q, k: torch.relu(q.clamp(k, 9)) * 1.0  # noqa: E731
    assert operations(whole) == ["maximum", "minimum", "maximum", "to_float", "mul"]


def test_what_is_detached_is_noted_of_floats_alone() -> None:
    same = trace(lambda s, b, h, q, k: s * q).expression
    assert trace(lambda s, b, h, q, k: s * q.detach()).expression == same
    assert trace(lambda s, b, h, q, k: s.detach() * q).expression != same


def test_the_hash_knows_no_names_and_no_shapes() -> None:
    slopes, renamed = torch.rand(4), torch.rand(9)

    def first(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        unused = q_idx * 17
        distance = q_idx - kv_idx
        del unused
        return score - slopes[h] * distance

    def second(a: Any, c: Any, d: Any, e: Any, f: Any, *, g: float = 1.0) -> Any:
        return a - renamed[::2][d] * (e - f)

    expression = trace(first).expression
    assert expression == trace(second).expression
    assert expression == trace(functools.partial(second, g=2.0)).expression
    assert expression.hash == trace(second).expression.hash
    assert re.fullmatch("[0-9a-f]{12}", expression.hash)


@pytest.mark.parametrize(
    "other",
    [
        lambda s, b, h, q, k: s * 0.25 + q,
        lambda s, b, h, q, k: s * 0.125 - q,
        lambda s, b, h, q, k: s * 0.125 + k,
        lambda s, b, h, q, k: s * 0.125 + q + VECTOR[q],
        lambda s, b, h, q, k: s * -0.125 + q,
    ],
)
def test_the_hash_tells_computations_apart(other: Callable[..., Any]) -> None:
    assert (
        trace(lambda s, b, h, q, k: s * 0.125 + q).expression.hash != trace(other).expression.hash
    )


def test_zeros_of_both_signs_and_types_of_tensors_are_told_apart() -> None:
    hashes = {
        trace(lambda s, b, h, q, k, f=f: f(s, h)).expression.hash
        for f in (
            lambda s, h: s + 0.0,
            lambda s, h: s + -0.0,
            lambda s, h: s + math.nan,
            lambda s, h: s + VECTOR[h],
            lambda s, h: s + VECTOR.half()[h],
            lambda s, h: s + TABLE[h, h],
        )
    }
    assert len(hashes) == 6
    both = trace(lambda s, b, h, q, k: torch.where(q > k, 0.0, -0.0)).expression
    assert sum(node.operation == "constant" for node in both.nodes) == 2


def test_a_text_reads_back() -> None:
    mods = trace(
        lambda s, b, h, q, k: torch.where(q > k, s * 0.1 + TABLE[h, q], -math.inf),
        lambda b, h, q, k: (q - k <= 128) & True,
    )
    assert Expression.from_text(mods.expression.text) == mods.expression
    empty = trace().expression
    assert Expression.from_text(empty.text) == empty


@pytest.mark.parametrize(
    "text",
    [
        "",
        "buffers\nfoo int\n",
        "buffers half[1]\n",
        "buffers\ninput int x\n",
        "buffers\nscore\n",
        "buffers\ninput  int q\nscore 0\n",
        "buffers\nadd int v0\n",
    ],
)
def test_a_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no"):
        Expression.from_text(text)


@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "words"),
    [
        (3, None, r"score_mod is a int; expected a function of \(score, b, h, q_idx, kv_idx\)"),
        (lambda s, q, k: s, None, r"score_mod takes \(s, q, k\); expected a function of \(score, "),
        (None, lambda s, b, h, q, k: q > k, r"mask_mod takes .*; expected a function of \(b, h, "),
    ],
)
def test_functions_of_other_arguments_are_refused(
    score_mod: Any, mask_mod: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        trace(score_mod, mask_mod)


def test_a_mask_returns_a_bool() -> None:
    with pytest.raises(TracingError, match=r"mask_mod, .*: it returns int; expected bool"):
        trace(None, lambda b, h, q, k: q - k)
    assert trace(None, lambda b, h, q, k: True).expression.visible is not None


def test_masks_of_torch_can_be_combined() -> None:
    from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

    causal = lambda b, h, q, k: q >= k  # noqa: E731
    mods = trace(None, or_masks(and_masks(causal, noop_mask), lambda b, h, q, k: k < 4))
    assert mods.expression.inputs_of(mods.expression.visible or 0) == {"q", "kv"}


def test_the_user_s_own_errors_pass() -> None:
    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(function)


def test_a_function_in_c_which_says_nothing_of_its_arguments_is_called() -> None:
    with pytest.raises(TracingError, match=r"torch\.maximum for min and max"):
        trace(max)
