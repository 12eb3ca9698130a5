"""Which configuration ``attention`` takes when the caller names none, and why."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from flashsmith.configs import DType, ForwardKernelConfig, ForwardVariant
from flashsmith.configs.families import (
    Capability,
    families_for,
    family_of,
    rule_config,
    serves,
)
from flashsmith.errors import DeviceError, TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.selection.tables import (
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

    config: ForwardKernelConfig
    passed_over: tuple[str, ...]  # what would have come first, and why it did not serve
    source: Source | None = None  # None: the rule
    entry: Entry | None = None
    measured: Measured | None = None  # the entry's row; of the entry's dtype

    @property
    def reason(self) -> str:
        """In one line, where the configuration comes from."""
        if self.source is None or self.entry is None:
            return f"the rule: {family_of(self.config).rule_in_words}"
        key = f"{self.entry.dtype} d {self.entry.d_head} {self.entry.mask}"
        bucket = length_bucket(self.entry.seq_len)
        return f"{self.source.title} {self.source.path}, {key}, lengths of bucket {bucket}"


def select_config(
    q: torch.Tensor,
    causal: bool = False,
    device: torch.device | None = None,
    *,
    k: torch.Tensor | None = None,
    return_lse: bool = False,
) -> ForwardKernelConfig:
    """The configuration for q and k: from the tuned tables of its GPU, else by rule.

    In this order: the user's table (`flashsmith tune`), the table shipped with the package; then
    both again for the other 16-bit dtype, whose tiles serve as well; then ``rule_config``. On
    compute capability 9.0 kernels of the sm90 family come into question, which take every length;
    those of the sm80 family where their blocks divide it, k is shaped as q, and no log-sum-exp is
    wanted. CPU tensors: the rule of the sm80 family where it takes them, else of the sm90 family.
    Nothing is ever measured here. `flashsmith tune --explain` shows the choice.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16.
        causal: Whether the kernel masks what lies ahead.
        device: Where the kernel will run; None: where q is.
        k: (batch, seq_len_k, n_heads_kv, d_head); None: as q.
        return_lse: Whether the kernel has to give the log-sum-exp.

    Raises:
        TypeError: The dtype is another one.
        ValueError: q or k has not 4 dimensions, or no family takes the d_head or the lengths there.
    """
    for name, tensor in (("q", q), ("k", q if k is None else k)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has {tensor.ndim} dimensions; expected 4: "
                "(batch, seq_len, n_heads, d_head)"
            )
    seq_len_k = q.shape[1] if k is None else k.shape[1]
    plain = not return_lse and (k is None or k.shape == q.shape)
    return _select(device or q.device, q.dtype, q.shape[3], seq_len_k, causal, plain)


def choose(
    dtype: DType,
    d_head: int,
    seq_len: int,
    causal: bool,
    gpu: str | None,
    *,
    capability: Capability | None = None,
    plain: bool = True,
) -> Choice:
    """What ``select_config`` takes on the GPU of this name (None: on a CPU), and why.

    Args:
        seq_len: Of k.
        capability: The GPU's; None: going by its name.
        plain: Whether q is shaped as k, and no log-sum-exp is wanted.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No family takes the shape there; without ``capability``: no GPU of this name is
            known.
    """
    if gpu is None:
        by_rule = rule_config(families_for(None), dtype, d_head, seq_len, plain=plain)
        return Choice(by_rule, ("no GPU: on a CPU the emulator runs, and there is no table",))
    families = families_for(gpu, capability)
    if not families:
        version = ".".join(map(str, capability or get_gpu_architecture(gpu).compute_capability))
        raise DeviceError(f"{gpu} has compute capability {version}; the kernels need 8.0 or newer")
    if not plain and all(family.plain_only for family in families):
        raise ValueError(
            f"{gpu} is not of compute capability 9.0, and only kernels for that take k of another "
            "shape than q or give the log-sum-exp"
        )
    sources, refused = find_tables(gpu)
    passed_over = list(refused)
    key = (dtype, d_head, ForwardVariant(bool(causal)).name, length_bucket(seq_len))
    for source, entry in entries_for(sources, key, passed_over):
        for row in entry.ranked:
            if serves(row.config, families, seq_len, plain=plain):
                config = row.config.for_dtype(dtype)
                return Choice(config, tuple(passed_over), source, entry, row)
        passed_over.append(f"{source.title} {source.path}: no blocks in it divide {seq_len}")
    by_rule = rule_config(families, dtype, d_head, seq_len, plain=plain)
    return Choice(by_rule, tuple(passed_over))


@functools.cache
def find_tables(gpu: str) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """The tables for a GPU, best first, and what was refused or is not there.

    A table that is damaged, from elsewhere or of other kernels is also warned of. Read once a
    process: ``forget_tables`` has them read again.
    """
    sources, refused = [], []
    places = (("your table", user_table_path(gpu)), ("shipped table", shipped_table_path(gpu)))
    for title, path in places:
        if not path.exists():
            refused.append(f"{title}: there is none ({path})")
            continue
        try:
            table = Table.read(path)
            if differing := mismatches(table.stamp, table.requirements(gpu)):
                raise TuningError(f"the tuned table {path} is not for here: {'; '.join(differing)}")
            sources.append(Source(title, path, table))
        except TuningError as error:
            refused.append(f"{title}: {error}")
            remedy = "`flashsmith tune --fresh` replaces it"
            if path != user_table_path(gpu):
                remedy = "`flashsmith tune` makes one of your own"
            warnings.warn(f"{error}; {remedy}", stacklevel=2)
    return tuple(sources), tuple(refused)


def forget_tables() -> None:
    """Has the tables read again at the next choice."""
    find_tables.cache_clear()
    _select.cache_clear()


def entries_for(
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
    device: torch.device,
    dtype: torch.dtype,
    d_head: int,
    seq_len: int,
    causal: bool,
    plain: bool,
) -> ForwardKernelConfig:
    if dtype not in _DTYPES:
        raise TypeError(f"q has dtype {dtype}; supported are torch.float16 and torch.bfloat16")
    gpu, capability = None, None
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
    shape = (_DTYPES[dtype], d_head, seq_len, causal)
    chosen = choose(*shape, gpu, capability=capability, plain=plain)
    _reasons[chosen.config, causal, device] = chosen.reason
    return chosen.config


_reasons: dict[tuple[ForwardKernelConfig, bool, torch.device], str] = {}


def why_chosen(config: ForwardKernelConfig, causal: bool, device: torch.device) -> str | None:
    """Why ``select_config`` took a configuration, the last time; None if it did not."""
    return _reasons.get((config, causal, device))
