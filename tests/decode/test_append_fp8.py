"""New keys and values of an FP8 cache: what a 16-bit cache gets, divided by the scale and
rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.dtype import DType
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import AppendArguments, CallArgs, find_decode
from support.decoding import (
    PLAIN,
    WILD,
    Placed,
    Requests,
    assert_near_truth,
    in_pages,
    in_slots,
    kernel_of,
    requests,
)
from support.fp8_caches import FP8, LARGEST, SMALL, quantised, scales_of, spread

NEW = 3
EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)


def byte_of(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Returns the bytes that torch computes: divided in fp32, rounded to nearest even, clamped."""
    divisor = spread(scale)
    divisor = divisor.float() if isinstance(divisor, torch.Tensor) else divisor
    return (x.float() / divisor).clamp(-LARGEST, LARGEST).to(FP8)


def assert_same_bytes(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Checks bytes; NaN has two encodings, which count as equal."""
    found, expected = found.contiguous(), expected.contiguous()
    missing = expected.float().isnan()
    assert torch.equal(found.float().isnan(), missing)
    bytes_of = [t.view(torch.uint8).masked_fill(missing, 0) for t in (found, expected)]
    assert torch.equal(*bytes_of)


def append(
    placed: Placed, k_new: torch.Tensor, v_new: torch.Tensor, *scales: torch.Tensor | None
) -> None:
    """Appends by the kernel itself, without a check of the numbers."""
    cfg = SMALL.for_dtype(DType.FP16 if k_new.dtype == torch.float16 else DType.BF16)
    kernel = find_decode(kernel_of(cfg, k_new, v_new, CallArgs()), Target.emulator())
    tensors = k_new, v_new, placed.k, placed.v, None, None, None, None, placed.seqlens
    where = placed.block_table, placed.batch_idx
    kernel.append(AppendArguments(True, False, *tensors, *where, *scales))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "scale",
    [None, torch.tensor([0.37]), torch.tensor([1e-3, 7.0]), torch.tensor([[3.0, 2**-20], [90, 1]])],
    ids=["none", "tensor", "head", "request"],
)
def test_every_number_becomes_the_byte_that_torch_says(
    scale: torch.Tensor | None, dtype: torch.dtype
) -> None:
    """An infinity or a number that is too large becomes the largest number; NaN stays NaN."""
    k_new = EVERY.view(dtype).reshape(2, 256, 2, 64)
    v_new = k_new.flip(0, 2)
    other = None if scale is None else scale.flip(-1) * 1.5
    k, v = (torch.zeros(2, 260, 2, 64).to(FP8) for _ in range(2))
    append(Placed(k, v, torch.tensor([2, 0], dtype=torch.int32)), k_new, v_new, scale, other)
    for cache, new, of in ((k, k_new, scale), (v, v_new, other)):
        expected = byte_of(new, of)
        assert_same_bytes(cache[0, 2:258], expected[0])
        assert_same_bytes(cache[1, :256], expected[1])
        assert not cache[0, [0, 1, 258, 259]].float().any() and not cache[1, 256:].float().any()


def split(asked: Requests) -> tuple[Requests, torch.Tensor, torch.Tensor]:
    """Returns requests without their last keys and values, and these."""
    lengths = tuple(n - NEW for n in asked.lengths)
    rows, places = torch.arange(len(lengths))[:, None], asked.seqlens[:, None] - NEW
    places = places.long() + torch.arange(NEW)
    k_new, v_new = asked.k[rows, places], asked.v[rows, places]
    k, v = asked.k.clone(), asked.v.clone()
    k[rows, places] = v[rows, places] = torch.nan
    return Requests(asked.q, k, v, lengths), k_new, v_new


def decode(placed: Placed, q: torch.Tensor, **keywords: Any) -> Any:
    return flashsmith.decode(
        None, q, placed.k, placed.v, cache_seqlens=placed.seqlens, block_table=placed.block_table,
        cache_batch_idx=placed.batch_idx, cache_leftpad=placed.leftpad, **keywords,
    )  # fmt: skip


def placed_in(asked: Requests, kind: str) -> Placed:
    """Returns a KV cache with room for the new rows; K and V in one tensor have strides of their
    own."""
    if kind == "entries":
        return in_slots(asked)
    if kind == "pads":  # slots in any order, behind padding
        pads, idx = torch.tensor([4, 0, 7]).int(), torch.tensor([2, 3, 0]).int()
        k, v = (t.new_full((4, t.shape[1] + 9, *t.shape[2:]), torch.nan) for t in (asked.k,) * 2)
        for i, (pad, n) in enumerate(zip(pads, asked.lengths, strict=True)):
            k[idx[i], pad : pad + n], v[idx[i], pad : pad + n] = asked.k[i, :n], asked.v[i, :n]
        return Placed(k, v, asked.seqlens + pads, batch_idx=idx, leftpad=pads)
    whole = in_pages(replace(asked, lengths=tuple(n + NEW for n in asked.lengths)), int(kind))
    both = torch.stack([whole.k, whole.v], 2)
    return replace(whole, k=both[:, :, 0], v=both[:, :, 1], seqlens=asked.seqlens)


@pytest.mark.parametrize("pairs", [True, False, None], ids=["pairs", "halves", "not turned"])
@pytest.mark.parametrize("kind", ["entries", "pads", "1", "5", "16"])
def test_a_cache_gets_what_one_of_16_bits_gets_divided(kind: str, pairs: bool | None) -> None:
    """Each new byte is checked and no other byte is touched; q is rotated as usual and sees all
    keys."""
    asked = requests(PLAIN, (3, 17, 66), n_q=2)
    old, k_new, v_new = split(asked)
    wide = placed_in(old, kind)
    scales = {"k_scale": scales_of(asked.k, "head"), "v_scale": scales_of(asked.v, "request")}
    small = replace(
        wide,
        k=wide.k.div(scales["k_scale"][:, None]).to(FP8),
        v=wide.v.div(scales["v_scale"].amax()).to(FP8),
    )
    untouched = small.k.clone(), small.v.clone()
    given: dict[str, Any] = {"k_new": k_new, "v_new": v_new, "causal": True}
    if pairs is not None:
        angle = torch.arange(120)[:, None] * torch.rand(24)
        given |= {"rotary_cos": angle.cos().bfloat16(), "rotary_sin": angle.sin().bfloat16()}
        given["rotary_interleaved"] = pairs
    before = wide.k.clone()
    decode(wide, asked.q, **given)
    found = decode(small, asked.q, **given, **scales, return_lse=True)
    is_new = ~wide.k.isnan() & before.isnan()
    assert is_new[..., 0].sum() == 2 * 3 * NEW
    expected = torch.where(is_new, byte_of(wide.k, scales["k_scale"]).float(), untouched[0].float())
    assert_same_bytes(small.k, expected.to(FP8))
    for i in range(3):  # V has a scale for each request
        of_request = byte_of(v_new[i : i + 1], scales["v_scale"][i : i + 1])[0]
        is_there = rows_of(small, small.v, i)[-NEW:]
        assert_same_bytes(is_there, of_request)
    assert torch.equal(small.v.float().isnan(), wide.v.isnan())
    if pairs is None:
        assert_near_truth(found, stored(small, asked, scales), Semantics(causal=True))


def rows_of(placed: Placed, cache: torch.Tensor, i: int) -> torch.Tensor:
    """Returns the rows of a request in a cache, with the new ones."""
    assert placed.seqlens is not None
    end = int(placed.seqlens[i]) + NEW
    if placed.block_table is not None:
        pages = placed.block_table[i, : -(-end // cache.shape[1])].long()
        return cache.view(torch.uint8)[pages].flatten(0, 1)[:end].view(FP8)
    entry = i if placed.batch_idx is None else int(placed.batch_idx[i])
    first = 0 if placed.leftpad is None else int(placed.leftpad[i])
    return cache[entry, first:end]


def stored(placed: Placed, asked: Requests, scales: dict[str, Any]) -> Requests:
    """Returns the requests with the keys and values that the cache holds."""
    k, v = asked.k.double(), asked.v.double()
    for i, n in enumerate(asked.lengths):
        k[i, :n], v[i, :n] = (rows_of(placed, t, i).double() for t in (placed.k, placed.v))
    return replace(asked, k=k * spread(scales["k_scale"]), v=v * spread(scales["v_scale"]))


def test_what_has_no_room_or_no_page_is_left_out() -> None:
    asked = requests(PLAIN, (20, 18), behind=0)
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).bfloat16()
    scale = torch.tensor([0.5, 2.0])
    k, v = (quantised(t.nan_to_num(), None) for t in (asked.k, asked.v))
    found = k.clone(), v.clone()
    lengths = torch.tensor([19, 1 << 30], dtype=torch.int32)
    append(Placed(*found, lengths), k_new, v_new, scale, None)
    rows = byte_of(k_new, scale), byte_of(v_new, None)
    for cache, before, row in zip(found, (k, v), rows, strict=True):
        expected = before.clone()
        expected.view(torch.uint8)[0, 19] = row.view(torch.uint8)[0, 0]
        assert_same_bytes(cache, expected)
    for page in (WILD, -1, 2, 1 << 30):
        found = k.clone(), v.clone()
        nowhere = torch.tensor([page, page], dtype=torch.int32)
        append(Placed(*found, asked.seqlens - NEW, batch_idx=nowhere), k_new, v_new, scale, None)
        table = nowhere[:, None].expand(2, 2).contiguous()
        append(Placed(*found, asked.seqlens, table), k_new, v_new, scale, None)
        assert_same_bytes(found[0], k)
        assert_same_bytes(found[1], v)


def test_a_call_made_again_divides_by_what_the_scales_are_then() -> None:
    asked = requests(PLAIN, (20, 18), behind=3)
    k, v = (torch.zeros_like(t, dtype=FP8) for t in (asked.k, asked.v))
    k_new, v_new = torch.randn(2, 2, 1, 2, 64).bfloat16()
    scale = torch.ones(1)
    for place in (18, 19, 20):
        scale *= 0.3
        flashsmith.decode(
            None, asked.q, k, v, cache_seqlens=place, k_new=k_new, v_new=v_new, k_scale=scale,
        )  # fmt: skip
        assert_same_bytes(k[:, place : place + 1], byte_of(k_new, scale))
        assert_same_bytes(v[:, place : place + 1], byte_of(v_new, None))


def test_queries_of_two_dtypes_over_such_caches_take_turns() -> None:
    """The append kernel of the last similar call must not serve a call of the other dtype."""
    asked = requests(PLAIN, (20, 18), behind=3)
    k, v = (torch.zeros_like(t, dtype=FP8) for t in (asked.k, asked.v))
    new = torch.randn(2, 1, 2, 64)
    for dtype in (torch.bfloat16, torch.float16) * 2:
        given = {name: new.to(dtype) for name in ("k_new", "v_new")}
        o = flashsmith.decode(None, asked.q.to(dtype), k, v, cache_seqlens=18, **given)
        assert isinstance(o, torch.Tensor) and o.dtype == dtype
        assert_same_bytes(k[:, 18:19], byte_of(new.to(dtype), None))


@pytest.mark.parametrize(
    "changed, error, words",
    [
        ({"k_new": torch.ones(2, 1, 2, 64).half()}, TypeError, "k_new has dtype float16, but"),
        ({"v_new": torch.ones(2, 1, 2, 64).to(FP8)}, TypeError, "v_new has dtype float8_e4m3fn"),
        ({"k_scale": torch.ones(3)}, ValueError, r"k_scale has shape \(3\)"),
        ({"k_scale": torch.zeros(1)}, ValueError, "k_scale has 0.0; expected positive"),
        (
            {"v_cache": torch.ones(2, 20, 2, 64).bfloat16()},
            TypeError,
            "v_cache has dtype bfloat16, but",
        ),
    ],
    ids=["k_new", "v_new", "a scale", "a zero", "v_cache"],
)
def test_bad_input_is_refused_in_words_before_anything_is_written(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    q, k = torch.ones(2, 1, 4, 64).bfloat16(), torch.zeros(2, 20, 2, 64).to(FP8)
    new = torch.ones(2, 1, 2, 64).bfloat16()
    given = {"k_cache": k, "v_cache": k.clone(), "k_new": new, "v_new": new, "cache_seqlens": 3}
    for _ in range(2):
        with pytest.raises(error, match=words):
            flashsmith.decode(None, q, **given | changed)
    assert not k.float().any()
