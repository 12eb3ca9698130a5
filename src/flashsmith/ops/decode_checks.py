"""Checks of a ``decode``'s tensors before its kernel is found, which may have to be built, and
before new keys are written. The library checks the same and more at every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flashsmith.ops.checks import FP8, check_rank, check_tensors
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.ops.lengths import is_of_tokens

_MAX_ROWS = 2**30  # of a request
_MAX_SPLITS = 1024
_CHUNK_BYTES = 16  # strides of rows are multiples of this
_CACHE_DIMS = ("entries", "rows", "n_heads_kv")
_DIMS = {  # dimensions of row tensors; dimensions of one name have equal sizes
    "q": ("batch size", "seq_len_q", "n_heads", "d_head"),
    "k_cache": (*_CACHE_DIMS, "d_head"),
    "v_cache": (*_CACHE_DIMS, "d_v"),
    "o": ("batch size", "seq_len_q", "n_heads", "d_v"),
    "k_new": ("batch size", "n_new", "n_heads_kv", "d_head"),
    "v_new": ("batch size", "n_new", "n_heads_kv", "d_v"),
}
_ROTARY_CHUNK = 8  # pairs

_Tensors = dict[str, torch.Tensor]


def check_decode(
    q: torch.Tensor,
    cache: KVCache,
    new: KVAppend | None,
    out: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Checks a call whose cache was ``checked``.

    Raises:
        TypeError: No kernel supports a dtype.
        ValueError: No kernel supports a shape, stride or device.
    """
    rows = {"q": q, "k_cache": cache.k, "v_cache": cache.v}
    rows |= {} if out is None else {"o": out}
    rows |= {} if new is None else {"k_new": new.k, "v_new": new.v}
    for name, t in rows.items():
        check_tensors(**{name: t})
        check_rank(name, t, None)
    rotary = {} if new is None else {"rotary_cos": new.rotary_cos, "rotary_sin": new.rotary_sin}
    weights = {"alibi_slopes": alibi_slopes, "sinks": sinks}
    scales = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    numbers = {
        "cache_seqlens": cache.seqlens, "block_table": cache.block_table,
        "cache_batch_idx": cache.batch_idx, "cache_leftpad": cache.leftpad,
    }  # fmt: skip
    others = {name: t for name, t in (rotary | weights | scales | numbers).items() if t is not None}
    check_tensors(**others)
    _check_devices(q, rows | others)
    _check_dtypes(rows, others)
    _check_sizes(rows)
    _check_heads_and_rows(q, cache)
    _check_places(q, cache)
    for name, t in rows.items():
        _check_strides(name, t)
    for name in weights.keys() & others.keys():
        _check_weights(name, others[name], q)
    for name, of in (("k_scale", cache.k), ("v_scale", cache.v)):
        if name in others:
            _check_scale(name, others[name], of, q.shape[0])
    if rotary.keys() & others.keys():
        _check_rotary(others, cache)


def _check_devices(q: torch.Tensor, tensors: _Tensors) -> None:
    for name, t in tensors.items():
        if t.device != q.device:
            raise ValueError(
                f"{name} is on another device than q; all tensors need the same device: got "
                f"{t.device} and {q.device}"
            )


def _check_dtypes(rows: _Tensors, others: _Tensors) -> None:
    q = rows["q"]
    for name in ("alibi_slopes", "sinks"):
        if name in others and others[name].dtype != torch.float32:
            raise TypeError(f"{name} has dtype {_name(others[name])}; it must be float32")
    turned = {name: t for name, t in others.items() if name.startswith("rotary")}
    for name in ("k_cache", "v_cache"):
        if rows[name].dtype not in (torch.float16, torch.bfloat16, FP8):
            raise TypeError(
                f"{name} has dtype {_name(rows[name])}; supported are float16, bfloat16 and "
                "float8_e4m3fn"
            )
    for name, t in (rows | turned).items():
        of_cache = name.endswith("_cache") and t.dtype == FP8  # other errors of it are raised later
        if not of_cache and t.dtype != q.dtype and name not in ("o", "k_cache", "v_cache"):
            raise TypeError(f"{name} has dtype {_name(t)}, but q has {_name(q)}; it needs the same")


def _check_sizes(rows: _Tensors) -> None:
    """Raises unless dimensions of one name have equal sizes; of two tensors the first is assumed to
    be right."""
    before: list[str] = []
    for name, t in rows.items():
        for other in before:
            like = rows[other]
            shared = [i for i in range(4) if _DIMS[name][i] == _DIMS[other][i]]
            if any(t.shape[i] != like.shape[i] for i in shared):
                *names, last = (_DIMS[name][i] for i in shared)
                what = f"{', '.join(names)} and {last}" if names else last
                raise ValueError(
                    f"{name} has shape {tuple(t.shape)}, but {other} has {tuple(like.shape)}; "
                    f"they need the same {what}"
                )
        before.append(name)


def _check_heads_and_rows(q: torch.Tensor, cache: KVCache) -> None:
    n_heads, n_heads_kv = q.shape[2], cache.k.shape[2]
    if n_heads if n_heads_kv == 0 else n_heads % n_heads_kv:
        raise ValueError(
            f"q has {n_heads} heads and k_cache has {n_heads_kv}; the heads of q must be a "
            "multiple of those of k_cache"
        )
    if cache.rows >= _MAX_ROWS:
        raise ValueError(
            f"k_cache has shape {tuple(cache.k.shape)}; a request may have at most 2^30 rows"
        )
    if cache.k.dtype == FP8:
        for name, size in (("q has d_head", q.shape[3]), ("v_cache has d_v", cache.v.shape[3])):
            if size % _CHUNK_BYTES:
                raise ValueError(
                    f"{name} {size}; supported with a cache of float8_e4m3fn are multiples of "
                    f"{_CHUNK_BYTES} up to 256"
                )


def _check_places(q: torch.Tensor, cache: KVCache) -> None:
    table, idx, batch = cache.block_table, cache.batch_idx, q.shape[0]
    if table is not None and idx is not None:
        raise ValueError(
            "cache_batch_idx was passed with block_table, which says where a request's rows are; "
            "pass one of them"
        )
    if table is not None and table.shape[1] > 1 and table.stride(1) != 1:
        raise ValueError(
            f"block_table has shape {tuple(table.shape)} and strides {table.stride()}; it must "
            "have contiguous rows: call .contiguous()"
        )
    if table is idx is None and cache.k.shape[0] != batch:
        raise ValueError(
            f"k_cache has {cache.k.shape[0]} entries, but q has batch size {batch}; they need the "
            "same, or block_table or cache_batch_idx"
        )
    vectors = {"cache_seqlens": cache.seqlens, "cache_batch_idx": idx}
    for name, t in (vectors | {"cache_leftpad": cache.leftpad}).items():
        if t is not None and not t.is_contiguous():
            raise ValueError(f"{name} has stride {t.stride(0)}; it must be contiguous")


def _check_strides(name: str, t: torch.Tensor) -> None:
    if t.numel() == 0:
        return
    if t.shape[-1] > 1 and t.stride(-1) != 1:
        raise ValueError(
            f"{name} has stride {t.stride(-1)} in its last dimension; it must be contiguous there "
            "(stride 1): call .contiguous()"
        )
    if remainder := t.data_ptr() % _CHUNK_BYTES:
        raise ValueError(
            f"{name} starts at an address that is not a multiple of {_CHUNK_BYTES} bytes "
            f"(remainder {remainder}); call .clone()"
        )
    for i, what in enumerate(("batch", "sequence", "head")):
        if t.shape[i] > 1 and t.stride(i) * t.element_size() % _CHUNK_BYTES:
            raise ValueError(
                f"{name} has {what} stride {t.stride(i)} elements; strides of batch, sequence and "
                f"head must be multiples of {_CHUNK_BYTES // t.element_size()} elements (16 "
                "bytes): call .contiguous()"
            )


def _check_weights(name: str, t: torch.Tensor, q: torch.Tensor) -> None:
    batch, n_heads = q.shape[0], q.shape[2]
    expected: dict[str, tuple[int, ...]] = {"(n_heads)": (n_heads,)}
    if name == "alibi_slopes":
        expected["(batch, n_heads)"] = (batch, n_heads)
    _check_shape(name, t, expected)


def _check_scale(name: str, t: torch.Tensor, cache: torch.Tensor, batch: int) -> None:
    if cache.dtype != FP8:
        raise ValueError(f"{name} was passed, but the cache has 16 bits; pass None")
    if is_of_tokens(t):
        if t.shape != cache.shape[:3]:
            raise ValueError(
                f"{name} has shape {_shape(t)}; with a scale for each row it must be of shape "
                f"(entries, rows, n_heads_kv) = {tuple(cache.shape[:3])}"
            )
        return
    heads = cache.shape[2]
    expected = {"(1)": (1,), "(n_heads_kv)": (heads,), "(batch, n_heads_kv)": (batch, heads)}
    _check_shape(name, t, expected)


def _check_shape(name: str, t: torch.Tensor, expected: Mapping[str, tuple[int, ...]]) -> None:
    if tuple(t.shape) in expected.values() and t.is_contiguous():
        return
    words = " or ".join(f"{what} = {size}" for what, size in expected.items())
    raise ValueError(f"{name} has shape {_shape(t)}; it must be contiguous and of shape {words}")


def _check_rotary(others: _Tensors, cache: KVCache) -> None:
    given = [name for name in ("rotary_cos", "rotary_sin") if name in others]
    if len(given) == 1:
        other = "rotary_sin" if given == ["rotary_cos"] else "rotary_cos"
        raise ValueError(f"{given[0]} was passed without {other}; they go together")
    maximum, cos = cache.k.shape[-1] // 2, others["rotary_cos"]
    for name in given:
        t = others[name]
        if not all(_are_angles(t, cos, cache.rows, maximum)):
            raise ValueError(
                f"{name} has shape {_shape(t)}; it must be contiguous and of shape (rows, "
                f"rotary_dim / 2), an angle for each pair: at least {cache.rows} rows, and a "
                f"multiple of {_ROTARY_CHUNK} up to {maximum} columns, as many in rotary_cos as in "
                "rotary_sin"
            )


def _are_angles(t: torch.Tensor, cos: torch.Tensor, rows: int, maximum: int) -> Iterator[bool]:
    yield t.ndim == 2 and t.shape == cos.shape and t.is_contiguous()
    yield t.shape[0] >= max(rows, 1)
    yield 0 < t.shape[-1] <= maximum and t.shape[-1] % _ROTARY_CHUNK == 0


def _shape(t: torch.Tensor) -> str:
    """Returns the shape as the library's messages write it."""
    return f"({', '.join(map(str, t.shape))})"


def _name(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def check_rows(q: torch.Tensor, cache: KVCache) -> None:
    """Raises TypeError or ValueError unless q and the cache are tensors of rows."""
    given = {"q": q, "k_cache": cache.k, "v_cache": cache.v}
    check_tensors(**given)
    for name, t in given.items():
        check_rank(name, t, None)


def checked_splits(splits: Any) -> int:
    if type(splits) is not int or not 0 <= splits <= _MAX_SPLITS:
        raise ValueError(f"splits is {splits!r}; expected an int from 0 to {_MAX_SPLITS}")
    return splits
