"""The masks of transformers' layers: their elements, and how models may change them."""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
from tools.transformers_sweep.cases import attention_by_reference
from transformers import masking_utils as theirs

from flashsmith.integrations.lazy_mask import LazyMask
from flashsmith.integrations.transformers import attention_forward
from flashsmith.integrations.transformers_masks import attention_mask

HEADS, D_HEAD = 4, 8
# transformers passes these keywords with causal masks, and with others.
_SKIPS = (["allow_is_causal_skip"], ["allow_is_bidirectional_skip"])


@pytest.fixture(autouse=True)
def _by_reference() -> Iterator[None]:
    with attention_by_reference():
        yield


# ---- drawn at random ----


def mask_function(draw: random.Random, batch: int, length: int | None) -> Any:
    """Returns a random mask function of transformers, possibly of sequences packed into ``length``
    rows."""
    window = draw.choice([1, 2, 3, 7, 100])
    function = draw.choice(
        [
            theirs.causal_mask_function,
            theirs.bidirectional_mask_function,
            theirs.sliding_window_causal_mask_function(window),
            theirs.sliding_window_bidirectional_mask_function(window),
            theirs.sliding_window_overlay(window),
            theirs.and_masks(
                theirs.sliding_window_overlay(window),
                theirs.sliding_window_causal_mask_function(draw.choice([2, 5])),
            ),
            theirs.sliding_window_bidirectional_mask_function(window),
            theirs.chunked_causal_mask_function(3, torch.zeros(batch, dtype=torch.int)),
            theirs.or_masks(theirs.causal_mask_function, theirs.sliding_window_overlay(2)),
        ]
    )
    if length is None or draw.random() < 0.7:
        return function
    starts = torch.rand(batch, length) < 0.4
    starts[:, 0] = False
    numbers = starts.cumsum(-1)
    firsts = torch.arange(length).masked_fill(~starts, 0).cummax(-1).values
    positions = torch.arange(length) - firsts
    return packed(function, positions, numbers)


def packed(function: Any, positions: torch.Tensor, numbers: torch.Tensor) -> Any:
    """Returns the mask function of packed sequences that the installed transformers makes from the
    one of a single sequence."""
    remapped = getattr(theirs, "remap_positions_for_packed_sequence", None)
    if remapped is None:
        return theirs.packed_sequence_compatibility_function(function, positions, numbers)
    same = theirs.packed_sequence_mask_function(numbers)
    return theirs.and_masks(remapped(function, positions), same)


def drawn(seed: int) -> dict[str, Any]:
    """Returns random arguments of a mask."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    batch, kv_length = draw.choice([1, 3]), draw.randint(1, 9)
    place = draw.choice(["alone", "cached", "static", "sliding", "any"])
    q_length = kv_length if place == "alone" else draw.randint(1, kv_length)
    q_offset, kv_offset = {
        "alone": (0, 0),
        "cached": (kv_length - q_length, 0),
        "static": (draw.randint(0, kv_length - q_length), 0),
        "sliding": (kv_length - q_length + 4, 4),
        "any": (draw.randint(0, 6), draw.randint(0, 3)),
    }[place]
    tokens = draw.choice([None, torch.rand(batch, draw.choice([kv_length + 4, 2])) < 0.7])
    return {
        "batch_size": batch,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": draw.choice([q_offset, torch.tensor(q_offset)]),
        "kv_offset": kv_offset,
        "mask_function": mask_function(draw, batch, kv_length if place == "alone" else None),
        "attention_mask": tokens,
        **dict.fromkeys(_SKIPS[draw.random() < 0.3], draw.random() < 0.7),
        "dtype": torch.float32,
    }


@pytest.mark.parametrize("block", range(10))
def test_a_mask_is_that_of_eager_attention(block: int) -> None:
    """Two things are compared: the mask's elements, and attention by the mask's description."""
    lazy = 0
    for seed in range(40 * block, 40 * block + 40):
        given = drawn(seed)
        expected = theirs.eager_mask(**given | {"allow_is_bidirectional_skip": False})
        mask = attention_mask(**given)
        lazy += isinstance(mask, LazyMask)
        if mask is None:
            assert given["allow_is_bidirectional_skip"]
            mask = torch.zeros(given["batch_size"], 1, given["q_length"], given["kv_length"])
        assert mask.shape == expected.shape and torch.equal(mask + 0.0, expected), seed
        batch, _, q_length, kv_length = expected.shape
        q = torch.randn(batch, HEADS, q_length, D_HEAD)
        k, v = (torch.randn(batch, HEADS // 2, kv_length, D_HEAD) for _ in range(2))
        bias = torch.randn(1, HEADS, q_length, kv_length) if seed % 4 == 0 else None
        module = torch.nn.Module()
        module.is_causal = seed % 3 == 0  # type: ignore[assignment]
        found, _ = attention_forward(
            module, q, k, v, mask, scaling=0.5, sliding_window=2, position_bias=bias
        )
        scores = 0.5 * q @ k.repeat_interleave(2, 1).mT + expected + (0 if bias is None else bias)
        own = scores.softmax(-1) @ v.repeat_interleave(2, 1)
        # Queries that see no key, and queries that are padding, do not count.
        counts = (expected > -1).any(-1, keepdim=True).expand_as(own)
        if isinstance(mask, LazyMask) and mask.tokens is not None and mask.is_banded:
            tokens = mask.tokens[:, None, mask.seen - q_length : mask.seen, None]
            counts = counts & tokens if mask.seen >= q_length else counts
        torch.testing.assert_close(found.transpose(1, 2)[counts], own[counts], msg=f"seed {seed}")
    assert lazy > 10


# ---- what models do with a mask ----


def lazy_mask(**changes: Any) -> LazyMask:
    tokens = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    given = {"offset": 1, "behind": 2, "ahead": 0, "tokens": tokens} | changes
    return LazyMask(2, 4, 5, **given)


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), slice(None), slice(-2, None), slice(None)),
        (slice(None), slice(None), slice(None), slice(None, 3)),
        (slice(None), slice(None), slice(1, 3), slice(2, 4)),
        (slice(None), 0),
        (..., slice(None, None, 2)),
        (slice(None), slice(None), slice(None, None, 2), slice(None)),
        1,
        (0, 0, 2),
    ],
)
def test_a_part_of_a_mask(index: Any) -> None:
    mask = lazy_mask()
    assert torch.equal(mask[index] + 0, mask.whole()[index])


def test_neighbouring_queries_and_keys_are_still_a_description() -> None:
    part = lazy_mask()[:, :, -1:, :4]
    assert isinstance(part, LazyMask)
    assert (part.q_length, part.kv_length, part.offset) == (1, 4, 4)
    assert isinstance(lazy_mask(sequences=torch.zeros(2, 5)).to("meta"), LazyMask)


def test_what_tensors_can_do() -> None:
    mask, whole = lazy_mask(), lazy_mask().whole()
    assert torch.equal(torch.cat([mask, mask], -1), torch.cat([whole, whole], -1))
    assert torch.equal(torch.where(mask < 0, 1, 2), torch.where(whole < 0, 1, 2))
    assert torch.equal(torch.zeros(4, 5) + mask, whole) and torch.equal(mask * 2, whole * 2)
    assert torch.equal(mask.masked_fill(mask == 0, 3), whole.masked_fill(whole == 0, 3))
    assert torch.equal(
        torch.nn.functional.pad(mask, (0, 1)), torch.nn.functional.pad(whole, (0, 1))
    )
    assert torch.equal(mask.unsqueeze(0), whole[None]) and len(mask) == 2
    assert [torch.equal(a, b) for a, b in zip(mask, whole, strict=True)] == [True, True]
    assert mask.dim() == whole.dim() and mask.size(-1) == 5 and mask.size() == whole.shape
    assert mask.is_floating_point() and mask.contiguous() is mask and mask.detach() is mask


def test_another_device_and_dtype() -> None:
    mask = lazy_mask()
    assert mask.to("cpu") is mask and mask.to(torch.float32) is mask
    half = mask.to(device="cpu", dtype=torch.bfloat16)
    assert isinstance(half, LazyMask) and half.whole().dtype == torch.bfloat16
    assert torch.equal(mask.to(torch.bool), mask.whole().bool())


def test_a_mask_that_layers_share_is_not_written() -> None:
    with pytest.raises(AttributeError, match=r"no masked_fill_"):
        lazy_mask().masked_fill_(torch.tensor(True), 0)
    with pytest.raises(TypeError, match="item assignment"):
        lazy_mask()[0] = 0  # type: ignore[index]


# ---- supported and unsupported arguments ----


def given(**changes: Any) -> Any:
    return attention_mask(**({"batch_size": 2, "q_length": 4, "kv_length": 4} | changes))


def test_a_model_that_wants_a_mask_has_one() -> None:
    bidirectional = {"mask_function": theirs.bidirectional_mask_function}
    compressed = ["sliding_attention", "compressed_sparse_attention"]
    asked: tuple[dict[str, Any], ...] = (
        {"config": types.SimpleNamespace(layer_types=compressed)},
        {"allow_is_causal_skip": False},
        bidirectional | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )
    for keywords in asked:
        mask = given(**keywords)
        assert isinstance(mask, torch.Tensor)
        assert torch.equal(mask, theirs.eager_mask(2, 4, 4, **keywords))


def test_where_transformers_wants_a_mask_itself_kernels_know_more() -> None:
    of_one = packed(theirs.causal_mask_function, torch.arange(4).expand(2, -1), torch.zeros(2, 4))
    for keywords in (
        {"mask_function": of_one},
        {"q_length": 1, "q_offset": torch.tensor(2)},
        {"mask_function": theirs.sliding_window_bidirectional_mask_function(2)}
        | {"allow_is_bidirectional_skip": True},
    ):
        assert isinstance(given(allow_is_causal_skip=False, **keywords), LazyMask)


@pytest.mark.skipif(
    not hasattr(theirs, "remap_positions_for_packed_sequence"), reason="transformers before 5.24"
)
def test_positions_of_sequences_that_nothing_keeps_apart_are_made_whole() -> None:
    positions = torch.tensor([0, 1, 0, 1]).expand(2, -1)
    alone = theirs.remap_positions_for_packed_sequence(theirs.causal_mask_function, positions)
    mask = given(mask_function=alone)
    assert isinstance(mask, torch.Tensor)
    assert torch.equal(mask[0, 0] == 0, positions[0] <= positions[0][:, None])


def test_where_all_is_seen_there_is_no_mask_as_in_eager_attention() -> None:
    """Some models change lengths after the mask is made, and rely on this."""
    keywords = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    both = theirs.bidirectional_mask_function
    windowed = theirs.sliding_window_bidirectional_mask_function
    assert given(mask_function=both, **keywords) is None
    assert given(mask_function=windowed(5), **keywords) is None
    assert given(mask_function=windowed(3), **keywords) is not None
    tokens = torch.ones(2, 4).bool()
    assert given(mask_function=both, attention_mask=tokens, **keywords) is None
    tokens[0, 0] = False
    assert given(mask_function=both, attention_mask=tokens, **keywords) is not None
    assert given(mask_function=both) is not None


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_nothing_hides_all(window: int) -> None:
    mask = given(mask_function=theirs.sliding_window_causal_mask_function(window))
    assert isinstance(mask, torch.Tensor) and (mask < 0).all()


def test_a_mask_made_ahead_comes_back() -> None:
    mask = given()
    assert given(attention_mask=mask) is mask


# ---- what a layer gets ----


def attend(
    mask: Any, keys: int = 5, module: Any = None, *, queries: int = 4, **keywords: Any
) -> torch.Tensor:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, D_HEAD) for n in (queries, keys, keys))
    module = torch.nn.Module() if module is None else module
    found: torch.Tensor = attention_forward(module, q, k, v, mask, **keywords)[0]
    return found


def layer(is_causal: bool) -> Any:
    module = torch.nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    return module


def test_a_mask_counts_whatever_a_layer_says() -> None:
    """The mask takes precedence over a layer's attribute and over keywords."""
    for mask in (LazyMask(2, 4, 5, offset=1, ahead=0), LazyMask(2, 4, 5, offset=1)):
        expected = attend(mask.whole())
        for module in (torch.nn.Module(), layer(True), layer(False)):
            for keywords in ({}, {"sliding_window": 2}, {"is_causal": mask.ahead is None}):
                torch.testing.assert_close(attend(mask, module=module, **keywords), expected)
                whole = attend(mask.whole(), module=module, **keywords)
                torch.testing.assert_close(whole, expected)


def test_without_a_mask_all_is_seen_as_in_eager_attention() -> None:
    everything = attend(torch.zeros(2, 1, 4, 5))
    for module in (torch.nn.Module(), layer(True), layer(False)):
        assert torch.equal(attend(None, module=module), everything)
    assert torch.equal(attend(None, sliding_window=2), everything)
    causal = LazyMask(2, 4, 5, offset=1, ahead=0).whole()
    torch.testing.assert_close(attend(None, is_causal=True), attend(causal))
    module = layer(True)
    module.config = types.SimpleNamespace(is_causal=False)
    assert torch.equal(attend(None, is_causal=True, module=module), everything)
    windowed = LazyMask(2, 4, 5, offset=1, behind=1, ahead=0).whole()
    torch.testing.assert_close(attend(None, is_causal=True, sliding_window=2), attend(windowed))


@pytest.mark.parametrize("dtype", [torch.bool, torch.long])
def test_padding_alone_leaves_the_rest_to_the_layer(dtype: torch.dtype) -> None:
    tokens = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    for causal, window in ((True, None), (False, None), (True, 2), (False, 3)):
        behind = None if window is None else window - 1
        ahead = 0 if causal else behind
        told = LazyMask(2, 4, 5, offset=1, behind=behind, ahead=ahead, tokens=tokens.bool())
        expected = attend(told.whole())
        found = attend(tokens.to(dtype), module=layer(causal), sliding_window=window)
        counts = tokens[:, 1:].bool()
        torch.testing.assert_close(found[counts], expected[counts])


def test_a_mask_that_is_longer_than_the_keys_is_cut() -> None:
    mask = LazyMask(2, 4, 7, offset=1, ahead=0)
    torch.testing.assert_close(attend(mask), attend(mask.whole()[..., :5]))


@pytest.mark.parametrize("told", ["tokens", "sequences"])
def test_a_mask_of_one_batch_is_that_of_all(told: str) -> None:
    """Eager attention also makes such a mask fit the batch, by broadcasting."""
    of_tokens = torch.tensor([[0, 1, 1, 1, 1]]).bool()
    of_sequences = torch.tensor([[0, 0, 1, 1, 1]])
    mask = LazyMask(1, 5, 5, ahead=0, **{told: of_tokens if told == "tokens" else of_sequences})
    found, expected = (attend(m, queries=5) for m in (mask, mask.whole()))
    torch.testing.assert_close(found[:, 1:], expected[:, 1:])


def test_a_mask_of_another_float_is_taken() -> None:
    mask = LazyMask(2, 4, 5, offset=1, ahead=0)
    for dtype in (torch.float64, torch.float16):
        torch.testing.assert_close(attend(mask.to(dtype).whole()), attend(mask.whole()))


def test_queries_see_the_keys_that_were_chosen_for_them() -> None:
    indices = torch.tensor([[[0, 1], [0, 1], [2, 1], [4, 0]], [[3, 3], [1, 0], [2, 0], [3, 1]]])
    chosen = torch.zeros(2, 4, 5).scatter(-1, indices, 1.0).bool()[:, None]
    seen = LazyMask(2, 4, 5, offset=1, ahead=0)
    both = seen.whole().masked_fill(~chosen, -torch.inf)
    counts = (both == 0).any(-1)[:, 0]
    for mask in (seen, seen.whole(), seen.whole() == 0):
        found = attend(mask, indices=indices)
        torch.testing.assert_close(found[counts], attend(both)[counts])
    everywhere = torch.zeros(both.shape).masked_fill(~chosen, -torch.inf)
    torch.testing.assert_close(attend(None, indices=indices), attend(everywhere))


@pytest.mark.parametrize("biased", [False, True])
def test_sinks_of_each_query(biased: bool) -> None:
    """The sinks take their share of the softmax, and have no values."""
    sinks, bias = torch.randn(2, 2, 4, 1), torch.randn(1, 2, 4, 5)
    mask = LazyMask(2, 4, 5, offset=1, ahead=0)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, D_HEAD) for n in (4, 5, 5))
    scores = q @ k.mT * D_HEAD**-0.5 + mask.whole() + (bias if biased else 0)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    keywords = {"sinks": sinks} | ({"position_bias": bias} if biased else {})
    for given in (mask, mask.whole(), mask.whole() == 0):
        torch.testing.assert_close(attend(given, **keywords), (weights @ v).transpose(1, 2))


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"cache": 1}, NotImplementedError, "cache is given; a paged cache is not supported"),
        ({"block_indices": 1}, NotImplementedError, "block_indices is given; attention to chosen"),
        ({"is_causal": True, "sliding_window": 0}, ValueError, "sliding_window is 0; expected at"),
        ({"mask": torch.ones(2, 5)[:1] > 0}, ValueError, r"has shape \(1, 5\); expected \(2, 5\)"),
        ({"mask": torch.ones(2, 5) > 0}, ValueError, "is_causal is None, and Module has no attri"),
        ({"mask": torch.ones(2, 1, 3, 5) > 0}, ValueError, "attn_mask has shape"),
        ({"mask": torch.ones(2, 1, 4, 4) > 0}, ValueError, "attn_mask has shape"),
    ],
)
def test_what_is_refused(keywords: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attend(keywords.pop("mask", None), **keywords)
