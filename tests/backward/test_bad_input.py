"""The backward refuses bad input by a typed error that names the argument, and writes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import flashsmith
from flashsmith.configs import FULL, KernelId, Variant, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.runtime import GradientTensors, find_backward, load_kernels
from flashsmith.runtime.call_args import FULL_EXTRAS
from support.backward_kernels import PLAIN
from support.bad_input import MARK, Arguments, Case, case, each, longer, misaligned, odd_stride
from support.sm80_kernels import BASE

SM80, SM90 = PLAIN["sm80"], PLAIN["sm90"]
MIXED = Variant.from_name("window+softcap+bias+sinks")
WITH_EXTRAS = FULL_EXTRAS._replace(
    window_left=20, softcap=3.0, sinks=torch.zeros(4), bias=torch.zeros(1, 1, 70, 50).bfloat16()
)
Q_SHAPE, K_SHAPE, LSE_SHAPE = (2, 70, 4, 64), (2, 50, 2, 64), (2, 4, 70)
READ, WRITTEN = ("q", "k", "v", "o", "do"), ("dq", "dk", "dv")
LIKE_Q, LIKE_K = ("q", "o", "do", "dq"), ("k", "v", "dk", "dv")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_kernels([KernelId(SM80, MIXED), KernelId(SM80), KernelId(SM90)], Target.emulator())


def good(cfg: Any = SM80) -> Arguments:
    """Returns arguments that `launch` accepts."""
    found: Arguments = {n: torch.randn(Q_SHAPE).bfloat16() for n in ("q", "o", "do")}
    found |= {n: torch.randn(K_SHAPE).bfloat16() for n in "kv"}
    found |= {"dq": torch.full(Q_SHAPE, MARK).bfloat16()}
    found |= {n: torch.full(K_SHAPE, MARK).bfloat16() for n in ("dk", "dv")}
    found |= {n: torch.randn(LSE_SHAPE) for n in ("lse", "dlse")}
    dsinks, dbias = torch.full((4,), MARK), torch.full((2, 4, 70, 50), MARK)
    mixed = {"dsinks": dsinks, "dbias": dbias} if cfg is SM80 else {}
    return found | mixed | {"cfg": cfg}


def launch(cfg: Any, workspace: Any = "right", **tensors: Any) -> None:
    mixed = cfg is SM80 and tensors.get("dsinks") is not None
    kernel = find_backward(KernelId(cfg, MIXED if mixed else FULL), Target.emulator())
    extras = WITH_EXTRAS if mixed else FULL_EXTRAS
    given = GradientTensors(**tensors)
    if isinstance(workspace, str):
        n_bytes = kernel.plan(GradientTensors(**plain(good(cfg))), extras=extras).workspace_bytes
        workspace = torch.zeros(n_bytes, dtype=torch.uint8)
    kernel(given, 0.1, workspace=workspace, extras=extras)


def plain(arguments: Arguments) -> Arguments:
    return {name: t for name, t in arguments.items() if name != "cfg"}


def assert_refused(cfg: Any, bad: Case) -> None:
    arguments = good(cfg)
    change = bad.change(arguments)
    with pytest.raises(bad.error) as caught:
        launch(**arguments | change)
    message = str(caught.value)
    assert all(word in message for word in bad.words), message
    for name in WRITTEN:
        assert name in change or (arguments[name] == MARK).all()


def in_memory_of(name: str, other: str) -> Callable[[Arguments], Arguments]:
    return lambda a: {name: a[other]}


def named(names: tuple[str, ...], title: str, *rest: Any) -> list[Case]:
    return [found for name in names for found in each((name,), title, *rest)]  # type: ignore[arg-type]


CASES = [
    *named((*READ[1:], *WRITTEN), "float16", torch.Tensor.half, TypeError,
           "has dtype float16", "bfloat16"),
    case("all float16", lambda a: {n: a[n].half() for n in (*READ, *WRITTEN)}, TypeError,
         "q has dtype float16", "configuration is for bfloat16"),
    *named(("lse", "dlse"), "float64", torch.Tensor.double, TypeError,
           "has dtype float64", "float32"),
    *named((*READ, *WRITTEN), "3 dimensions", lambda t: t[0], ValueError,
           "has 3 dimensions", "expected 4"),
    *named(("k", "o", "do", "v", "dq", "dk", "dv"), "other batch", longer(0), ValueError,
           "has shape", "batch size"),
    *named(("o", "do", "dq"), "other length", longer(1), ValueError, "has shape", "seq_len_q"),
    *named(("v", "dk", "dv"), "other length", longer(1), ValueError, "has shape", "seq_len_k"),
    *named(("o", "do", "dq"), "other heads", longer(2), ValueError, "has shape", "n_heads"),
    *named(("v", "dk", "dv"), "other heads", longer(2), ValueError, "has shape", "n_heads_kv"),
    *named(("dq", "dk"), "other d_head", longer(3), ValueError, "has shape", "d_head"),
    *named(("o", "do", "dv"), "other d_v", longer(3), ValueError, "has shape", "d_v"),
    *named(("lse", "dlse"), "of keys", lambda t: torch.zeros(2, 4, 50), ValueError,
           "has shape (2, 4, 50)", "(batch, n_heads, seq_len_q)"),
    *named(("lse", "dlse"), "strided", lambda t: torch.zeros(2, 70, 4).transpose(1, 2), ValueError,
           "has shape (2, 4, 70)", "contiguous"),
    *named((*READ, *WRITTEN), "transposed",
           lambda t: t.transpose(2, 3).contiguous().transpose(2, 3), ValueError,
           "in its last dimension"),
    *named((*READ, *WRITTEN), "misaligned", misaligned, ValueError, "multiple of 16 bytes"),
    *(
        found
        for dim, name in enumerate(("batch", "sequence", "head"))
        for found in named((*READ, *WRITTEN), f"odd {name} stride", odd_stride(dim), ValueError,
                           f"has {name} stride", "multiples of 8 elements")
    ),
    *named(WRITTEN, "expanded", lambda t: t[:, :1].expand(t.shape), ValueError,
           "with stride 0", "share memory"),
    *(
        case(f"{name} is {other}", in_memory_of(name, other), ValueError, f"{name} shares memory",
             other)
        for name, others in (("dq", ("q", "o", "do")), ("dk", "kv"), ("dv", ("k", "v", "dk")))
        for other in others
    ),
    case("lse is None", lambda a: {"lse": None}, TypeError, "lse is a None"),
    case("do is None", lambda a: {"do": None}, TypeError, "do is a None"),
    case("a list", lambda a: {"do": [1.0]}, TypeError, "do is a "),
    case("lse misaligned", lambda a: {"lse": torch.from_numpy(
        np.zeros(4 * math.prod(LSE_SHAPE) + 2, np.uint8)[2:].view(np.float32).reshape(LSE_SHAPE))},
        ValueError, "lse has shape", "4-byte aligned"),
    case("workspace too small", lambda a: {"workspace": torch.zeros(64, dtype=torch.uint8)},
         ValueError, "workspace has 64 bytes", "at least"),
]  # fmt: skip
OF_MIXED = [
    case("dsinks float16", lambda a: {"dsinks": a["dsinks"].half()}, TypeError,
         "dsinks has dtype float16", "float32"),
    case("dsinks of keys' heads", lambda a: {"dsinks": a["dsinks"][:2]}, ValueError,
         "dsinks has shape (2)", "n_heads"),
    case("dbias of bias' dtype", lambda a: {"dbias": a["dbias"].bfloat16()}, TypeError,
         "dbias has dtype bfloat16", "float32"),
    case("dbias broadcast", lambda a: {"dbias": a["dbias"][:, :1]}, ValueError,
         "dbias has shape (2, 1, 70, 50)"),
    case("dbias strided", lambda a: {"dbias": a["dbias"].transpose(2, 3).contiguous().transpose(
        2, 3)}, ValueError, "dbias has shape", "contiguous"),
]  # fmt: skip
OF_PLAIN = [
    case("dsinks without sinks", lambda a: {"dbias": torch.zeros(2, 4, 70, 50)}, ValueError,
         "dbias was passed", "has no bias"),
]  # fmt: skip
EACH = pytest.mark.parametrize("cfg", [SM80, SM90], ids=["sm80", "sm90"])


@EACH
def test_a_call_without_a_workspace_allocates_it(cfg: Any) -> None:
    given, allocated = good(cfg), good(cfg)
    allocated |= {name: t.clone() for name, t in plain(given).items()}
    launch(**given)
    launch(**allocated | {"workspace": None})
    for name in ("dq", "dk", "dv"):
        assert not (given[name] == MARK).all() and torch.equal(given[name], allocated[name])


BY_FAMILY = {"sm80": (SM80, [*CASES, *OF_MIXED]), "sm90": (SM90, [*CASES, *OF_PLAIN])}


@pytest.mark.parametrize(
    ("cfg", "bad"),
    [
        pytest.param(cfg, bad, id=f"{family}-{bad}")
        for family, (cfg, cases) in BY_FAMILY.items()
        for bad in cases
    ],
)
def test_kernel_refuses(cfg: Any, bad: Case) -> None:
    assert_refused(cfg, bad)


@EACH
def test_good_arguments_are_taken(cfg: Any) -> None:
    arguments = good(cfg)
    launch(**arguments)
    assert not any((arguments[name] == MARK).all() for name in WRITTEN)


# ---- flashsmith.backward ----


def call(cfg: Any = SM80, **changes: Any) -> Any:
    arguments = {name: good()[name] for name in (*READ, "lse", "dlse")}
    return flashsmith.backward(cfg, **arguments | changes)


OF_FUNCTION: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a forward configuration": ({"cfg": BASE}, TypeError, "cfg is a FlashForwardKernelConfig; "
                                "expected a FlashBackwardKernelConfig or"),
    "a name": ({"cfg": str(SM80)}, TypeError, "cfg is a str; expected a Flash"),
    "d_head for another": ({"cfg": parse_kernel_name_into_config(
        "(BF16, 64, 64, 64, 4): backward+stages_1"), "q": torch.zeros(2, 70, 4, 128).bfloat16(),
        "k": torch.zeros(2, 50, 2, 128).bfloat16()}, ValueError, "q has d_head 128"),
    "causal": ({"causal": 1}, TypeError, "causal is 1"),
    "deterministic": ({"deterministic": None}, TypeError, "deterministic is None"),
    "scale": ({"softmax_scale": 0.0}, ValueError, "softmax_scale is 0.0"),
    "do": ({"do": [1.0]}, TypeError, "do is a list"),
    "lse": ({"lse": None}, TypeError, "lse is a NoneType"),
    "sparse": ({"o": torch.zeros(Q_SHAPE).bfloat16().to_sparse()}, TypeError, "o has layout"),
    "meta": ({"v": torch.zeros(K_SHAPE, device="meta").bfloat16()}, ValueError, "v is on device"),
    "unknown": ({"is_causal": True}, TypeError, "is_causal"),
    "float32": ({n: torch.zeros(Q_SHAPE) for n in ("q", "k", "v", "o", "do")}, TypeError,
                "q has dtype"),
    "window": ({"window_size": (3, -2)}, ValueError, "window_size is"),
    "packed q": ({"cu_seqlens_q": torch.tensor([0, 70]).int()}, ValueError, "q has 4 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_FUNCTION)
def test_backward_refuses(name: str) -> None:
    changes, error, message = OF_FUNCTION[name]
    for repeated in (False, True):
        with pytest.raises(error) as caught:
            call(**changes)
        assert message in str(caught.value)
        if not repeated:
            call()  # the call may be repeated after the refusal


def test_forward_and_attention_refuse_a_configuration_of_the_backward() -> None:
    q, k = good()["q"], good()["k"]
    with pytest.raises(TypeError, match="cfg is a FlashBackwardKernelConfig; expected a FlashForw"):
        flashsmith.forward(SM80, q, k, k)
    with pytest.raises(TypeError, match="config is a FlashBackwardKernelConfig; expected a Flash"):
        flashsmith.attention(q, k, k, config=SM80)


@EACH
@pytest.mark.parametrize("shape", [(0, 70, 4, 64), (2, 0, 4, 64), (2, 70, 0, 64)])
def test_nothing_to_compute_is_no_error(cfg: Any, shape: tuple[int, ...]) -> None:
    q = torch.empty(shape).bfloat16()
    lse = torch.empty(shape[0], shape[2], shape[1])
    found = flashsmith.backward(cfg, q, q, q, q, q, lse)
    assert [t.shape for t in found[:3]] == [q.shape] * 3


@EACH
def test_without_queries_keys_have_zeros_and_the_other_way_round(cfg: Any) -> None:
    q, k = torch.empty(2, 0, 4, 64).bfloat16(), torch.randn(K_SHAPE).bfloat16()
    found = flashsmith.backward(cfg, q, q, k, k, q, torch.empty(2, 4, 0))
    assert found.k.shape == K_SHAPE and not found.k.any() and not found.v.any()
    q, k = torch.randn(Q_SHAPE).bfloat16(), torch.empty(2, 0, 2, 64).bfloat16()
    lse = torch.full(LSE_SHAPE, -math.inf)
    found = flashsmith.backward(cfg, q, q, k, k, torch.zeros_like(q), lse)
    assert found.q.shape == Q_SHAPE and not found.q.any() and found.k.numel() == 0
