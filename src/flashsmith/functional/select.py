"""Which configuration ``attention`` takes when the caller names none, and why."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import flashsmith
from flashsmith.configs import DType, FlashForwardKernelConfig, ForwardVariant
from flashsmith.errors import TuningError
from flashsmith.functional.tables import (
    Entry,
    Key,
    Measured,
    Table,
    length_bucket,
    mismatches,
    shipped_table_path,
    user_table_path,
)

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}
_LENGTHS_REMEMBERED = 4096


@dataclass(frozen=True)
class Source:
    """A table that may be used for a GPU."""

    title: str  # "your table" or "shipped table"
    path: Path
    table: Table


@dataclass(frozen=True)
class Choice:
    """A configuration, and where it comes from: a table's entry, or the rule."""

    config: FlashForwardKernelConfig
    passed_over: tuple[str, ...]  # what would have come first, and why it did not serve
    source: Source | None = None  # None: the rule
    entry: Entry | None = None
    measured: Measured | None = None  # the entry's row; of the entry's dtype


def select_config(
    q: torch.Tensor, causal: bool = False, device: torch.device | None = None
) -> FlashForwardKernelConfig:
    """The configuration for q: from the tuned tables of its GPU, else by rule.

    In this order: the user's table (`flashsmith tune`), the table shipped with the package; then
    both again for the other 16-bit dtype, whose tiles serve as well; then ``rule_config``. A
    configuration whose blocks do not divide the length is passed over. CPU tensors: the rule.
    Nothing is ever measured here. `flashsmith tune --explain` shows the choice.

    Args:
        q: (batch, seq_len, n_heads, d_head), float16 or bfloat16.
        causal: Whether the kernel masks what lies ahead.
        device: Where the kernel will run; None: where q is.

    Raises:
        TypeError: The dtype is another one.
        ValueError: q has not 4 dimensions, d_head is not 64 or 128, or seq_len is not a multiple
            of 64.
    """
    if q.ndim != 4:
        raise ValueError(
            f"q has {q.ndim} dimensions; expected 4: (batch, seq_len, n_heads, d_head)"
        )
    _, seq_len, _, d_head = q.shape
    return _select(device or q.device, q.dtype, d_head, seq_len, causal)


def choose(dtype: DType, d_head: int, seq_len: int, causal: bool, gpu: str | None) -> Choice:
    """What ``select_config`` takes on the GPU of this name (None: on a CPU), and why."""
    by_rule = rule_config(dtype, d_head, seq_len)
    if gpu is None:
        return Choice(by_rule, ("no GPU: on a CPU the emulator runs, and there is no table",))
    sources, refused = find_tables(gpu)
    passed_over = list(refused)
    key = (dtype, d_head, ForwardVariant(bool(causal)).name, length_bucket(seq_len))
    for source, entry in _entries(sources, key, passed_over):
        for row in entry.ranked:
            if fits(row.config, seq_len):
                config = replace(row.config, dtype=dtype)
                return Choice(config, tuple(passed_over), source, entry, row)
        passed_over.append(f"{source.title} {source.path}: no blocks in it divide {seq_len}")
    return Choice(by_rule, tuple(passed_over))


def rule_config(dtype: DType, d_head: int, seq_len: int) -> FlashForwardKernelConfig:
    """The rule: B_r 128 where the sequence length allows it, else 64; B_c 64; all knobs on.

    A block of 128 rows reads K and V half as often as two of 64, and a warp with 32 rows uses every
    fragment of K and V twice. Measured on the H200, docs/kernels/sm80-forward.md.

    Raises:
        ValueError: d_head is not 64 or 128, or seq_len is not a multiple of 64.
    """
    if d_head not in (64, 128):
        raise ValueError(f"q has d_head {d_head}; supported are 64 and 128")
    if seq_len % 64 != 0:
        raise ValueError(f"q has sequence length {seq_len}; it must be a multiple of 64: pad it")
    large = seq_len % 128 == 0
    tiles = 2 if large else 0
    return FlashForwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=128 if large else 64,
        B_c=64,
        n_warps=4,
        async_copy=True,
        eager_load_blocks=True,
        swizzled=True,
        Q_mma_load_K_tiles=tiles,
        K_mma_load_K_tiles=tiles,
        V_mma_load_K_tiles=tiles,
        mma_double_buffer_loads=True,
        optimized_softmax=True,
    )


def fits(config: FlashForwardKernelConfig, seq_len: int) -> bool:
    """Whether its blocks divide the length."""
    return seq_len % config.B_r == 0 and seq_len % config.B_c == 0


@functools.cache
def find_tables(gpu: str) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """The tables for a GPU, best first, and what was refused or is not there.

    A user's table that is damaged or from elsewhere is also warned of. Read once a process:
    ``forget_tables`` has them read again.
    """
    sources, refused = [], []
    places = (
        ("your table", user_table_path(gpu), {"gpu": gpu, "flashsmith": flashsmith.__version__}),
        ("shipped table", shipped_table_path(gpu), {"gpu": gpu}),
    )
    for title, path, here in places:
        if not path.exists():
            refused.append(f"{title}: there is none ({path})")
            continue
        try:
            table = Table.read(path)
            if differing := mismatches(table.stamp, here):
                raise TuningError(f"the tuned table {path} is not for here: {'; '.join(differing)}")
            sources.append(Source(title, path, table))
        except TuningError as error:
            refused.append(f"{title}: {error}")
            warnings.warn(f"{error}; `flashsmith tune --fresh` replaces it", stacklevel=2)
    return tuple(sources), tuple(refused)


def forget_tables() -> None:
    """Has the tables read again at the next choice."""
    find_tables.cache_clear()
    _select.cache_clear()


def _entries(
    sources: tuple[Source, ...], key: Key, passed_over: list[str]
) -> Iterator[tuple[Source, Entry]]:
    """The entries that may serve ``key``, best first; what is missing goes to ``passed_over``."""
    dtype, d_head, mask, bucket = key
    for wanted in (dtype, *(other for other in DType if other != dtype)):
        for source in sources:
            entry = source.table.entries.get((wanted, d_head, mask, bucket))
            if entry is not None:
                yield source, entry
                continue
            passed_over.append(
                f"{source.title} {source.path}: no entry for {wanted}, d_head {d_head}, {mask}, "
                f"lengths of bucket {bucket}"
            )


@functools.lru_cache(_LENGTHS_REMEMBERED)
def _select(
    device: torch.device, dtype: torch.dtype, d_head: int, seq_len: int, causal: bool
) -> FlashForwardKernelConfig:
    if dtype not in _DTYPES:
        raise TypeError(f"q has dtype {dtype}; supported are torch.float16 and torch.bfloat16")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return choose(_DTYPES[dtype], d_head, seq_len, causal, gpu).config
