"""Masks, scores and lengths that forward refuses, by the argument's name and without a write to
o."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import VARIANTS, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from support.bad_input import MARK, Arguments, Case, assert_refused, case
from support.semantics import FAMILIES, SINGLE

HEADS, HEADS_KV = 4, 2
DENSE_Q, DENSE_K = (2, 30), (2, 20)  # batch, rows
LENGTHS = {
    "cu_seqlens_q": torch.tensor([0, 10, 30]).int(),
    "cu_seqlens_k": torch.tensor([0, 15, 20]).int(),
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    packed = map(Variant.from_name, ("varlen", "alibi+varlen", "bias+varlen"))
    kinds = (*VARIANTS, *SINGLE, *packed)
    load_kernels([KernelId(cfg, v) for cfg in FAMILIES.values() for v in kinds], Target.emulator())


def good(cfg: Any, *, packed: bool = False) -> Arguments:
    """Returns arguments that forward accepts."""
    dtype = cfg.dtype.to_torch_dtype()
    rows_q, rows_k = ((30,), (20,)) if packed else (DENSE_Q, DENSE_K)
    q = torch.randn(*rows_q, HEADS, cfg.d_head).to(dtype)
    k, v = (torch.randn(*rows_k, HEADS_KV, cfg.d_head).to(dtype) for _ in range(2))
    lengths = {name: t.clone() for name, t in LENGTHS.items()} if packed else {}
    return {"cfg": cfg, "q": q, "k": k, "v": v, "o": torch.full_like(q, MARK), **lengths}


def given(name: str, value: Any) -> Callable[[Arguments], Arguments]:
    return lambda a: {name: value}


def bad(name: str, title: str, value: Any, error: type[Exception], *words: str) -> Case:
    """Returns a case in which one argument is wrong; its name begins the message."""
    return case(f"{name} {title}", given(name, value), error, f"{name} ", *words)


def of_dtype(name: str, *shape: int) -> Case:
    def change(a: Arguments) -> Arguments:
        return {name: torch.zeros(shape, dtype=torch.float64)}

    return case(f"{name} float64", change, TypeError, f"{name} has dtype float64")


def bias(*shape: int, **how: Any) -> Callable[[Arguments], Arguments]:
    return lambda a: {"bias": torch.zeros(shape, dtype=how.get("dtype", a["q"].dtype))}


def strided_bias(a: Arguments) -> Arguments:
    return {"bias": torch.zeros(1, 1, 20, 30, dtype=a["q"].dtype).transpose(2, 3)}


def with_grad(name: str, size: int) -> Case:
    tensor = torch.zeros(size, requires_grad=True)
    return bad(name, "with gradient", tensor, NotImplementedError, "requires a gradient")


def narrow(q: int, v: int) -> Callable[[Arguments], Arguments]:
    """Returns a change that gives the tensors rows of other lengths."""

    def change(a: Arguments) -> Arguments:
        of_q, of_k = a["q"].shape[:-1], a["k"].shape[:-1]
        sizes = {"q": (*of_q, q), "k": (*of_k, q), "v": (*of_k, v), "o": (*of_q, v)}
        return {name: torch.zeros(size, dtype=a["q"].dtype) for name, size in sizes.items()}

    return change


WINDOWS = [
    bad("window_size", "a number", 3, TypeError, "3", "expected two ints"),
    bad("window_size", "of one", (3,), TypeError, "expected two ints"),
    bad("window_size", "of three", (3, 0, 0), TypeError, "expected two ints"),
    bad("window_size", "of floats", (3.0, 0), TypeError, "3.0", "expected two ints"),
    bad("window_size", "of bools", (True, 0), TypeError, "expected two ints"),
    bad("window_size", "below -1", (-2, 0), ValueError, "(-2, 0)", "-1 for all keys"),
    bad("window_size", "below -1 ahead", (0, -2), ValueError, "(0, -2)", "-1 for all keys"),
    bad("top_left", "a number", 1, TypeError, "expected True or False"),
]
SCORES = [
    bad("softcap", "text", "5", TypeError, "is a str", "expected a float"),
    bad("softcap", "a bool", True, TypeError, "is a bool"),
    bad("softcap", "below 0", -1.0, ValueError, "-1.0", "expected 0 (none)"),
    bad("softcap", "infinite", math.inf, ValueError, "inf"),
    bad("softcap", "NaN", math.nan, ValueError, "nan"),
    bad("alibi_slopes", "a list", [0.5] * HEADS, TypeError, "is a list", "torch.Tensor"),
    of_dtype("alibi_slopes", HEADS),
    bad("alibi_slopes", "of other heads", torch.zeros(HEADS + 1), ValueError, "(5)", "(4)"),
    bad("alibi_slopes", "of other batch", torch.zeros(3, HEADS), ValueError, "(3, 4)", "(2, 4)"),
    bad("alibi_slopes", "strided", torch.zeros(2 * HEADS)[::2], ValueError, "contiguous"),
    bad("alibi_slopes", "elsewhere", torch.zeros(HEADS, device="meta"), ValueError, "meta"),
    with_grad("alibi_slopes", HEADS),
    bad("sinks", "a number", 0.5, TypeError, "is a float", "torch.Tensor"),
    of_dtype("sinks", HEADS),
    bad("sinks", "of kv heads", torch.zeros(HEADS_KV), ValueError, "(2)", "(4)"),
    bad("sinks", "of two dimensions", torch.zeros(2, HEADS), ValueError, "(2, 4)"),
    bad("sinks", "elsewhere", torch.zeros(HEADS, device="meta"), ValueError, "meta"),
    with_grad("sinks", HEADS),
    case("bias float32", bias(1, 1, 30, 20, dtype=torch.float32), TypeError,
         "bias has dtype float32"),
    case("bias of three dimensions", bias(1, 30, 20), ValueError, "bias has shape (1, 30, 20)",
         "(2, 4, 30, 20)"),
    case("bias of other keys", bias(1, 1, 30, 21), ValueError, "bias has shape", "(2, 4, 30, 20)"),
    case("bias of other queries", bias(1, 1, 29, 20), ValueError, "bias has shape"),
    case("bias of kv heads", bias(1, 2, 30, 20), ValueError, "bias has shape"),
    case("bias of other batch", bias(3, 1, 30, 20), ValueError, "bias has shape"),
    case("bias strided", strided_bias, ValueError, "bias has", "in its last dimension"),
]  # fmt: skip
ROWS = [
    case("rows of 12", narrow(12, 16), ValueError, "q has d_head 12", "multiples of 8"),
    case("values of 12", narrow(16, 12), ValueError, "v has d_v 12", "multiples of 8"),
    case("rows beyond the kernel's", narrow(264, 16), ValueError, "q has d_head 264"),
    case("values beyond the kernel's", narrow(16, 264), ValueError, "v has d_v 264"),
    case("o of q's rows", lambda a: narrow(16, 32)(a) | {"o": a["q"]}, ValueError, "o has shape"),
    case("packed without places", lambda a: {n: a[n][0] for n in "qkvo"}, ValueError,
         "q has 3 dimensions", "expected 4"),
]  # fmt: skip


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


PACKED = [
    case("q with a batch", lambda a: {"q": a["q"][None]}, ValueError,
         "q has 4 dimensions", "expected 3 with cu_seqlens_q"),
    case("v with a batch", lambda a: {"v": a["v"][None]}, ValueError,
         "v has 4 dimensions", "expected 3 with cu_seqlens_k"),
    case("o with a batch", lambda a: {"o": a["o"][None]}, ValueError, "o has 4 dimensions"),
    *(
        c
        for side, rows in (("q", 30), ("k", 20))
        for name in [f"cu_seqlens_{side}"]
        for c in (
            bad(name, "a list", [0, 5, rows], TypeError, "is a list", "torch.Tensor"),
            bad(name, "int64", ints(0, 5, rows, dtype=torch.int64), TypeError, "int64", "int32"),
            bad(name, "falling", ints(0, rows, 5), ValueError, f"= 5 follows {rows}"),
            bad(name, "beyond the tensor", ints(0, 5, rows + 1), ValueError, str(rows)),
            bad(name, "below 0", ints(-1, 5, rows), ValueError, "-1"),
            bad(name, "of two dimensions", ints(0, 5, rows)[None], ValueError, "(1, 3)"),
            bad(name, "empty", ints(), ValueError),
            bad(name, "strided", ints(0, 0, 5, 0, rows, 0)[::2], ValueError, "contiguous"),
            bad(name, "elsewhere", ints(0, 5, rows).to("meta"), ValueError, "meta"),
            bad(f"max_seqlen_{side}", "below 0", -1, ValueError, "-1"),
            bad(f"max_seqlen_{side}", "a float", 5.0, ValueError, "5.0"),
            bad(f"max_seqlen_{side}", "a bool", True, ValueError, "True"),
        )
    ),
    bad("cu_seqlens_k", "of other batch", ints(0, 5, 10, 20), ValueError, "(4)", "(3)"),
    bad("seqused_q", "int64", ints(5, 5, dtype=torch.int64), TypeError, "int64", "int32"),
    bad("seqused_q", "of other batch", ints(5, 5, 5), ValueError, "(3)", "(2)"),
    bad("seqused_q", "beyond its sequence", ints(11, 5), ValueError, "11", "0 to 10"),
    bad("seqused_k", "below 0", ints(5, -1), ValueError, "-1"),
    case("alibi_slopes of other batch", given("alibi_slopes", torch.zeros(1, HEADS)), ValueError,
         "alibi_slopes has shape (1, 4)", "(2, 4)"),
    case("bias", bias(1, 1, 30, 20), ValueError, "bias was passed with cu_seqlens"),
]  # fmt: skip
DENSE = [*WINDOWS, *SCORES, *ROWS]
BY_FAMILY = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())


@pytest.mark.parametrize("wrong", DENSE, ids=str)
@BY_FAMILY
def test_forward_refuses(cfg: Any, wrong: Case) -> None:
    assert_refused(flashsmith.forward, good(cfg), wrong)


@pytest.mark.parametrize("wrong", PACKED, ids=str)
@BY_FAMILY
def test_forward_refuses_of_packed_sequences(cfg: Any, wrong: Case) -> None:
    assert_refused(flashsmith.forward, good(cfg, packed=True), wrong)


def test_names_are_unique() -> None:
    for cases in (DENSE, PACKED):
        names = [c.name for c in cases]
        assert len(names) == len(set(names)) >= 30


@BY_FAMILY
def test_what_is_not_refused_works(cfg: Any) -> None:
    for arguments in (good(cfg), good(cfg) | {"window_size": [5, 0]}, good(cfg, packed=True)):
        flashsmith.forward(**arguments)
        assert not (arguments["o"] == MARK).any()
