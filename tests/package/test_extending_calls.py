"""The steps to add an argument that every layer carries, done in a copy of the package: the keyword
of `attention` reaches a number in the kernels' arguments, through the launch cache too."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import flashsmith
from flashsmith.ops.spec import AttentionSpec
from support.package_copy import PACKAGE, copy, edit, run

__all__ = ["copy"]  # a fixture

MAX_FILES = 16
HOST = "csrc/host"
CACHE = f"{HOST}/launch_cache"
# The new argument `lift` is added to softmax_scale in the host's arguments of kernels.
NEW_NUMBER: dict[str, dict[str, str]] = {
    "ops/attention.py": {
        "    v_scale: torch.Tensor | None = None,\n": "    v_scale: torch.Tensor | None = None,\n"
        "    lift: float = 0.0,\n",
        "k_scale is v_scale is None\n    ):": "k_scale is v_scale is None\n"
        "        and lift == 0\n    ):",
        "OFF, None, q_scale, k_scale, v_scale,\n": "OFF, None, q_scale, k_scale, v_scale, lift,\n",
    },
    "ops/spec.py": {
        "    v_scale: torch.Tensor | None = None\n": "    v_scale: torch.Tensor | None = None\n"
        "    lift: float = 0.0\n",
        "        seqused_q, seqused_k, block_table, _, _, key_ranges, _, _, rng_state,\n"
        "        q_scale, k_scale, v_scale,\n": "        seqused_q, seqused_k, block_table, _, _, "
        "key_ranges, _, _, rng_state,\n        q_scale, k_scale, v_scale, _,\n",
        "rows_per_range, dropout_p, rng_state,\n        q_scale, k_scale, v_scale,\n": "rows_per_"
        "range, dropout_p, rng_state,\n        q_scale, k_scale, v_scale, lift,\n",
        "score, rows_per_range, dropout_p,\n": "score, rows_per_range, dropout_p, lift,\n",
    },
    "runtime/call_args.py": {
        "    dropout_p: float = 0.0\n": "    dropout_p: float = 0.0\n    lift: float = 0.0\n"
    },
    "ops/operators.py": {
        "key_ranges=None, int rows_per_range=1": "key_ranges=None, int rows_per_range=1, "
        "float lift=0.0"
    },
    "flash_attn/calls.py": {
        "OFF, None, None, None, None,\n": "OFF, None, None, None, None, 0.0,\n"
    },
    f"{HOST}/args/semantics.h": {
        "none\n};\nconstexpr size_t kNumbers = 9;": "none\n  double lift = 0;\n};\n"
        "constexpr size_t kNumbers = 10;"
    },
    f"{HOST}/args/call.cpp": {
        '"dropout_p", arguments[8])};': '"dropout_p", arguments[8]), '
        '.lift = number<double>("lift", arguments[9])};'
    },
    f"{HOST}/args/forward.cpp": {
        "? 1 : numbers.softmax_scale)": "? 1 : numbers.softmax_scale + numbers.lift)"
    },
    f"{CACHE}/spec.h": {
        "  v_scale\n};": "  v_scale,\n  lift\n};",
        '"v_scale"};': '"v_scale", "lift"};',
        "static_cast<size_t>(Field::v_scale) + 1": "static_cast<size_t>(Field::lift) + 1",
    },
    f"{CACHE}/spec.cpp": {
        "  numbers.score = *score;\n": "  numbers.score = *score;\n"
        "  numbers.lift = number_of(spec[Field::lift]).value_or(0);\n",
        "numbers.rows_per_range, numbers.dropout_p}": "numbers.rows_per_range, numbers.dropout_p, "
        "numbers.lift}",
    },
}
CALL = """
import torch, flashsmith
from flashsmith.ops import forward
q, k, v = (torch.randn(1, 64, 2, 64).half() for _ in range(3))
expected = flashsmith.attention(q, k, v, softmax_scale=0.125 + 0.25)
assert torch.equal(flashsmith.attention(q, k, v, lift=0.25), expected)

def slowly(*_):
    raise AssertionError("the call came to Python")

forward._slowly = slowly
assert torch.equal(flashsmith.attention(q, k, v, lift=0.25), expected)
assert not torch.equal(flashsmith.attention(q, k, v, lift=0.5), expected)
"""


def test_an_argument_that_the_launch_cache_carries_is_few_files(copy: Path) -> None:
    assert len(NEW_NUMBER) <= MAX_FILES
    for name, changes in NEW_NUMBER.items():
        edit(copy / name, changes)
    run(copy, CALL)


def calls_of(name: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == name:
                yield path.name, node


def is_by_position(call: ast.Call) -> bool:
    """Returns whether the fields are passed one by one, rather than unpacked from another tuple."""
    return not any(isinstance(each, ast.Starred) for each in call.args)


def named_in(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_specifications_made_by_position_have_their_fields_in_order() -> None:
    """`make_spec` takes all fields by position, because a tuple by names costs four times as
    much."""
    fields = AttentionSpec._fields
    found = [(name, call) for name, call in calls_of("make_spec") if is_by_position(call)]
    assert len(found) >= 2
    for name, call in found:
        assert len(call.args) == len(fields), name
        for field, given in zip(fields, call.args, strict=True):
            others = named_in(given) & {*fields} - {field}
            assert not others, f"{name}:{call.lineno} gives {others} as {field}"


def test_the_public_signature_names_every_field_that_is_an_argument() -> None:
    arguments = set(inspect.signature(flashsmith.attention).parameters)
    of_the_library = {"block_table", "score", "mod_tensors", "key_ranges", "rows_per_range"}
    assert {*AttentionSpec._fields} - arguments == of_the_library
