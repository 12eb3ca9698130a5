"""Each write of the library gives a tensor a new version, so that torch notices a change of what it
saved; gradients that are not computed are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith import flash_attn
from flashsmith.flash_attn import flash_attn_interface as interface
from support.gate_calls import FORWARD, OPERATIONS, cache_of_bytes, dense, gradients, rows

WRITERS = [name for name, each in OPERATIONS.items() if each.written]
MODIFIED = "modified by an inplace operation"
OPERATORS = torch.ops.flashsmith


@pytest.fixture(autouse=True)
def _fresh_graphs() -> None:
    torch._dynamo.reset()


def versions(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    return {name: t._version for name, t in tensors.items()}


def assert_written(call: Callable[[], Any], tensors: dict[str, torch.Tensor], *names: str) -> None:
    """Checks that the first call and repeated calls raise the versions of these tensors alone."""
    for _ in range(3):
        before = versions(tensors)
        call()
        after = versions(tensors)
        assert {name for name in tensors if after[name] > before[name]} == set(names)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_has_a_new_version(name: str) -> None:
    operation = OPERATIONS[name]
    tensors = operation.make(1)
    assert_written(lambda: operation.call(**tensors), tensors, *operation.written)


@pytest.mark.parametrize("name", WRITERS)
def test_inference_tensors_have_no_versions_and_are_written(name: str) -> None:
    operation = OPERATIONS[name]
    with torch.inference_mode():
        tensors, others = operation.make(1), operation.make(1)
        operation.call(**tensors)
    plain = operation.make(1)
    operation.call(**plain)
    mixed = plain | {n: others[n] for n in operation.written}
    with torch.inference_mode():
        operation.call(**mixed)
    for n in operation.written:
        assert torch.equal(tensors[n], plain[n]) and torch.equal(mixed[n], plain[n])


def test_without_keys_there_is_a_result_too() -> None:
    tensors = dense(1)
    given = {"q": tensors["q"], "k": rows(2, 0, 1, 64), "v": rows(2, 0, 1, 64)}
    given["out"] = tensors["out"]
    assert_written(lambda: flashsmith.attention(**given), given, "out")


def test_new_keys_of_other_caches_have_new_versions() -> None:
    tensors = {**cache_of_bytes(1), "k_new": rows(2, 1, 1, 64), "v_new": rows(2, 1, 1, 64)}
    written = "k_cache", "v_cache"
    assert_written(lambda: flashsmith.decode(None, **tensors, cache_seqlens=3), tensors, *written)


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_low_level_functions_have_new_versions(packed: bool) -> None:
    given = {n: t for n, t in gradients(1).items() if n not in ("sinks", "bias", "dlse")}
    given["o"], given["lse"] = flashsmith.attention(
        given["q"], given["k"], given["v"], return_lse=True
    )
    given |= {f"d{n}": torch.empty_like(given[n]) for n in "qkv"}
    numbers = (0.0, 0.125, False, -1, -1, 0.0, None, False)
    order = ("do", "q", "k", "v", "o", "lse", "dq", "dk", "dv")
    if packed:
        given = {n: t[0].contiguous() for n, t in given.items()}
        places = [torch.tensor([0, len(given[n])], dtype=torch.int32) for n in "qk"]
        own = (*places, len(given["q"]), len(given["k"]))
        call = lambda: interface._flash_attn_varlen_backward(  # noqa: E731
            *(given[n] for n in order), *own, *numbers
        )
    else:
        call = lambda: interface._flash_attn_backward(  # noqa: E731
            *(given[n] for n in order), *numbers
        )
    assert_written(call, given, "dq", "dk", "dv")


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_operators_write_with_a_new_version(backend: str | None) -> None:
    """Operators are called directly, and in compiled functions."""
    compiled: Any = (lambda f: f) if backend is None else torch.compile(backend=backend)
    tensors = dense(1)
    if backend is None:
        call = lambda: OPERATORS.attention_forward_out(**tensors)  # noqa: E731
    else:
        attend = compiled(flashsmith.attention)
        call = lambda: attend(**tensors)  # noqa: E731
    assert_written(call, tensors, "out")
    operation = OPERATIONS["decode, pages"]
    cached = operation.make(1)
    append = compiled(lambda **t: flashsmith.decode(None, **t))
    if backend is None:
        append = OPERATORS.decode_append
    assert_written(lambda: append(**cached), cached, "k_cache", "v_cache")


# ---- what torch has saved ----


def test_new_keys_over_saved_ones_are_noticed() -> None:
    """Attention over a part of a KV cache is followed by a decode step that appends to it."""
    k_cache, v_cache = rows(1, 32, 1, 64), rows(1, 32, 1, 64)
    q = rows(1, 4, 2, 64).requires_grad_()
    o = flashsmith.attention(q, k_cache[:, :20], v_cache[:, :20])
    assert isinstance(o, torch.Tensor)
    step = {"k_new": rows(1, 1, 1, 64), "v_new": rows(1, 1, 1, 64), "cache_seqlens": 20}
    flashsmith.decode(None, q.detach()[:, :1], k_cache, v_cache, **step)
    with pytest.raises(RuntimeError, match=MODIFIED):
        o.sum().backward()


RESULTS: dict[str, Callable[..., Any]] = {
    "attention": flashsmith.attention,
    "decode": lambda q, k, v, out: flashsmith.decode(None, q, k, v, out=out),
    "flash_attn_func": flash_attn.flash_attn_func,
    "forward": lambda q, k, v, out: flashsmith.forward(FORWARD, q, k, v, out),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("part", [False, True])
def test_results_over_what_torch_saved_are_noticed(name: str, part: bool) -> None:
    """The output covers all of the saved tensor, or is a view of a part."""
    q, k, v = rows(1, 4, 2, 64), rows(1, 24, 2, 64), rows(1, 24, 2, 64)
    leaf = rows(2, 4, 2, 64).requires_grad_()
    saved = leaf.exp()
    with torch.no_grad():
        out = saved[1:] if part else saved.view(1, 8, 2, 64)
        RESULTS[name](q if part else rows(1, 8, 2, 64), k, v, out=out)
    with pytest.raises(RuntimeError, match=MODIFIED):
        saved.sum().backward()


def test_a_result_over_its_own_input_is_noticed() -> None:
    """The output of one call is the q of another."""
    q, k, v = (rows(1, 24, 2, 64) for _ in range(3))
    leaf = k.clone().requires_grad_()
    o = flashsmith.attention(q, leaf, v)
    assert isinstance(o, torch.Tensor)
    flashsmith.attention(k, v, v, out=q)
    with pytest.raises(RuntimeError, match=MODIFIED):
        o.sum().backward()


# ---- gradients that are not computed ----


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_place_that_requires_a_gradient_is_refused(name: str, is_leaf: bool) -> None:
    q, k, v = (rows(1, 24, 2, 64) for _ in range(3))
    out = torch.zeros_like(q).requires_grad_()
    out = out if is_leaf else out * 1
    with pytest.raises((NotImplementedError, ValueError, RuntimeError), match=r"\b(o|out) "):
        RESULTS[name](q, k, v, out=out)
    assert not out.detach().any()
    with torch.no_grad():
        RESULTS[name](q, k, v, out=out)
    assert out.detach().any()


@pytest.mark.parametrize("scale", ["q_scale", "k_scale", "v_scale"])
def test_scales_that_require_gradients_are_refused(scale: str) -> None:
    bits = torch.float8_e4m3fn
    q, k, v = (rows(1, 24, 2, 64).to(bits) for _ in range(3))
    given = {scale: torch.ones(1, requires_grad=True)}
    with pytest.raises(NotImplementedError, match=f"{scale} requires a gradient"):
        flashsmith.attention(q, k, v, **given)


LEAVES: dict[str, tuple[str, Callable[..., Any]]] = {
    "alibi_slopes": ("decode", lambda t: torch.ones(2)),
    "k_scale": ("decode, bytes", lambda t: t["k_scale"]),
    "v_scale": ("decode, bytes", lambda t: t["v_scale"]),
    "sinks": ("decode", lambda t: t["sinks"]),
    "k_new": ("decode, pages", lambda t: t["k_new"]),
    "v_new": ("decode, pages", lambda t: t["v_new"]),
    "k_cache": ("decode, pages", lambda t: t["k_cache"]),
    "rotary_cos": ("decode, pages", lambda t: t["rotary_cos"]),
    "rotary_sin": ("decode, pages", lambda t: t["rotary_sin"]),
}


@pytest.mark.parametrize("name", LEAVES)
def test_gradients_of_decode_are_refused(name: str) -> None:
    kind, leaf = LEAVES[name]
    operation = OPERATIONS[kind]
    tensors = operation.make(1)
    tensors[name] = leaf(tensors).clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        operation.call(**tensors)
    with torch.no_grad():
        operation.call(**tensors)


@pytest.mark.parametrize("leaf_of_q", [False, True])
@pytest.mark.parametrize("kind", [torch.Tensor.requires_grad_, torch.nn.Parameter])
def test_gradients_by_captured_tensors_are_refused(kind: Any, leaf_of_q: bool) -> None:
    q, k, v = (rows(1, 24, 2, 64) for _ in range(3))
    q.requires_grad_(leaf_of_q)
    table = kind(torch.randn(24))
    functions = {"score_mod": lambda s, b, h, i, j: s + table[j]}
    calls: tuple[Callable[[], Any], ...] = (
        lambda: flashsmith.attention(q, k, v, **functions),
        lambda: flashsmith.decode(None, q.detach(), k, v, **functions),
        lambda: flashsmith.flex_attention(*(t.transpose(1, 2) for t in (q, k, v)), **functions),
    )
    for call in calls:
        with pytest.raises((RuntimeError, ValueError), match="requires a gradient"):
            call()
    with torch.no_grad() if leaf_of_q else nullcontext():
        table = table.detach()
        calls[0]()
