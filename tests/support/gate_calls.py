"""Defines a call of each public function for each group of tensors that it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import flashsmith
from flashsmith import flash_attn
from flashsmith.mods.block_mask import BlockMask
from flashsmith.reference import reference_varlen

BF16 = torch.bfloat16
Tensors = dict[str, torch.Tensor]
N, N_K, D, HEADS = 16, 24, 64, 2
BATCH = 2


@dataclass(frozen=True)
class Operation:
    """A call and its tensors.

    make: Returns new tensors of a seed, by the names of the function's arguments.
    call: Calls the function on these, and returns its results in a tuple.
    written: Names of tensors that the function writes into.
    words: Other names that messages may use for an argument.
    traced: Whether it can become an operator of torch; calls with functions cannot.
    differentiates: Whether it calls autograd itself.
    """

    make: Callable[[int], Tensors]
    call: Callable[..., tuple[torch.Tensor, ...]]
    written: tuple[str, ...] = ()
    words: Mapping[str, str] | None = None
    traced: bool = True
    differentiates: bool = False

    def names(self, argument: str) -> str:
        """Returns a pattern that matches messages which name the argument."""
        words = (self.words or {}).get(argument, "o|out" if argument == "out" else argument)
        return rf"\b({words})\b"


def _seeded(make: Callable[[], Tensors]) -> Callable[[int], Tensors]:
    @functools.cache
    def drawn(seed: int) -> Tensors:
        with torch.random.fork_rng(), torch.inference_mode(False):
            torch.manual_seed(seed)
            return make()

    return lambda seed: {name: t.clone() for name, t in drawn(seed).items()}


def rows(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).to(BF16)


def drawn_ints(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.int32)


def offsets(total: int) -> torch.Tensor:
    middle = int(torch.randint(3, total - 3, ()))
    return torch.tensor([0, middle, total], dtype=torch.int32)


def _qkv(q: str = "q", k: str = "k", v: str = "v") -> Tensors:
    return {q: rows(BATCH, N, HEADS, D), k: rows(BATCH, N_K, 1, D), v: rows(BATCH, N_K, 1, D)}


def _into(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=BF16)


@_seeded
def dense() -> Tensors:
    bias = rows(1, HEADS, N, N_K)
    return {**_qkv(), "sinks": torch.randn(HEADS), "bias": bias, "out": _into((BATCH, N, HEADS, D))}


def dense_of_flash(seed: int) -> Tensors:
    tensors = dense(seed)
    del tensors["bias"]
    return {**tensors, "alibi_slopes": tensors["sinks"].abs()}


@_seeded
def packed() -> Tensors:
    tensors = {"q": rows(N, HEADS, D), "k": rows(N_K, 1, D), "v": rows(N_K, 1, D)}
    tensors |= {"cu_seqlens_q": offsets(N), "cu_seqlens_k": offsets(N_K)}
    return {**tensors, "alibi_slopes": torch.rand(BATCH, HEADS), "out": _into((N, HEADS, D))}


@_seeded
def used() -> Tensors:
    lengths = {"seqused_q": drawn_ints(1, N, 2), "seqused_k": drawn_ints(1, N_K, 2)}
    return {**_qkv(), **lengths, "rng_state": torch.randint(1 << 40, (2,))}


@_seeded
def captures() -> Tensors:
    return {**_qkv(), "table": torch.randn(N_K), "ids": drawn_ints(0, 2, N_K)}


def functions_of(table: torch.Tensor, ids: torch.Tensor) -> dict[str, Any]:
    return {
        "score_mod": lambda s, b, h, q, kv: s + table[kv],
        "mask_mod": lambda b, h, q, kv: (ids[kv] == 0) | (kv == q),
    }


LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@_seeded
def blocks() -> Tensors:
    """Returns lists of three blocks of 8 keys: one is partial and one full for either block of
    queries."""
    counts = torch.ones(1, 1, 2, dtype=torch.int32)
    indices = torch.stack([torch.randperm(3, dtype=torch.int32) for _ in range(2)])[None, None]
    full = (indices + 1) % 3
    lists = zip(LISTS, (counts, indices, counts.clone(), full), strict=True)
    return {**_qkv(), **dict(lists)}


def attend_blocks(q: Any, k: Any, v: Any, **lists: Any) -> tuple[torch.Tensor, ...]:
    mask = BlockMask(
        **lists, block_size=(8, 8), seq_lengths=(N, N_K), mask_mod=lambda b, h, i, j: i <= j
    )
    return flashsmith.attention(q, k, v, block_mask=mask, return_lse=True)  # type: ignore[return-value]


@_seeded
def cache() -> Tensors:
    return {
        "q": rows(BATCH, 2, HEADS, D),
        "k_cache": rows(3, N_K, 1, D),
        "v_cache": rows(3, N_K, 1, D),
        "cache_seqlens": drawn_ints(9, N_K, BATCH),
        "cache_batch_idx": torch.randperm(3, dtype=torch.int32)[:BATCH].contiguous(),
        "cache_leftpad": drawn_ints(0, 6, BATCH),
        "alibi_slopes": torch.rand(BATCH, HEADS),
        "sinks": torch.randn(HEADS),
        "out": _into((BATCH, 2, HEADS, D)),
    }


def _paged(k: str, v: str) -> Tensors:
    angles = torch.rand(2 * 16, 8)
    return {
        "q": rows(BATCH, 2, HEADS, D),
        "k_cache": rows(5, 16, 1, D),
        "v_cache": rows(5, 16, 1, D),
        "cache_seqlens": drawn_ints(9, 29, BATCH),
        "block_table": torch.randperm(5, dtype=torch.int32)[:4].view(2, 2).contiguous(),
        k: rows(BATCH, 2, 1, D),
        v: rows(BATCH, 2, 1, D),
        "rotary_cos": angles.cos().to(BF16),
        "rotary_sin": angles.sin().to(BF16),
    }


@_seeded
def cache_of_bytes() -> Tensors:
    return {
        "q": rows(BATCH, 2, HEADS, D),
        "k_cache": rows(BATCH, N_K, 1, D).to(torch.float8_e4m3fn),
        "v_cache": rows(BATCH, N_K, 1, D).to(torch.float8_e4m3fn),
        "k_scale": torch.rand(1) + 0.5,
        "v_scale": torch.rand(1) + 0.5,
    }


@_seeded
def gradients() -> Tensors:
    given = {**_qkv(), "sinks": torch.randn(HEADS), "bias": rows(1, HEADS, N, N_K)}
    o, lse = reference_varlen(**given)  # type: ignore[arg-type]
    given |= {"do": rows(BATCH, N, HEADS, D), "o": o.to(BF16), "lse": lse.float()}
    return {**given, "dlse": torch.randn(BATCH, HEADS, N)}


def differentiate(**given: Any) -> tuple[torch.Tensor, ...]:
    found = flashsmith.backward(None, given.pop("do"), **given)
    return tuple(t for t in found if t is not None)  # type: ignore[misc]


@_seeded
def by_heads() -> Tensors:
    """Returns tensors in torch's layout: heads before rows."""
    own = {
        name: t.transpose(1, 2).contiguous() for name, t in _qkv("query", "key", "value").items()
    }
    return {**own, "attn_mask": rows(1, 1, N, N_K)}


@_seeded
def by_heads_bool() -> Tensors:
    own = {
        name: t.transpose(1, 2).contiguous() for name, t in _qkv("query", "key", "value").items()
    }
    return {**own, "attn_mask": torch.rand(1, 1, N, N_K) < 0.7}


@_seeded
def by_heads_captures() -> Tensors:
    own = {
        name: t.transpose(1, 2).contiguous() for name, t in _qkv("query", "key", "value").items()
    }
    return {**own, "table": torch.randn(N_K)}


def _alone(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _differentiable(q: Any, k: Any, v: Any, **given: Any) -> tuple[torch.Tensor, ...]:
    """Returns o and the gradient by q, which is made a leaf here."""
    leaf = q.detach().requires_grad_()
    o, lse = flashsmith.attention(leaf, k, v, return_lse=True, **given)
    (gradient,) = torch.autograd.grad([o, lse], leaf, [torch.ones_like(o), torch.ones_like(lse)])
    return o.detach(), gradient


FORWARD = flashsmith.configs.parse_kernel_name_into_config(
    "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+opt_softmax"
)


_CAPTURED = "captured|captures|table|ids|score_mod|mask_mod"
_TORCHS = {"query": "query|q", "key": "key|k", "value": "value|v", "attn_mask": "attn_mask|bias"}
_BLOCKS = {name: f"{name}|block_mask|captured" for name in LISTS}
_FUNCTIONS = {"table": _CAPTURED, "ids": _CAPTURED}
_FLASH = {"k": "k|k_new", "v": "v|v_new"}

OPERATIONS: dict[str, Operation] = {
    "attention": Operation(
        dense, lambda **t: flashsmith.attention(**t, causal=True, return_lse=True), ("out",)
    ),
    "attention, packed": Operation(
        packed,
        lambda **t: flashsmith.attention(
            **t, max_seqlen_q=N, max_seqlen_k=N_K, softcap=3.0, return_lse=True
        ),
        ("out",),
    ),
    "attention, used": Operation(
        used, lambda **t: flashsmith.attention(**t, dropout_p=0.25, return_lse=True)
    ),
    "attention, functions": Operation(
        captures,
        lambda q, k, v, table, ids: flashsmith.attention(
            q, k, v, return_lse=True, **functions_of(table, ids)
        ),
        words=_FUNCTIONS, traced=False,
    ),
    "attention, blocks": Operation(blocks, attend_blocks, words=_BLOCKS, traced=False),
    "attention, gradients": Operation(
        lambda seed: {n: t for n, t in dense(seed).items() if n != "out"},
        _differentiable,
        differentiates=True,
    ),
    "attention, gradients of functions": Operation(
        captures,
        lambda q, k, v, table, ids: _differentiable(q, k, v, **functions_of(table, ids)),
        differentiates=True,
        words=_FUNCTIONS, traced=False,
    ),
    "decode": Operation(
        cache, lambda **t: flashsmith.decode(None, **t, causal=True, return_lse=True), ("out",)
    ),
    "decode, pages": Operation(
        _seeded(lambda: _paged("k_new", "v_new")),
        lambda **t: _alone(flashsmith.decode(None, **t, causal=True)),
        ("k_cache", "v_cache"),
    ),
    "decode, bytes": Operation(cache_of_bytes, lambda **t: _alone(flashsmith.decode(None, **t))),
    "decode, functions": Operation(
        captures,
        lambda q, k, v, table, ids: _alone(
            flashsmith.decode(None, q, k, v, **functions_of(table, ids))
        ),
        words={**_FUNCTIONS, "k": "k_cache", "v": "v_cache"}, traced=False,
    ),
    "forward": Operation(
        lambda seed: {("o" if n == "out" else n): t for n, t in dense(seed).items()},
        lambda **t: flashsmith.forward(FORWARD, **t, return_lse=True), ("o",), traced=False,
    ),
    "backward": Operation(gradients, differentiate, traced=False),
    "scaled_dot_product_attention": Operation(
        by_heads,
        lambda **t: _alone(flashsmith.scaled_dot_product_attention(**t, enable_gqa=True)),
        words=_TORCHS,
    ),
    "scaled_dot_product_attention, bool": Operation(
        by_heads_bool,
        lambda **t: _alone(flashsmith.scaled_dot_product_attention(**t, enable_gqa=True)),
        words=_TORCHS,
    ),
    "flex_attention": Operation(
        by_heads_captures,
        lambda query, key, value, table: flashsmith.flex_attention(
            query, key, value, score_mod=lambda s, b, h, q, kv: s + table[kv],
            enable_gqa=True, return_lse=True,
        ),
        words={**_TORCHS, **_FUNCTIONS}, traced=False,
    ),
    "flash_attn_func": Operation(
        dense_of_flash,
        lambda **t: _alone(flash_attn.flash_attn_func(**t, causal=True)),
        ("out",),
    ),
    "flash_attn_varlen_func": Operation(
        packed,
        lambda **t: _alone(
            flash_attn.flash_attn_varlen_func(**t, max_seqlen_q=N, max_seqlen_k=N_K)
        ),
        ("out",),
    ),
    "flash_attn_with_kvcache": Operation(
        _seeded(lambda: _paged("k", "v")),
        lambda **t: _alone(flash_attn.flash_attn_with_kvcache(**t, causal=True)),
        ("k_cache", "v_cache"), words=_FLASH,
    ),
}  # fmt: skip
