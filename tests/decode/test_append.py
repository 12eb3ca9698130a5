"""New keys and values are written behind each request's, rotated by their positions, and nowhere
else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.jit import Target
from flashsmith.ops import decode_calls
from flashsmith.reference import Semantics
from flashsmith.runtime import AppendArguments, CallArgs, find_decode
from flashsmith.selection.choose import forget_calls
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
from support.far import interleaved
from support.new_keys import NEW, angles, before, turned


def decode(q: torch.Tensor, placed: Placed, **keywords: Any) -> Any:
    return flashsmith.decode(
        None, q, placed.k, placed.v, cache_seqlens=placed.seqlens, block_table=placed.block_table,
        cache_batch_idx=placed.batch_idx, cache_leftpad=placed.leftpad, **keywords,
    )  # fmt: skip


def with_room(asked: Requests, page_size: int) -> Placed:
    """Returns pages with room for the new rows, which hold the rows before them."""
    whole = in_pages(replace(asked, lengths=tuple(n + NEW for n in asked.lengths)), page_size)
    return replace(whole, seqlens=asked.seqlens)


@pytest.mark.parametrize("page_size", [None, 1, 5, 16])
def test_new_keys_are_seen_and_stay_and_nothing_else_changes(page_size: int | None) -> None:
    asked = requests(PLAIN, (3, 4, 16, 17, 66), n_q=2)
    old, k_new, v_new = before(asked)
    placed = in_slots(old) if page_size is None else with_room(old, page_size)
    whole = in_slots(asked) if page_size is None else in_pages(asked, page_size)
    for _ in range(2):  # the second pass writes the same rows again
        found = decode(asked.q, placed, k_new=k_new, v_new=v_new, causal=True, return_lse=True)
        assert_near_truth(found, asked, Semantics(causal=True))
        for cache, expected in ((placed.k, whole.k), (placed.v, whole.v)):
            assert torch.equal(cache.isnan(), expected.isnan())
            assert torch.equal(cache.nan_to_num(), expected.nan_to_num())


def test_new_keys_go_into_any_entry_behind_the_padding() -> None:
    asked = requests(PLAIN, (5, 20, 40), n_q=2)
    old, k_new, v_new = before(asked)
    pads, idx = torch.tensor([4, 0, 7]).int(), torch.tensor([2, 3, 0]).int()
    shape = (4, 60, *asked.k.shape[2:])
    k, v = asked.k.new_full(shape, torch.nan), asked.v.new_full(shape, torch.nan)
    for i, (pad, n) in enumerate(zip(pads, old.lengths, strict=True)):
        k[idx[i], pad : pad + n], v[idx[i], pad : pad + n] = old.k[i, :n], old.v[i, :n]
    placed = Placed(k, v, old.seqlens + pads, batch_idx=idx, leftpad=pads)
    found = decode(asked.q, placed, k_new=k_new, v_new=v_new, causal=True, return_lse=True)
    assert_near_truth(found, asked, Semantics(causal=True))
    assert k[1].isnan().all()


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("half", [8, 24, 32])
@pytest.mark.parametrize("bounds", [{}, {"causal": True}, {"window_size": (30, -1)}], ids=str)
def test_keys_and_queries_are_turned_by_their_positions(
    bounds: dict[str, Any], half: int, pairs: bool
) -> None:
    asked = requests(PLAIN, (3, 17, 66), n_q=2)
    old, k_new, v_new = before(asked)
    cos, sin = angles(120, half)
    placed = with_room(old, 16)
    found = decode(
        asked.q, placed, k_new=k_new, v_new=v_new, rotary_cos=cos, rotary_sin=sin,
        rotary_interleaved=pairs, return_lse=True, **bounds,
    )  # fmt: skip
    first = old.seqlens.long()[:, None]
    along = torch.arange(2)[None] if bounds else torch.zeros(1, 2, dtype=torch.long)
    q = turned(asked.q, cos, sin, first + along, pairs)
    k = asked.k.clone()
    rows, places = torch.arange(3)[:, None], first + torch.arange(NEW)
    k[rows, places] = turned(k_new, cos, sin, places, pairs)
    meant = Semantics(**bounds)
    assert_near_truth(found, replace(asked, q=q, k=k), meant)
    table = placed.block_table
    assert table is not None
    for i, n in enumerate(old.lengths):  # an fp32 sum may round differently
        written = torch.cat([placed.k[table[i, r // 16], r % 16][None] for r in range(n, n + NEW)])
        torch.testing.assert_close(written, k[i, n : n + NEW], rtol=2**-7, atol=2**-8)


def append(
    placed: Placed, k_new: torch.Tensor, v_new: torch.Tensor, *turning: torch.Tensor
) -> None:
    """Appends by the kernel itself, without a check of the numbers.

    turning: q, the rotated q, cosines and sines.
    """
    kernel = find_decode(kernel_of(PLAIN, k_new, v_new, CallArgs()), Target.emulator())
    tensors = k_new, v_new, placed.k, placed.v, *(turning or (None,) * 4), placed.seqlens
    kernel.append(AppendArguments(True, False, *tensors, placed.block_table, placed.batch_idx))


@pytest.mark.parametrize("far", [(1 << 30) + 8, (1 << 31) + 8], ids=["2", "1"])
@pytest.mark.parametrize("dim", [0, 1, 2], ids=["entries", "rows", "heads"])
def test_new_keys_go_further_than_32_bits_count(dim: int, far: int) -> None:
    """The stride is as large in the tensor of new keys as in the cache."""
    shape = (3, 3, 3, 64)
    new, cache = interleaved(2, shape, dim, far, torch.bfloat16)
    new.copy_(torch.randn(shape))
    placed = Placed(cache, torch.zeros(shape).bfloat16(), torch.zeros(3, dtype=torch.int32))
    append(placed, new, torch.zeros(shape).bfloat16())
    assert torch.equal(cache, new)


def test_what_has_no_room_is_left_out() -> None:
    asked = requests(PLAIN, (8, 6), behind=0)
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).to(asked.k.dtype)
    k, v = asked.k.clone(), asked.v.clone()
    placed = Placed(k, v, torch.tensor([7, 1 << 30], dtype=torch.int32))
    append(placed, k_new, v_new)
    assert torch.equal(k[0, 7], k_new[0, 0])
    assert torch.equal(v[0, 7], v_new[0, 0])
    same = torch.ones(2, 8, dtype=torch.bool)
    same[0, 7] = False
    assert torch.equal(k[same].nan_to_num(), asked.k[same].nan_to_num())


def test_angles_of_rows_that_are_not_there_are_not_read() -> None:
    """The emulator would report a read behind the last row of angles."""
    asked = requests(PLAIN, (8, 8), behind=0)
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).to(asked.k.dtype)
    cos, sin = angles(8, 16)
    placed = Placed(asked.k.clone(), asked.v, torch.tensor([1 << 30, 7], dtype=torch.int32))
    q = torch.empty_like(asked.q)
    append(placed, k_new, v_new, asked.q, q, cos, sin)
    last = torch.full((2, 1), 7)
    torch.testing.assert_close(q, turned(asked.q, cos, sin, last, True).to(q.dtype))
    expected = turned(k_new[1:, :1], cos, sin, last[:1], True)[0, 0]
    torch.testing.assert_close(placed.k[1, 7], expected.to(q.dtype))
    assert torch.equal(placed.k[:, :7], asked.k[:, :7])


@pytest.mark.parametrize("page", [WILD, -1, 8, 1 << 30])
def test_a_page_or_entry_that_is_nowhere_is_never_written(page: int) -> None:
    asked = requests(PLAIN, (20, 18))
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).to(asked.k.dtype)
    placed = in_pages(asked, 8)
    assert placed.block_table is not None
    assert placed.k.shape[0] <= 9
    placed.block_table[:, 2:] = max(page, placed.k.shape[0]) if page == 8 else page
    k = placed.k.clone()
    append(placed, k_new, v_new)
    assert torch.equal(placed.k.nan_to_num(), k.nan_to_num())
    k, v = asked.k.clone(), asked.v.clone()
    append(Placed(k, v, asked.seqlens, batch_idx=torch.tensor([page, page]).int()), k_new, v_new)
    assert torch.equal(k.nan_to_num(), asked.k.nan_to_num())


def in_one_tensor(placed: Placed) -> Placed:
    """Returns pages of K and V that alternate in one tensor, so that page 2 i of K is page 2 i - 1
    of V."""
    pages = torch.stack([placed.k, placed.v], 1).flatten(0, 1)
    assert placed.block_table is not None
    return replace(placed, k=pages[:-1], v=pages[1:], block_table=placed.block_table * 2)


def test_pages_of_keys_and_values_may_be_those_of_one_tensor() -> None:
    asked = requests(PLAIN, (3, 17, 66), n_q=2)
    old, k_new, v_new = before(asked)
    placed = in_one_tensor(with_room(old, 8))
    found = decode(asked.q, placed, k_new=k_new, v_new=v_new, causal=True, return_lse=True)
    assert_near_truth(found, asked, Semantics(causal=True))


def test_what_overlaps_without_pages_is_refused() -> None:
    asked = requests(PLAIN, (3, 17))
    old, k_new, v_new = before(asked)
    placed = in_one_tensor(with_room(old, 8))
    for cache, name in ((placed.k, "k_cache"), (placed.v, "v_cache")):
        new = cache.as_strided(k_new.shape, k_new.stride(), cache.storage_offset())
        with pytest.raises(ValueError, match=f"{name} shares memory with"):
            decode(asked.q, placed, k_new=new, v_new=v_new)
    entries = Placed(asked.k, asked.k, old.seqlens)
    with pytest.raises(ValueError, match="v_cache shares memory with k_cache"):
        decode(asked.q, entries, k_new=k_new, v_new=v_new)


def test_no_new_keys_are_none() -> None:
    asked = requests(PLAIN, (20, 18))
    none = asked.k[:, :0]
    found = decode(asked.q, in_slots(asked), k_new=none, v_new=none, return_lse=True)
    assert_near_truth(found, asked)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no v": ({"v_new": None}, ValueError, "k_new and v_new go together"),
    "no lengths": ({"cache_seqlens": None}, ValueError, "cache_seqlens is None"),
    "no room": ({"cache_seqlens": 18}, ValueError, "cache_seqlens is 18; expected 0 to 17"),
    "no sines": (
        {"rotary_cos": torch.ones(30, 8).bfloat16()},
        ValueError,
        "rotary_cos was passed without rotary_sin",
    ),
    "too few angles": (
        {name: torch.ones(19, 8).bfloat16() for name in ("rotary_cos", "rotary_sin")},
        ValueError,
        "rotary_cos has shape (19, 8)",
    ),
    "odd angles": (
        {name: torch.ones(20, 9).bfloat16() for name in ("rotary_cos", "rotary_sin")},
        ValueError,
        "rotary_cos has shape (20, 9)",
    ),
    "each angle twice": (
        {name: torch.ones(20, 64).bfloat16() for name in ("rotary_cos", "rotary_sin")},
        ValueError,
        "an angle for each pair: at least 20 rows, and a multiple of 8 up to 32 columns",
    ),
    "angles of another dtype": (
        {name: torch.ones(20, 8) for name in ("rotary_cos", "rotary_sin")},
        TypeError,
        "rotary_cos has dtype float32",
    ),
    "angles of an int": ({"rotary_cos": 3, "rotary_sin": 3}, TypeError, "rotary_cos is a int"),
    "k of other heads": (
        {"k_new": torch.ones(2, 3, 1, 64).bfloat16()},
        ValueError,
        "k_new has shape",
    ),
    "k of another dtype": (
        {"k_new": torch.ones(2, 3, 2, 64).half()},
        TypeError,
        "k_new has dtype float16",
    ),
    "k of other requests": (
        {name: torch.ones(1, 3, 2, 64).bfloat16() for name in ("k_new", "v_new")},
        ValueError,
        "k_new has batch size 1",
    ),
    "a flag of an int": ({"rotary_interleaved": 1}, TypeError, "rotary_interleaved is 1"),
}


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_words(
    name: str, is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is refused before it looks up or builds a kernel, and before it writes to the
    cache."""
    if not is_built:
        monkeypatch.setattr(decode_calls, "_kernel_for", lambda *_: pytest.fail("it was asked"))
    changed, error, words = BAD[name]
    asked = requests(PLAIN, (17, 16), behind=3)
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).to(asked.k.dtype)
    given: dict[str, Any] = {"cache_seqlens": asked.seqlens, "k_new": k_new, "v_new": v_new}
    k = asked.k.clone()
    with pytest.raises(error) as caught:
        flashsmith.decode(None, asked.q, k, asked.v, **given | changed)
    assert words in str(caught.value)
    assert torch.equal(k.nan_to_num(), asked.k.nan_to_num())


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"angles": 4}, "rotary_cos has shape"),
        ({"angles": 40}, "up to 32 columns, as many in rotary_cos as in rotary_sin"),
        ({"new_from": 1}, "k_new.*16 bytes"),
    ],
    ids=str,
)
def test_a_library_refuses_what_no_caller_looked_at(changed: dict[str, int], words: str) -> None:
    """``decode`` refuses most of these calls earlier, but a library may also be called directly."""
    asked = requests(PLAIN, (8, 6), behind=0)
    memory = torch.randn(2, 2 * NEW * 2 * 64 + 8).to(asked.k.dtype)
    first = changed.get("new_from", 0)
    k_new, v_new = (t[first:][: 2 * NEW * 2 * 64].view(2, NEW, 2, 64) for t in memory)
    turn = torch.ones(2, 20, changed.get("angles", 8)).to(asked.k.dtype)
    placed, q = Placed(asked.k, asked.v, asked.seqlens), torch.empty_like(asked.q)
    before = asked.k.clone()
    with pytest.raises(ValueError, match=words):
        append(placed, k_new, v_new, asked.q, q, *turn)
    assert torch.equal(asked.k.nan_to_num(), before.nan_to_num())


def test_angles_without_new_keys_are_refused() -> None:
    asked = requests(PLAIN, (17, 16))
    cos = torch.ones(30, 8).bfloat16()
    with pytest.raises(ValueError, match="rotary_cos or rotary_sin was passed without k_new"):
        flashsmith.decode(None, asked.q, asked.k, asked.v, rotary_cos=cos, rotary_sin=cos)


@pytest.mark.parametrize(
    "name, places, lengths, words",
    [
        ("cache_batch_idx", [1, 0, 1], [4, 4, 4], "requests 0 and 2 have row 4 of entry 1"),
        ("cache_batch_idx", [1, 0, 1], [6, 4, 4], "requests 0 and 2 have row 6 of entry 1"),
        (
            "block_table",
            [[0, 1], [2, 3], [4, 1]],
            [7, 7, 6],
            "requests 0 and 2 have row 0 of page 1",
        ),
        ("block_table", [[0, 1], [2, 3], [4, 4]], [7, 7, 7], None),
        ("block_table", [[0, 1], [2, 3], [0, 4]], [9, 7, 8], None),  # both requests read the prefix
        ("cache_batch_idx", [1, 0, 1], [7, 4, 4], None),
    ],
    ids=str,
)
def test_two_requests_that_write_one_row_are_refused(
    name: str, places: list[Any], lengths: list[int], words: str | None
) -> None:
    """The order of the writes would be undefined. Requests may share rows that they read."""
    q = torch.randn(3, 1, 2, 64).bfloat16()
    k, v = torch.zeros(2, 5, 8 if name == "block_table" else 16, 1, 64).bfloat16()
    new = torch.randn(2, 3, NEW, 1, 64).bfloat16()
    given = {
        "cache_seqlens": torch.tensor(lengths).int(), name: torch.tensor(places).int(),
        "k_new": new[0], "v_new": new[1],
    }  # fmt: skip
    if words is None:
        flashsmith.decode(None, q, k, v, **given)
        return
    with pytest.raises(ValueError, match=f"{name} .*{words}"):
        flashsmith.decode(None, q, k, v, **given)
    assert not k.any()
    del given["k_new"], given["v_new"]
    flashsmith.decode(None, q, k, v, **given)


@pytest.mark.parametrize("calls_before", [0, 1])
def test_nothing_is_written_of_a_call_that_the_library_alone_refuses(calls_before: int) -> None:
    """Only the library sees that ``out`` overlaps q, in a first call and in a repeated one."""
    asked = requests(PLAIN, (40, 3), behind=NEW)
    k_new, v_new = torch.randn(2, 2, NEW, 2, 64).to(asked.k.dtype)
    given = {"cache_seqlens": asked.seqlens, "k_new": k_new, "v_new": v_new}
    forget_calls()
    for _ in range(calls_before):
        k, v = asked.k.clone(), asked.v.clone()
        flashsmith.decode(None, asked.q, k, v, out=torch.empty_like(asked.q), **given)
    before = asked.k.clone(), asked.v.clone()
    with pytest.raises(ValueError, match="o shares memory with q"):
        flashsmith.decode(None, asked.q, asked.k, asked.v, out=asked.q, **given)
    for cache, same in zip((asked.k, asked.v), before, strict=True):
        assert torch.equal(cache.nan_to_num(), same.nan_to_num())
