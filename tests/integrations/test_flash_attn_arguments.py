"""Each argument of FlashAttention's functions has its effect, and no other."""

from __future__ import annotations

import inspect
import random as python_random
from typing import Any

import pytest
import torch

from flashsmith.flash_attn import flash_attn_interface as interface
from flashsmith.flash_attn import flash_attn_with_kvcache
from flashsmith.reference import reference_varlen

SLOPES = torch.tensor([0.5, 1.0, 0.1, 2.0])
CU_Q = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
CU_K = torch.tensor([0, 5, 9, 12], dtype=torch.int32)
SEQUSED = torch.tensor([2, 4, 1], dtype=torch.int32)
# The name -> a value that is no default, and the argument of ``reference_varlen`` for it.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "softmax_scale": (0.2, {"softmax_scale": 0.2}),
    "causal": (True, {"causal": True}),
    "window_size": ((2, 1), {"window_size": (2, 1)}),
    "window_size_left": (1, {"window_size": (1, -1)}),
    "window_size_right": (0, {"window_size": (-1, 0)}),
    "softcap": (1.5, {"softcap": 1.5}),
    "alibi_slopes": (SLOPES, {"alibi_slopes": SLOPES}),
    "seqused_k": (SEQUSED, {"seqused_k": SEQUSED}),
}
# Other files test these: dropout test_dropout.py, pages test_pages.py.
ELSEWHERE = {"dropout_p", "block_table"}
WITHOUT_EFFECT = {"deterministic": True, "zero_tensors": True, "num_splits": 1}  # on the results
GIVES_MORE = {"return_attn_probs": 3, "return_softmax": 4}  # the number of results
REFUSED = {"leftpad_k": (CU_K, NotImplementedError)}
NEUTRAL: dict[str, Any] = {
    "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size_left": -1,
    "window_size_right": -1, "softcap": 0.0, "alibi_slopes": None, "return_softmax": False,
}  # fmt: skip
FORWARDS = [name for name in interface.__all__ if "backward" not in name and "kvcache" not in name]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def assert_near(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), right.float(), rtol=4e-3, atol=4e-3)


def tensors_of(name: str) -> tuple[dict[str, Any], tuple[torch.Tensor, ...], dict[str, Any]]:
    """Returns a function's tensors and lengths by name; q, k, v; and the reference's lengths."""
    packed = "varlen" in name
    of_q, of_k = ((10,), (12,)) if packed else ((2, 7), (2, 9))
    if "qkvpacked" in name:
        qkv = random(*of_q, 3, 4, 16)
        given: dict[str, Any] = {"qkv": qkv}
        q, k, v = qkv.unbind(-3)
    elif "kvpacked" in name:
        q, kv = random(*of_q, 4, 16), random(*of_k, 2, 2, 16)
        given = {"q": q, "kv": kv}
        k, v = kv.unbind(-3)
    else:
        q, k, v = random(*of_q, 4, 16), random(*of_k, 2, 16), random(*of_k, 2, 16)
        given = {"q": q, "k": k, "v": v}
    if not packed:
        return given, (q, k, v), {}
    if "qkv" in given:
        lengths: dict[str, Any] = {"cu_seqlens": CU_Q, "max_seqlen": 7}
        return given | lengths, (q, k, v), {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_Q}
    lengths = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    return given | lengths | {"max_seqlen_q": 7, "max_seqlen_k": 5}, (q, k, v), lengths


def parameters_of(name: str) -> list[tuple[str, str]]:
    given, _, _ = tensors_of(name)
    signature = inspect.signature(getattr(interface, name))
    return [
        (name, p.name)
        for p in signature.parameters.values()
        if p.name not in given and p.kind is not p.KEYWORD_ONLY and p.name not in ELSEWHERE
    ]


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize(("name", "argument"), [p for n in FORWARDS for p in parameters_of(n)])
def test_of_a_forward(name: str, argument: str) -> None:
    function = getattr(interface, name)
    given, qkv, lengths = tensors_of(name)
    neutral = {n: v for n, v in NEUTRAL.items() if n in inspect.signature(function).parameters}

    def call(**changed: Any) -> tuple[torch.Tensor, ...]:
        result = function(**given | neutral | changed)
        return result if isinstance(result, tuple) else (result,)

    plain = call()
    right, right_lse = reference_varlen(*qkv, **lengths)
    assert_near(plain[0], right)
    if argument in REFUSED:
        value, error = REFUSED[argument]
        with pytest.raises(error, match=argument):
            call(**{argument: value})
        return
    if argument in WITHOUT_EFFECT or argument in GIVES_MORE:
        more = call(**{argument: WITHOUT_EFFECT.get(argument, True)})
        assert len(more) == GIVES_MORE.get(argument, len(plain))
        assert torch.equal(more[0], plain[0])
        if len(more) > 1:
            assert_near(more[1], right_lse)
        return
    value, meaning = CHANGES[argument]
    found = call(**{argument: value})
    right, right_lse = reference_varlen(*qkv, **lengths, **meaning)
    assert_near(found[0], right)
    assert (found[0] - plain[0]).abs().max() > 0.02
    if len(found) > 1:
        assert_near(found[1], right_lse)


BACKWARDS = [name for name in interface.__all__ if "backward" in name]
OF_BACKWARD = [each for each in CHANGES if each not in ("window_size", "seqused_k")]


@pytest.mark.parametrize("argument", OF_BACKWARD)
@pytest.mark.parametrize("name", BACKWARDS)
def test_of_a_backward(name: str, argument: str) -> None:
    """Each gradient agrees with plain torch with the same change, and differs from that without
    it."""
    given, qkv, lengths = tensors_of(name)
    value, meaning = CHANGES[argument]
    leaves = [t.double().requires_grad_() for t in qkv]
    out, lse = reference_varlen(*leaves, **lengths, **meaning)
    do = random(*out.shape)
    expected = torch.autograd.grad(out, leaves, do.double())
    into = [torch.full_like(t, torch.nan) for t in qkv]
    function = getattr(interface, name)
    options = {n: v for n, v in NEUTRAL.items() if n in inspect.signature(function).parameters}
    done = function(
        dout=do, **given, out=out.detach().half(), softmax_lse=lse.detach().float(),
        **dict(zip(("dq", "dk", "dv"), into, strict=True)), deterministic=True,
        **options | {argument: value},
    )  # fmt: skip
    for found, right in zip(into, expected, strict=True):
        assert (found - right).abs().max() < 1e-2 * max(1.0, right.abs().max().item())
    rows = (out.detach() * do.double()).sum(-1).transpose(-1, -2)
    assert (done - rows).abs().max() < 2e-2


# ---- caches ----


def turned(t: torch.Tensor, cos: Any, sin: Any, at: torch.Tensor, interleaved: bool) -> Any:
    """Returns rows (n, heads, d) of t, rotated by the angles of the positions ``at``."""
    n = 2 * cos.shape[1]
    c, s = cos.double()[at][:, None], sin.double()[at][:, None]
    pairs = (
        (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, n // 2), slice(n // 2, n))
    )
    a, b = (t[..., each].double() for each in pairs)
    found = t.double().clone()
    found[..., pairs[0]], found[..., pairs[1]] = a * c - b * s, a * s + b * c
    return found


def plain_cache(q: Any, k_cache: Any, v_cache: Any, given: dict[str, Any]) -> Any:
    """Returns out, LSE, and the keys and values of all sequences, in order."""
    results = []
    keywords = {
        name: given[name]
        for name in ("causal", "window_size", "softcap", "softmax_scale")
        if name in given
    }
    for b in range(q.shape[0]):
        if "block_table" in given:
            pages = given["block_table"][b].long()
            keys, values = (t[pages].flatten(0, 1).double() for t in (k_cache, v_cache))
        else:
            entry = given["cache_batch_idx"][b] if "cache_batch_idx" in given else b
            keys, values = k_cache[entry].double(), v_cache[entry].double()
        n = given["cache_seqlens"]
        n = int(n if isinstance(n, int) else n[b])
        of_q, total = q[b].double(), n
        if "k" in given:
            new = given["k"][b].double()
            total = n + len(new)
            if "rotary_cos" in given:
                angles = given["rotary_cos"], given["rotary_sin"]
                way = given.get("rotary_interleaved", True)
                new = turned(new, *angles, n + torch.arange(len(new)), way)
                step = given.get("causal") or "window_size" in given
                at = n + torch.arange(len(of_q)) * (1 if step else 0)
                of_q = turned(of_q, *angles, at, way)
            keys, values = keys.clone(), values.clone()
            keys[n:total], values[n:total] = new, given["v"][b].double()
        first = int(given["cache_leftpad"][b]) if "cache_leftpad" in given else 0
        slopes = given.get("alibi_slopes")
        if slopes is not None and slopes.ndim == 2:
            slopes = slopes[b : b + 1]
        o, lse = reference_varlen(
            of_q[None], keys[None, first:total], values[None, first:total], **keywords,
            **({} if slopes is None else {"alibi_slopes": slopes}),
        )  # fmt: skip
        results.append((o[0], lse[0], keys[:total], values[:total]))
    return results


@pytest.mark.parametrize("seed", range(40))
def test_random_calls_over_a_cache(seed: int) -> None:
    """Each call draws some of all arguments, and the test also checks what is written to the
    cache."""
    torch.manual_seed(seed)
    random_ = python_random.Random(seed)
    maybe, draw = (lambda: random_.random() < 0.5), random_.choice
    rows, n_q, batch = 48, draw([1, 2, 3]), 2
    given: dict[str, Any] = {"cache_seqlens": torch.tensor([draw([9, 30]), 17]).int()}
    shape: tuple[int, ...] = (batch, rows, 2, 64)
    kind = draw(["", "block_table", "cache_batch_idx"])
    if kind == "block_table":
        given[kind] = torch.randperm(9)[: 2 * 3].view(2, 3).int()
        shape = (9, 16, 2, 64)
    elif kind:
        given[kind] = torch.randperm(5)[:2].int()
        shape = (5, rows, 2, 64)
    elif maybe():
        given["cache_seqlens"] = 20
    if maybe():
        given["cache_leftpad"] = torch.tensor([draw([0, 3]), 7]).int()
    if maybe():
        given["causal"] = True
    elif maybe():
        given["window_size"] = draw([(4, -1), (6, 0)])
    for name, values in (
        ("softcap", [2.0, -1.0]), ("softmax_scale", [0.2]), ("num_splits", [1, 3]),
        ("alibi_slopes", [SLOPES, torch.rand(2, 4)]),
    ):  # fmt: skip
        if maybe():
            given[name] = draw(values)
    if maybe():
        given |= {"k": random(batch, n_q, 2, 64), "v": random(batch, n_q, 2, 64)}
        if maybe():
            angles = torch.randn(rows, draw([8, 16, 32]))
            given |= {"rotary_cos": angles.cos().half(), "rotary_sin": angles.sin().half()}
            given["rotary_interleaved"] = maybe()
    q, k_cache, v_cache = random(batch, n_q, 4, 64), random(*shape), random(*shape)
    meant = given | {"softcap": max(given.get("softcap", 0.0), 0.0)}
    expected = plain_cache(q, k_cache, v_cache, meant)
    out, lse = flash_attn_with_kvcache(q, k_cache, v_cache, **given, return_softmax_lse=True)
    for b, (o, of_lse, keys, values) in enumerate(expected):
        assert_near(out[b], o)
        assert_near(lse[b], of_lse)
        if kind == "block_table":
            pages = given[kind][b].long()
            written = [t[pages].flatten(0, 1) for t in (k_cache, v_cache)]
        else:
            entry = given[kind][b] if kind else b
            written = [k_cache[entry], v_cache[entry]]
        assert_near(written[0][: len(keys)], keys)
        assert_near(written[1][: len(values)], values)
