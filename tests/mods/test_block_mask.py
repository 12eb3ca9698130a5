"""Block masks equal torch's, but do not evaluate every score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

from flashsmith.errors import TracingError
from flashsmith.mods import block_mask as module
from flashsmith.mods.block_mask import BlockMask, create_block_mask

DOCUMENTS = torch.sort(torch.randint(0, 7, (700,), dtype=torch.int32)).values
PREFIXES = torch.tensor([10, 650, 300], dtype=torch.int32)
SEEN = torch.rand(3, 2, 6) < 0.5
BIAS = torch.randn(700)
BIAS[3], BIAS[600] = float("nan"), float("inf")

MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q - k).abs() <= 130,
    "causal window": lambda b, h, q, k: (q >= k) & (q - k < 100),
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "prefix": lambda b, h, q, k: (k < PREFIXES[b]) | (q >= k),
    "dilated": lambda b, h, q, k: (q - k) % 3 == h,
    "chunks": lambda b, h, q, k: q // 150 == k // 150,
    "heads apart": lambda b, h, q, k: torch.where(h == 0, q >= k, k >= q),
    "blocks of a table": lambda b, h, q, k: SEEN[b, h, k // 128],
    "floats": lambda b, h, q, k: q * 0.5 + 3.25 > k,
    "not finite": lambda b, h, q, k: (BIAS[q] > 0) | torch.isnan(BIAS[k]),
    "from the end": lambda b, h, q, k: DOCUMENTS[q - 650] <= DOCUMENTS[k],
    "functions": lambda b, h, q, k: torch.sin(q / 200) > torch.exp(-k / 300),
    "none": lambda b, h, q, k: q < 0,
    "all": lambda b, h, q, k: q >= 0,
}
FIELDS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@pytest.mark.parametrize("size", [128, (64, 100)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_those_of_torch(name: str, size: Any) -> None:
    at = (3, 2, 700, 640)
    mask = create_block_mask(MASKS[name], *at, device="cpu", BLOCK_SIZE=size)
    theirs = flex_attention.create_block_mask(MASKS[name], *at, device="cpu", BLOCK_SIZE=size)
    expected = BlockMask.from_torch(theirs)
    for field in FIELDS:
        found = getattr(mask, field)
        assert found.dtype == torch.int32
        assert found.equal(getattr(expected, field)), field
    assert (mask.block_size, mask.seq_lengths) == (expected.block_size, expected.seq_lengths)
    assert mask.shape == (3, 2, 700, 640)
    assert mask.mask_mod is expected.mask_mod is MASKS[name]


def test_a_mask_for_all_batches_and_heads_is_kept_once() -> None:
    mask = create_block_mask(MASKS["causal"], None, None, 256, 256, device="cpu")
    assert mask.shape == (1, 1, 256, 256)
    wide = create_block_mask(MASKS["prefix"], 3, 5, 700, 700, device="cpu")
    assert wide.kv_num_blocks.shape == (3, 5, 6)
    assert wide.kv_indices[:, 0].equal(wide.kv_indices[:, 4])


@pytest.mark.parametrize(
    ("name", "looked_at"), [("causal", 4), ("documents", 12), ("chunks", 14), ("window", 16)]
)
def test_bounds_decide_most_blocks(
    monkeypatch: pytest.MonkeyPatch, name: str, looked_at: int
) -> None:
    """Only the blocks on the diagonal of a causal mask are evaluated."""
    seen = []
    evaluate = module.evaluate

    def counted(mods: Any, root: int, inputs: Any) -> torch.Tensor:
        seen.append(inputs["q"].shape[0])
        return evaluate(mods, root, inputs)

    monkeypatch.setattr(module, "evaluate", counted)
    create_block_mask(MASKS[name], 3, 2, 512, 512, device="cpu")
    assert sum(seen) <= looked_at


def test_blocks_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = create_block_mask(MASKS["dilated"], 1, 2, 700, 640, device="cpu")
    monkeypatch.setattr(module, "_BLOCKS_AT_ONCE", 7)
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", 128 * 128 * 2)
    parts = create_block_mask(MASKS["dilated"], 1, 2, 700, 640, device="cpu")
    assert all(getattr(whole, field).equal(getattr(parts, field)) for field in FIELDS)


def test_a_mask_of_torch_without_full_blocks_has_none() -> None:
    theirs = flex_attention.create_block_mask(
        MASKS["causal"], 1, 1, 256, 256, device="cpu", separate_full_blocks=False
    )
    mask = BlockMask.from_torch(theirs)
    assert mask.full_kv_num_blocks.sum() == 0
    assert mask.kv_num_blocks.tolist() == [[[1, 2]]]
    assert mask.sparsity() == 25


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"B": 0}, ValueError, "B is 0; expected at least 1"),
        ({"H": 2.0}, TypeError, "H is 2.0; expected an int"),
        ({"Q_LEN": -1}, ValueError, "Q_LEN is -1; expected at least 1"),
        ({"KV_LEN": None}, TypeError, "KV_LEN is None; expected an int"),
        ({"BLOCK_SIZE": (128, 0)}, ValueError, r"BLOCK_SIZE\[1\] is 0; expected at least 1"),
        ({"BLOCK_SIZE": (1, 2, 3)}, ValueError, r"BLOCK_SIZE is \(1, 2, 3\); expected an int or"),
        ({"BLOCK_SIZE": None}, TypeError, "BLOCK_SIZE is None; expected an int or a pair of them"),
        ({"KV_LEN": 2**30 + 1}, ValueError, r"KV_LEN is 1073741825; expected at most 1073741824"),
        (
            {"Q_LEN": 2**24, "KV_LEN": 2**24},
            ValueError,
            r"BLOCK_SIZE is \(128, 128\), which makes 17180000256 blocks of .*: pass larger",
        ),
        ({"device": "nonsense"}, ValueError, "device is 'nonsense'; expected cpu, cuda or cuda:<n"),
        ({"device": "meta"}, ValueError, "device is 'meta'; expected cpu, cuda or cuda:<number>"),
        ({"device": 1.5}, ValueError, "device is 1.5; expected cpu, cuda or cuda:<number>"),
        ({"device": "cuda:99"}, ValueError, "device is 'cuda:99', but torch sees . GPUs"),
        ({"mask_mod": None}, TypeError, "mask_mod is None; expected a function of"),
        ({"mask_mod": lambda b, h, q, k: q if q > k else k}, TracingError, "cannot branch"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, Any], error: Any, words: str) -> None:
    arguments = {"mask_mod": MASKS["causal"], "B": 1, "H": 1, "Q_LEN": 128, "KV_LEN": 128}
    with pytest.raises(error, match=words):
        create_block_mask(**(arguments | {"device": "cpu"} | changed))
