"""Repeated calls bypass Python, with other data, lengths and sizes of the same classes; calls that
the launch cache does not know take the slow path."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flashsmith.ops import backward, decode_calls, forward
from flashsmith.ops.spec import AttentionSpec
from flashsmith.runtime import load_host, workspace
from flashsmith.runtime.launch_cache import NO_THREAD, launch_cache
from flashsmith.selection.choose import forget_calls, forget_tables

HEADS, D_HEAD = 2, 64
Call = Callable[[int], Any]  # takes a seed for the tensors


def rows(seed: int, *lengths: int, heads: int = HEADS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, n, heads, D_HEAD, generator=generator).half() for n in lengths]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention(**given: Any) -> Call:
    return lambda seed: flashsmith.attention(*rows(seed, 60, 70, 70), **given)


def packed(seed: int) -> Any:
    """Calls varlen attention with other lengths, totals and maxima for each seed."""
    lengths = (30 + seed, 60 + seed)
    q, k, v = (t[0] for t in rows(seed, *[sum(lengths)] * 3))
    offsets = ints(0, lengths[0], sum(lengths))
    return flash_attn_varlen_func(q, k, v, offsets, offsets, max(lengths), max(lengths))


def with_gradients(attend: Callable[..., torch.Tensor], **given: Any) -> Call:
    def call(seed: int) -> Any:
        q, k, v = (t.requires_grad_() for t in rows(seed, 60, 70, 70))
        o = attend(q, k, v, **given)
        return o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

    return call


def decode(**given: Any) -> Call:
    def call(seed: int) -> Any:
        q, k, v = rows(seed, 1, 90, 90)
        lengths = ints(40 + seed)
        return flashsmith.decode(None, q, k, v, cache_seqlens=lengths, splits=1, **given)

    return call


def append(seed: int) -> Any:
    q, k, v, k_new, v_new = rows(seed, 1, 96, 96, 1, 1)
    cos, sin = (t[0, :, 0, :16].contiguous() for t in rows(9, 96, 96))
    o = flash_attn_with_kvcache(
        q, k, v, k_new, v_new, cos, sin, cache_seqlens=ints(40 + seed), num_splits=1
    )
    return o, k, v


def in_pages(seed: int) -> Any:
    q, k, v = rows(seed, 1, 96, 96)
    k, v = (t.view(6, 16, HEADS, D_HEAD) for t in (k, v))
    table = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).int()[None]
    lengths = ints(60 + seed)
    return flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, block_table=table, num_splits=1, causal=True
    )


CALLS: dict[str, Call] = {
    "plain": attention(),
    "causal with lse": attention(causal=True, return_lse=True),
    "scale": attention(softmax_scale=0.2),
    "window": attention(window_size=(20, 10)),
    "softcap": attention(softcap=5.0),
    "alibi": attention(alibi_slopes=torch.rand(HEADS)),
    "sinks": attention(sinks=torch.rand(HEADS)),
    "bias": attention(bias=torch.randn(1, 1, 60, 70).half()),
    "seqused": attention(seqused_k=ints(50)),
    "dropout": attention(dropout_p=0.2, rng_state=torch.tensor([1, 2])),
    "flash_attn_func": lambda seed: flash_attn_func(*rows(seed, 60, 70, 70)),
    "packed": packed,
    "gradients": with_gradients(flashsmith.attention),
    "gradients with a window": with_gradients(flashsmith.attention, window_size=(9, 0)),
    "decode": decode(),
    "decode with a window and lse": decode(window_size=(20, 0), return_lse=True),
    "decode with sinks": decode(sinks=torch.rand(HEADS)),
    "append": append,
    "pages": in_pages,
}


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    forget_calls()
    yield
    forget_calls()


def the_slow_way_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((forward, "_slowly"), (backward, "_launch"), (decode_calls, "_launch")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("the call came to Python"))


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", CALLS)
def test_the_next_call_of_a_kind_does_not_come_to_python(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, seeds = CALLS[name], (1, 2, 3)
    expected = []
    for seed in seeds:
        forget_calls()
        expected.append(flat(call(seed)))
    with monkeypatch.context() as patched:
        the_slow_way_is_closed(patched)
        for seed, first in zip(seeds, expected, strict=True):
            for a, b in zip(flat(call(seed)), first, strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("forget", [forget_calls, forget_tables])
@pytest.mark.parametrize("name", ["plain", "gradients", "decode"])
def test_what_is_forgotten_comes_to_python(
    monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None], name: str
) -> None:
    CALLS[name](1)
    forget()
    the_slow_way_is_closed(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="came to Python"):
        CALLS[name](1)


def test_unused_rows_of_a_new_o_are_zeros_in_every_call() -> None:
    q, k, v = rows(0, 64, 64, 64)
    for used in (10, 64, 3):
        o, lse = flashsmith.attention(q, k, v, seqused_q=ints(used), return_lse=True)
        assert not o[:, used:].any() and lse[..., used:].isneginf().all()


def test_rows_of_v_of_another_length_than_those_of_q() -> None:
    """A new o has the shape of q until the cache says that it has v's d_head."""
    q, k, v = rows(0, 64, 70, 70)
    narrow = v[..., :32].contiguous()
    for _ in range(3):
        o, cut = flashsmith.attention(q, k, v), flashsmith.attention(q, k, narrow)
        assert cut.shape == (*q.shape[:-1], 32)
        assert torch.allclose(o[..., :32], cut, atol=1e-3)


def test_the_fields_are_passed_in_the_order_that_the_library_reads() -> None:
    flashsmith.attention(*rows(0, 64, 64, 64))
    assert tuple(map(str, load_host().spec_fields())) == AttentionSpec._fields


def test_flags_that_are_no_flags_are_refused_in_every_call() -> None:
    q, k, v = rows(0, 64, 64, 64)
    flashsmith.attention(q, k, v, causal=True)
    with pytest.raises(TypeError, match="causal is 1"):
        flashsmith.attention(q, k, v, causal=1)  # type: ignore[arg-type]
    flashsmith.decode(None, q[:, :1], k, v, splits=1)
    with pytest.raises(ValueError, match="splits is True"):
        flashsmith.decode(None, q[:, :1], k, v, splits=True)


def test_every_thread_has_a_number_of_its_own_which_ends_with_it() -> None:
    flashsmith.attention(*rows(0, 64, 64, 64))
    numbers = {launch_cache.this_thread()}
    for _ in range(3):
        with ThreadPoolExecutor(1) as threads:
            numbers.add(threads.submit(launch_cache.this_thread).result())
    assert len(numbers) == 4 and NO_THREAD not in numbers


def test_what_a_thread_keeps_is_dropped_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept on a CPU, so that the test puts memory there itself."""
    dropped: list[int] = []
    monkeypatch.setattr(launch_cache, "drop_thread", dropped.append)
    monkeypatch.setattr(workspace, "_made_by_another_thread", lambda n, _: torch.zeros(n))

    def keep() -> int:
        workspace._of_stream(8, torch.device("cpu"), 0)
        return launch_cache.this_thread()

    with ThreadPoolExecutor(1) as threads:
        number = threads.submit(keep).result()
        assert not dropped
    gc.collect()
    assert dropped == [number]
