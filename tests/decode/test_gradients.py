"""Decode computes no gradients: it refuses tensors that require them, and autograd notices its
writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashsmith
from support.decoding import PLAIN, requests
from support.fp8_caches import FP8
from support.new_keys import NEW, angles, before

OPERATORS = torch.ops.flashsmith
LENGTHS = (17, 6)


def everything() -> dict[str, Any]:
    """Returns a call with every floating-point tensor that decode accepts with a 16-bit cache."""
    asked, k_new, v_new = before(requests(PLAIN, LENGTHS, n_q=2))
    cos, sin = angles(asked.k.shape[1], 8)
    return {
        "q": asked.q, "k_cache": asked.k.nan_to_num(), "v_cache": asked.v.nan_to_num(),
        "cache_seqlens": asked.seqlens, "k_new": k_new, "v_new": v_new, "rotary_cos": cos,
        "rotary_sin": sin, "alibi_slopes": torch.rand(4), "sinks": torch.rand(4),
        "out": torch.zeros_like(asked.q),
    }  # fmt: skip


def of_8_bits() -> dict[str, Any]:
    given = {name: t for name, t in everything().items() if name not in ("out", "sinks")}
    given |= {name: given[name].to(FP8) for name in ("k_cache", "v_cache")}
    return given | {"k_scale": torch.rand(2) + 1, "v_scale": torch.rand(2) + 1}


def through_decode(given: dict[str, Any]) -> Any:
    return flashsmith.decode(None, **given)


def through_operator(given: dict[str, Any]) -> Any:
    out = [given.pop("out")] if "out" in given else []
    tensors = [given.pop(name) for name in ("q", "k_cache", "v_cache")]
    name = "decode" + "_append" * ("k_new" in given) + "_out" * len(out)
    return getattr(OPERATORS, name)(*tensors, *out, **given)


def through_compile(given: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda **each: flashsmith.decode(None, **each), backend="aot_eager")(
        **given
    )


WAYS = pytest.mark.parametrize("decode", [through_decode, through_operator, through_compile])
FLOATS = [name for name in everything() if name != "cache_seqlens"]
NAMES = [*FLOATS, "k_scale", "v_scale"]
# A compiled call asks the same list of tensors as a direct one, and takes three seconds to trace:
# one tensor stands for each kind, those that are read, written, appended and of 8 bits.
COMPILED = ["q", "k_cache", "k_new", "sinks", "out", "k_scale"]


@pytest.mark.parametrize(
    ("name", "decode"),
    [
        *((name, way) for name in NAMES for way in (through_decode, through_operator)),
        *((name, through_compile) for name in COMPILED),
    ],
)
def test_a_tensor_that_requires_a_gradient_is_refused(
    name: str, decode: Callable[[dict[str, Any]], Any]
) -> None:
    make = of_8_bits if name.endswith("_scale") else everything
    given = make()
    given[name].requires_grad_()
    before = given["k_cache"].clone()
    with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        decode(dict(given))
    assert torch.equal(given["k_cache"].float(), before.float())
    with torch.no_grad():
        decode(dict(given))


@WAYS
@pytest.mark.parametrize("name", ["out", "k_cache", "v_cache"])
def test_autograd_notices_that_what_it_saved_was_overwritten(
    name: str, decode: Callable[[dict[str, Any]], Any]
) -> None:
    """Autograd refuses to use the overwritten tensor, as it does after an in-place operation of
    torch."""
    for _ in range(2):  # the second call is a repeated one
        given = everything()
        weight = torch.ones_like(given[name]).requires_grad_()
        loss = (weight * given[name]).sum()
        decode(dict(given))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@WAYS
def test_what_is_only_read_stays_as_autograd_saved_it(
    decode: Callable[[dict[str, Any]], Any],
) -> None:
    given = everything()
    for name in ("k_new", "v_new"):
        del given[name]
    for name in ("rotary_cos", "rotary_sin"):
        del given[name]
    versions = {name: t._version for name, t in given.items()}
    decode(dict(given))
    assert given["out"]._version > versions.pop("out")
    assert {name: given[name]._version for name in versions} == versions


@WAYS
def test_what_was_made_for_inference_is_written_too(
    decode: Callable[[dict[str, Any]], Any],
) -> None:
    """Inference tensors have no version counter to advance."""
    with torch.inference_mode():
        given = everything()
        decode(dict(given))
    assert given["out"].any()
    assert given["k_cache"][0, LENGTHS[0] - NEW].any()


def test_many_queries_written_to_a_place_are_a_new_version() -> None:
    """The forward computes this call, because it has many queries."""
    asked = requests(PLAIN, (300,), n_q=140)
    out = torch.empty_like(asked.q)
    before = out._version
    flashsmith.decode(None, asked.q, asked.k, asked.v, cache_seqlens=300, out=out)
    assert out._version > before
