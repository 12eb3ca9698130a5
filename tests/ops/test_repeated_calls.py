"""The memory of one call must not make another call wrong: each differs in one thing alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import nan
from threading import Barrier
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import (
    VARIANTS,
    ForwardKernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.ops import choices, launch
from flashsmith.runtime import find_kernel, load_kernels
from flashsmith.runtime.call_args import FULL_EXTRAS, NO_SCALES
from flashsmith.runtime.workspace import FRESH, current_stream
from flashsmith.selection import choose
from flashsmith.selection.choose import forget_calls
from flashsmith.selection.select import select_config
from support.bad_input import misaligned
from support.problems import Tensors, assert_correct, random_qkv
from support.sm80_kernels import BASE

STORED = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1+tma_store")
QUEUE = parse_kernel_name_into_config(
    "(FP16, 96, 64, 48, 1): wgmma+stages_2+q_regs_6+overlap+persistent+queue+lazy_8+tma_store"
)
BOTH = pytest.mark.parametrize("cfg", [BASE, STORED], ids=["sm80", "sm90"])
HEADS = 2
LENGTH = 64


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Builds all kernels at once, with one list of kernels and one link."""
    variants = [*VARIANTS, *map(Variant.from_name, ("softcap", "causal+window", "varlen"))]
    load_kernels([KernelId(cfg, v) for cfg in (BASE, STORED) for v in variants], Target.emulator())


def in_memory(memory: torch.Tensor, cfg: ForwardKernelConfig, heads_first: bool) -> Tensors:
    """Returns q, k and v, one behind the other, of one shape in one of two layouts."""
    size = LENGTH * HEADS * cfg.d_head
    q, k, v = (memory[i * size :][:size] for i in range(3))
    if heads_first:
        shape = (1, HEADS, LENGTH, cfg.d_head)
        return (
            q.view(shape).transpose(1, 2),
            k.view(shape).transpose(1, 2),
            v.view(shape).transpose(1, 2),
        )
    shape = (1, LENGTH, HEADS, cfg.d_head)
    return q.view(shape), k.view(shape), v.view(shape)


@BOTH
def test_the_same_addresses_with_other_strides(cfg: ForwardKernelConfig) -> None:
    memory = torch.randn(3 * LENGTH * HEADS * cfg.d_head).half()
    for heads_first in (False, True, False, True):
        qkv = in_memory(memory, cfg, heads_first)
        assert_correct(flashsmith.forward(cfg, *qkv), qkv, KernelId(cfg))


@BOTH
def test_the_same_address_of_o_with_other_strides(cfg: ForwardKernelConfig) -> None:
    qkv = random_qkv(cfg, LENGTH, heads=HEADS)
    memory = torch.empty_like(qkv[0])
    for heads_first in (False, True, False):
        shape = (1, HEADS, LENGTH, cfg.d_head)
        o = memory.view(shape).transpose(1, 2) if heads_first else memory
        o.fill_(torch.nan)
        assert_correct(flashsmith.forward(cfg, *qkv, o), qkv, KernelId(cfg))


def test_the_same_addresses_with_other_sizes() -> None:
    """Memory that was freed is reused with other lengths and other numbers of heads."""
    memory = torch.randn(3 * 128 * 4 * 64).half()
    for length, heads in ((128, 4), (64, 8), (128, 2), (64, 4), (128, 4)):
        size = length * heads * 64
        q, k, v = (memory[i * size :][:size].view(1, length, heads, 64) for i in range(3))
        assert_correct(flashsmith.forward(STORED, q, k, v), (q, k, v), KernelId(STORED))


def test_more_strides_at_one_address_than_are_remembered() -> None:
    """Tensor maps are cached in 64 places, so that some of 70 collide."""
    memory = torch.randn(LENGTH * (64 + 8 * 70)).half()
    k, v, _ = random_qkv(STORED, LENGTH)
    for i in range(70):
        stride = 64 + 8 * i
        q = memory.as_strided((1, LENGTH, 1, 64), (LENGTH * stride, stride, 64, 1))
        expected = flashsmith.forward(STORED, q.contiguous(), k, v)
        assert torch.equal(flashsmith.forward(STORED, q, k, v), expected), f"stride {stride}"


@BOTH
def test_new_contents_at_the_same_addresses(cfg: ForwardKernelConfig) -> None:
    qkv = random_qkv(cfg, LENGTH)
    for _ in range(3):
        assert_correct(flashsmith.forward(cfg, *qkv), qkv, KernelId(cfg))
        for t in qkv:
            t.normal_()


Change = Callable[[torch.Tensor], Any]
CHANGES: dict[str, tuple[Change, type[Exception], str]] = {
    "another dtype": (lambda t: t.view(torch.bfloat16), TypeError, "has dtype bfloat16"),
    "misaligned": (misaligned, ValueError, "multiple of 16 bytes"),
    "another rank": (lambda t: t[0], ValueError, "has 3 dimensions"),
    "more dimensions than are remembered": (lambda t: t[None], ValueError, "has 5 dimensions"),
    "another device": (lambda t: t.to("meta"), ValueError, "on device meta"),
    "requires grad": (
        lambda t: t.clone().requires_grad_(),
        NotImplementedError,
        "requires a gradient",
    ),
    "sparse": (lambda t: t.to_sparse(), TypeError, "layout"),
    "a list": (lambda t: t.tolist(), TypeError, "is a list"),
    "numpy": (lambda t: t.numpy(), TypeError, "is a ndarray"),
    "None": (lambda t: None, TypeError, "is a NoneType"),
    "strided rows": (
        lambda t: torch.empty(*t.shape[:3], 2 * t.shape[3]).half()[..., ::2],
        ValueError,
        "in its last dimension",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", "qkvo")
@BOTH
def test_what_was_taken_before_is_still_refused_when_changed(
    cfg: ForwardKernelConfig, name: str, change: str
) -> None:
    q, k, v = random_qkv(cfg, LENGTH)
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "o": torch.empty_like(q)}
    for _ in range(2):
        flashsmith.forward(cfg, **arguments)
    do, error, words = CHANGES[change]
    changed = do(arguments[name])
    if changed is None and name == "o":
        return  # this is allowed
    with pytest.raises(error, match=f"{name} .*{words}"):
        flashsmith.forward(cfg, **arguments | {name: changed})
    flashsmith.forward(cfg, **arguments)


@BOTH
def test_overlap_is_looked_for_in_every_call(cfg: ForwardKernelConfig) -> None:
    """The outputs have the shapes, strides and alignments of the call before."""
    q, k, v = random_qkv(cfg, LENGTH)
    o = torch.empty_like(q)
    for name, other in (("q", q), ("k", k), ("v", v)):
        flashsmith.forward(cfg, q, k, v, o)
        with pytest.raises(ValueError, match=f"o shares memory with {name}"):
            flashsmith.forward(cfg, q, k, v, other)


def queue_arguments() -> dict[str, Any]:
    q, k, v = random_qkv(QUEUE, LENGTH)
    return {
        "q": q,
        "k": k,
        "v": v,
        "o": torch.empty_like(q),
        "softmax_scale": 0.1,
        "lse": torch.empty(1, 1, LENGTH),
        "workspace": torch.zeros(2, dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("workspace", lambda a: None, "workspace is None"),
        ("workspace", lambda a: torch.zeros(1, dtype=torch.int32), "workspace has 4 bytes"),
        ("workspace", lambda a: torch.zeros(4, dtype=torch.int32)[::2], "contiguous"),
        ("workspace", lambda a: a["o"].view(-1), "workspace shares memory with o, .*other work"),
        ("workspace", lambda a: a["q"].view(-1), "workspace shares memory with q"),
        ("lse", lambda a: torch.empty(1, LENGTH), "lse has shape"),
        ("lse", lambda a: a["lse"].as_strided((1, 1, LENGTH, 0), (LENGTH, LENGTH, 1, 0)),
         "lse has shape"),
        ("lse", lambda a: torch.empty(1, 1, 2 * LENGTH)[..., ::2], "lse has shape"),
        ("lse", lambda a: a["o"].view(torch.float32).view(-1)[:LENGTH].view(1, 1, LENGTH),
         "lse shares memory with o"),
    ],
)  # fmt: skip
def test_workspace_and_lse_are_looked_at_in_every_call(
    name: str, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    kernel, arguments = find_kernel(KernelId(QUEUE), Target.emulator()), queue_arguments()
    kernel(**arguments)
    with pytest.raises(ValueError, match=words):
        kernel(**arguments | {name: change(arguments)})
    kernel(**arguments)
    kernel(**arguments | {"lse": None})
    kernel(**arguments)
    assert not arguments["lse"].isnan().any()


def test_what_has_too_many_dimensions_to_be_remembered_is_not_taken_for_nothing() -> None:
    kernel, arguments = find_kernel(KernelId(QUEUE), Target.emulator()), queue_arguments()
    deep = arguments["workspace"].view(1, 1, 1, 1, 2)
    kernel(**arguments | {"workspace": deep})
    with pytest.raises(ValueError, match="workspace is None"):
        kernel(**arguments | {"workspace": None})


def test_threads_remember_for_themselves() -> None:
    """Threads share one kernel and addresses, and each has its own layout and length."""
    memory = torch.randn(3 * LENGTH * HEADS * 64).half()
    short = tuple(t[:, : LENGTH // 2] for t in in_memory(memory, STORED, False))
    cases = [in_memory(memory, STORED, False), in_memory(memory, STORED, True), short]
    alone = [flashsmith.forward(STORED, *qkv) for qkv in cases]
    together = Barrier(len(cases), timeout=60)

    def work(index: int) -> bool:
        same = []
        for _ in range(20):
            together.wait()
            same.append(torch.equal(flashsmith.forward(STORED, *cases[index]), alone[index]))
        return all(same)

    with ThreadPoolExecutor(len(cases)) as pool:
        assert all(pool.map(work, range(len(cases))))


# ---- what Python remembers ----


@pytest.fixture
def calls() -> dict[Any, Any]:
    forget_calls()
    return launch._choices


def test_configurations_in_keys_live_as_long(calls: dict[Any, Any]) -> None:
    """An id in a key is that of a configuration, and must not be reused by another object."""
    qkv = random_qkv(BASE, LENGTH)
    for _ in range(3):
        flashsmith.forward(replace(BASE), *qkv)
    assert len(calls) == 3
    assert all(key[0] == id(choice.config) for key, choice in calls.items())


def test_calls_are_not_remembered_without_end(
    calls: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "MAX_CHOICES", 3)
    for heads in range(1, 6):
        qkv = random_qkv(BASE, LENGTH, heads=heads)
        assert_correct(flashsmith.forward(BASE, *qkv), qkv, KernelId(BASE))
        assert len(calls) <= 3


def test_choices_are_made_anew_when_tables_are_forgotten(
    calls: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = random_qkv(BASE, LENGTH)
    chosen = select_config(q)
    assert chosen != BASE
    flashsmith.attention(q, k, v)
    monkeypatch.setattr(launch, "select_for", lambda *_: BASE)
    flashsmith.attention(q, k, v)
    choose.forget_tables()
    assert torch.equal(flashsmith.attention(q, k, v), flashsmith.forward(BASE, q, k, v))
    assert {call.config for call in calls.values()} == {BASE}


def test_gradients_that_are_off_do_not_plan_again(calls: dict[Any, Any]) -> None:
    q, k, v = random_qkv(BASE, LENGTH)
    q.requires_grad_()
    with torch.no_grad():
        first = flashsmith.forward(BASE, q, k, v)
        second = flashsmith.forward(BASE, q, k, v)
    assert torch.equal(first, second) and len(calls) == 1
    assert not second.requires_grad


def test_a_parameter_gives_a_plain_tensor() -> None:
    q, k, v = random_qkv(BASE, LENGTH)
    with torch.no_grad():
        o = flashsmith.forward(BASE, torch.nn.Parameter(q), k, v)
    assert type(o) is torch.Tensor


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_new_o_is_contiguous_whatever_q_is(heads_first: bool) -> None:
    memory = torch.randn(3 * LENGTH * HEADS * BASE.d_head).half()
    o = flashsmith.forward(BASE, *in_memory(memory, BASE, heads_first))
    assert isinstance(o, torch.Tensor) and o.is_contiguous()


# ---- arguments that are passed again ----


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@BOTH
def test_numbers_are_those_of_the_call(cfg: ForwardKernelConfig) -> None:
    """The variant is the same, so that the kernel and its plan are too."""
    qkv = random_qkv(cfg, LENGTH)
    for change in ({"softcap": 2.0}, {"window_size": (5, 9)}):
        first = flashsmith.forward(cfg, *qkv, **change)
        other = {"softcap": 0.2} if "softcap" in change else {"window_size": (20, 2)}
        for _ in range(2):
            assert torch.equal(flashsmith.forward(cfg, *qkv, **change), first)
            assert not torch.equal(flashsmith.forward(cfg, *qkv, **other), first)


@BOTH
def test_a_tensor_that_comes_or_goes_is_seen(cfg: ForwardKernelConfig) -> None:
    q, k, v = (t.repeat(2, 1, 1, 1) for t in random_qkv(cfg, LENGTH))
    used, more = {"seqused_k": ints(40, 64)}, {"seqused_q": ints(64, 64)}
    for _ in range(2):
        short = flashsmith.forward(cfg, q, k, v, **used)
        assert torch.equal(flashsmith.forward(cfg, q, k, v, **used, **more), short)
    with pytest.raises(ValueError, match="seqused_q has shape"):
        flashsmith.forward(cfg, q, k, v, **used, seqused_q=ints(64, 64, 64))
    assert torch.equal(flashsmith.forward(cfg, q, k, v, **used), short)


@pytest.fixture
def nan_in_new_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nan_in_new_memory")
def test_rows_that_are_not_used_are_zero_in_every_call() -> None:
    q, k, v = (t.repeat(2, 1, 1, 1) for t in random_qkv(BASE, LENGTH))
    assert torch.empty(3).isnan().all()
    for _ in range(3):
        used = {"seqused_q": ints(10, 64), "return_lse": True}
        o, lse = flashsmith.forward(BASE, q, k, v, **used)  # type: ignore[misc]
        assert (o[0, 10:] == 0).all() and not o.isnan().any()
        assert (lse[0, :, 10:] == -torch.inf).all()


def test_the_emulator_gets_a_new_workspace_each_time(calls: dict[Any, Any]) -> None:
    """A fault leaves the workspace as it was at that moment."""
    del calls
    flashsmith.forward(QUEUE, *random_qkv(QUEUE, LENGTH))
    (choice,) = launch._choices.values()
    assert choice.plan.zeroed_bytes > 0 and choice.zeros[0] is None


def test_a_library_makes_a_call_or_does_nothing() -> None:
    """The library does nothing if the zeros belong to another stream, or if there are none."""
    kernel, arguments = find_kernel(KernelId(QUEUE), Target.emulator()), queue_arguments()
    q, k, v, o, scale, lse, workspace = arguments.values()
    kernel(**arguments)
    expected = o.clone()
    call = kernel.bind()
    here, elsewhere = current_stream(q.device), 7
    for stream in (FRESH, here):
        assert (
            call(
                stream, q, k, v, o.fill_(nan), lse, *NO_SCALES, None, workspace, scale, *FULL_EXTRAS
            )
            is True
        )
        assert torch.equal(o, expected)
    o.fill_(nan)
    for stream, zeros in ((elsewhere, workspace), (here, None)):
        assert call(stream, q, k, v, o, lse, *NO_SCALES, None, zeros, scale, *FULL_EXTRAS) is False
    assert o.isnan().all()
    cut = q[:, :-1], k, v, o[:, :-1], lse[..., :-1].contiguous()
    assert call(here, *cut, *NO_SCALES, None, workspace, scale, *FULL_EXTRAS) is True
    assert not o[:, :-1].isnan().any() and o[:, -1:].isnan().all()
    with pytest.raises(ValueError, match="workspace is None"):
        call(FRESH, q, k, v, o, lse, *NO_SCALES, None, None, scale, *FULL_EXTRAS)
