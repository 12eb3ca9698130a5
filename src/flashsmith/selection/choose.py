"""Which configuration ``attention`` takes when the caller names none, and why."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    AttentionKernelConfig,
    DType,
    ForwardKernelConfig,
    KernelConfig,
    Variant,
    Workload,
)
from flashsmith.configs.base import Capability
from flashsmith.configs.families import reads_pages_on, serving
from flashsmith.configs.few_queries import rather_decode
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.fp8_space import fp8_rule
from flashsmith.configs.workload import TuningKey
from flashsmith.errors import DeviceError, TuningError
from flashsmith.gpus import count_multiprocessors, get_gpu_architecture
from flashsmith.problem import Problem
from flashsmith.selection.choice import Choice, FewQueriesChoice, Source
from flashsmith.selection.decode_tables import find_decode_table, tuned_decode_of
from flashsmith.selection.entries import Entry
from flashsmith.selection.tables import (
    Table,
    refuse_other_places,
    shipped_table_path,
    user_table_path,
)

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}
_PROBLEMS_REMEMBERED = 4096


def select_config(
    q: torch.Tensor,
    causal: bool = False,
    device: torch.device | None = None,
    *,
    k: torch.Tensor | None = None,
) -> AttentionKernelConfig:
    """The configuration for q and k: from the tuned tables of its GPU, else by rule.

    In this order: the user's table (`flashsmith tune`), the table shipped with the package; then
    their entries for grids that fill the GPU otherwise, the most alike first; then all of this for
    the other 16-bit dtype, whose tiles serve as well; then the rule of the newest family that
    serves. Kernels of the sm90 family come into question on compute capability 9.0 alone. CPU
    tensors: the rule of the plainest family that serves. Where there are few queries for many keys,
    and the forward's tiles would leave multiprocessors idle: decode's (`configs/few_queries.py`).
    Nothing is ever measured here.
    `flashsmith tune --explain` shows the choice.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16.
        causal: Whether the kernel masks what lies ahead.
        device: Where the kernel will run; None: where q is.
        k: (batch, seq_len_k, n_heads_kv, d_head); None: as q.

    Raises:
        TypeError: The dtype is another one.
        ValueError: q or k has not 4 dimensions, they do not fit each other, or no family takes the
            d_head there.
    """
    return _select(device or q.device, q.dtype, q.shape, q.shape if k is None else k.shape, causal)


def choose(
    workload: Workload,
    gpu: str | None,
    capability: Capability | None = None,
    *,
    is_cache: bool | None = None,
) -> Choice | FewQueriesChoice:
    """What ``select_config`` takes on the GPU of this name (None: on a CPU), and why.

    capability: The GPU's; None: going by its name.
    is_cache: Whether decode counts keys and diagonals as the call does; None: if no sequences have
        lengths of their own.

    Raises: as ``choose_forward``.
    """
    forward = choose_forward(workload, gpu, capability)
    if not (not workload.variant.ragged if is_cache is None else is_cache):
        return forward
    multiprocessors = None
    if gpu is not None:
        multiprocessors = count_multiprocessors(gpu)
        capability = capability or get_gpu_architecture(gpu).compute_capability
    found = rather_decode(
        workload, forward.config, multiprocessors, capability, tuned_decode_of(gpu)
    )
    return forward if found is None else FewQueriesChoice(found[0], forward, found[1])


def choose_forward(
    workload: Workload, gpu: str | None, capability: Capability | None = None
) -> Choice:
    """The forward's configuration that is chosen on the GPU of this name, and why.

    capability: The GPU's; None: going by its name.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No family takes the problem there; without ``capability``: no GPU of this name
            is known.
    """
    served = serving(workload, gpu, capability)
    if gpu is None:
        why = "no GPU: on a CPU the emulator runs, and there is no table"
        return Choice(served.rule_config, (why,))
    sources, refused = find_tables(gpu)
    passed_over = list(refused)
    multiprocessors = count_multiprocessors(gpu)
    key = workload.tuning_key(multiprocessors)
    for source, entry in _entries_for(sources, key, passed_over):
        why_not = "none is in the portfolio"
        for row in entry.choices:
            config = row.config.for_dtype(workload.problem.dtype)
            config = config.with_room_for(workload.variant)
            why_not = served.why_not(config)
            if why_not:
                continue
            if source.table.key_of(entry.workload).bucket != key.bucket and (
                why_rather := served.why_rather_the_rule(config, multiprocessors)
            ):
                passed_over.append(f"{source.title} {source.path}: {why_rather}")
                return Choice(served.rule_config, tuple(passed_over))
            return Choice(config, tuple(passed_over), source, entry, row)
        passed_over.append(f"{source.title} {source.path}: none of its kernels serves: {why_not}")
    return Choice(served.rule_config, tuple(passed_over))


@functools.cache
def find_tables(gpu: str) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """The tables for a GPU, best first, and what was refused or is not there.

    A table that is damaged, from elsewhere or of other kernels is also warned of. Read once a
    process: ``forget_tables`` has them read again.
    """
    sources, refused = [], []
    places = {"shipped table": shipped_table_path(gpu)}
    try:
        places = {"your table": user_table_path(gpu)} | places
    except TuningError as error:
        refused.append(f"your table: {error}")
    for title, path in places.items():
        if not path.exists():
            refused.append(f"{title}: there is none ({path})")
            continue
        try:
            table = Table.read(path)
            refuse_other_places(path, table.stamp, table.requirements(gpu))
            sources.append(Source(title, path, table))
        except TuningError as error:
            refused.append(f"{title}: {error}")
            remedy = "`flashsmith tune --force` replaces it"
            if title != "your table":
                remedy = "`flashsmith tune` makes one of your own"
            warnings.warn(f"{error}; {remedy}", stacklevel=2)
    return tuple(sources), tuple(refused)


def forget_tables() -> None:
    """Has the tables read again at the next choice."""
    find_tables.cache_clear()
    find_decode_table.cache_clear()
    select_for.cache_clear()
    _select.cache_clear()
    forget_calls()


def forget_calls() -> None:
    """Has what came of choices thought over at the next call."""
    for clear in _dependent:
        clear()


_dependent: list[Callable[[], None]] = []


def forget_with_tables(clear: Callable[[], None]) -> None:
    """Has ``clear``, which drops what came of choices, called when the tables are forgotten."""
    _dependent.append(clear)


def _entries_for(
    sources: tuple[Source, ...], key: TuningKey, passed_over: list[str]
) -> Iterator[tuple[Source, Entry]]:
    """The entries that may serve, best first; what is missing goes to ``passed_over``."""
    for dtype in (key.dtype, *(other for other in DType if other != key.dtype)):
        keys = [key._replace(dtype=dtype, bucket=bucket) for bucket in key.bucket.likewise()]
        for wanted in keys:
            for source in sources:
                entry = source.table.entries.get(wanted)
                if entry is not None:
                    yield source, entry
                elif wanted is keys[0] and not source.table.entries.keys() & set(keys):
                    lengths = f"{dtype} d {key.d_head} {key.variant}, {key.bucket.lengths}"
                    passed_over.append(f"{source.title} {source.path}: no entry for {lengths}")


@functools.lru_cache(_PROBLEMS_REMEMBERED)
def _select(
    device: torch.device,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    causal: bool,
) -> AttentionKernelConfig:
    problem = Problem.of_shapes(dtype_of(dtype, device), q_shape, k_shape)
    return select_for(Workload(problem, CAUSAL if causal else FULL), device)


def dtype_of(dtype: torch.dtype, device: torch.device) -> DType:
    """Returns the DType that configurations have for q's. Raises TypeError for one they lack."""
    if dtype not in _DTYPES:
        raise TypeError(
            f"q has dtype {dtype}; supported are torch.float16 and torch.bfloat16"
            f"{advice_under_autocast(dtype, device)}"
        )
    return _DTYPES[dtype]


def advice_under_autocast(dtype: torch.dtype, device: torch.device) -> str:
    """Returns the end of a message about a float32 tensor that came while autocast is on: autocast
    does not cast the arguments of flashsmith's own functions."""
    if dtype != torch.float32 or not torch.is_autocast_enabled(device.type):
        return ""
    wanted = torch.get_autocast_dtype(device.type)
    return (
        f"; autocast is on, but it does not cast the arguments of this function: pass q, k and v "
        f"as {wanted}, or call flashsmith.scaled_dot_product_attention, which casts as torch's does"
    )


@functools.lru_cache(_PROBLEMS_REMEMBERED)
def select_for(
    workload: Workload, device: torch.device, is_cache: bool | None = None
) -> AttentionKernelConfig:
    """The configuration for a workload on a device. Args, raises: as ``choose``."""
    chosen = choose(workload, *gpu_of(device), is_cache=is_cache)
    variant = workload.variant
    if isinstance(chosen, FewQueriesChoice):
        variant = replace(variant, ragged=False)  # as its kernels have it
    remember_reason(chosen.config, variant, device, chosen.reason)
    return chosen.config


def select_fp8(
    q: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None, variant: Variant
) -> ForwardKernelConfig:
    """The configuration for q and k of float8_e4m3fn, by rule.

    Of O's dtype, which is v's; with v of 8 bits ``out``'s, or bfloat16.

    Raises:
        DeviceError: The GPU is none of compute capability 9.0.
        TypeError: v or out has another dtype.
        ValueError: No kernel has room for the rows.
    """
    gpu, capability = gpu_of(q.device)
    if capability is not None and not Sm90ForwardKernelConfig.runs_on(capability):
        version = ".".join(map(str, capability))
        raise DeviceError(
            f"q has dtype {q.dtype}, for which there are kernels for compute capability 9.0 alone; "
            f"{gpu} has {version}"
        )
    fp8_values = v.dtype == q.dtype
    name, of = (
        ("out", torch.bfloat16 if out is None else out.dtype) if fp8_values else ("v", v.dtype)
    )
    if of not in _DTYPES:
        beside = "" if name == "out" else f", or {q.dtype} as q has"
        raise TypeError(
            f"{name} has dtype {of}; supported are torch.float16 and torch.bfloat16{beside}"
        )
    problem = Problem.of_shapes(_DTYPES[of], q.shape, q.shape, v.shape[-1])
    multiprocessors = None if gpu is None else count_multiprocessors(gpu)
    config = fp8_rule(problem, fp8_values, variant, multiprocessors)
    reason = "the rule: tiles of the sm90 family for each d_head and kind of v"
    remember_reason(config, variant, q.device, reason)
    return config


@functools.cache
def reads_pages(device: torch.device) -> bool:
    """Whether kernels of the forward take keys in pages on a device. Raises DeviceError: The GPU is
    too old for every family."""
    return reads_pages_on(*gpu_of(device))


def gpu_of(device: torch.device) -> tuple[str | None, Capability | None]:
    """The name and compute capability of a device; None of a CPU."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


_reasons: dict[tuple[KernelConfig, Variant, torch.device], str] = {}


def remember_reason(
    config: KernelConfig, variant: Variant, device: torch.device, reason: str
) -> None:
    """For ``why_chosen``."""
    _reasons[config, replace(variant, padded=False), device] = reason


def why_chosen(config: KernelConfig, variant: Variant, device: torch.device) -> str | None:
    """Why ``select_for`` took a configuration, the last time; None if it did not."""
    return _reasons.get((config, replace(variant, padded=False), device))
