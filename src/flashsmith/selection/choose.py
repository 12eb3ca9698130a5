"""Chooses the configuration of ``attention`` for a workload when the caller names none.

This module loads no torch, so tables and the reasons for a choice can be read without it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from flashsmith.configs import DType, ForwardKernelConfig, Workload
from flashsmith.configs.base import Capability
from flashsmith.configs.family import C, W
from flashsmith.configs.few_queries import ChooseDecode, prefer_split_kv
from flashsmith.configs.operation import Operation, capability_of
from flashsmith.configs.registry import DECODE, FORWARD, family_of
from flashsmith.configs.workload import TuningKey
from flashsmith.errors import TuningError
from flashsmith.gpus import count_sms
from flashsmith.importing import no_collections
from flashsmith.selection.carried_over import best_first
from flashsmith.selection.choice import Choice, FewQueriesChoice, Source
from flashsmith.selection.entries import Entry
from flashsmith.selection.tables import read_for, shipped_table_path, user_table_path


def choose(
    workload: Workload,
    gpu: str | None,
    capability: Capability | None = None,
    *,
    is_cache: bool | None = None,
) -> Choice[Workload, ForwardKernelConfig] | FewQueriesChoice:
    """Returns the choice of ``select_config`` on the GPU of this name (None: on a CPU). Problems
    with the same representative get the same choice, so that it can be remembered.

    capability: The GPU's compute capability; None: derived from its name.
    is_cache: Whether decode counts keys and diagonals as the call does; None: it does unless the
        call is varlen.

    Raises: See ``choose_for``.
    """
    workload = workload.representative
    forward = choose_for(FORWARD, workload, gpu, capability)
    if not (not workload.variant.varlen if is_cache is None else is_cache):
        return forward
    num_sms = None
    if gpu is not None:
        num_sms = count_sms(gpu)
        capability = capability_of(gpu, capability)
    found = prefer_split_kv(workload, forward.config, num_sms, capability, tuned_decode_of(gpu))
    return forward if found is None else FewQueriesChoice(found[0], forward, found[1])


def tuned_decode_of(gpu: str | None) -> ChooseDecode:
    """Returns ``choose_for`` of decode on one GPU."""
    return lambda workload, capability: choose_for(DECODE, workload, gpu, capability).config


def choose_for(
    operation: Operation[W, C],
    workload: W,
    gpu: str | None,
    capability: Capability | None = None,
) -> Choice[W, C]:
    """Returns the choice on the GPU of this name (None: on a CPU): from the user's table, then the
    shipped one, then the heuristic.

    capability: The GPU's compute capability; None: derived from its name.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No family supports the problem on this GPU, or the GPU's name is unknown and
            ``capability`` is None.
    """
    workload = workload.representative
    served = operation.serving(workload, gpu, capability)
    if gpu is None:
        why = "no GPU: on a CPU the emulator runs, and there is no table"
        return Choice(served.heuristic_config, (why,))
    sources, refused = find_tables(operation, gpu)
    passed_over = list(refused)
    num_sms = count_sms(gpu)
    tuned = operation.as_tuned(workload, operation.families_for(gpu, capability))
    key = tuned.tuning_key(num_sms)
    for source, entry in _entries_for(sources, key, passed_over):
        why_not = "none is in the portfolio"
        portfolio = source.table.portfolio(entry)
        rows, predicted = best_first(entry, portfolio, workload, num_sms)
        for config, row in rows:
            adapted = config.for_dtype(workload.dtype).adapted_to(workload.variant)
            config = family_of(adapted).suited(adapted, workload)
            why_not = served.why_not(config)
            if why_not:
                continue
            if source.table.key_of(entry.workload).bucket != key.bucket and (
                why_not_measured := served.why_heuristic_is_better(config, num_sms)
            ):
                passed_over.append(f"{source.title} {source.path}: {why_not_measured}")
                return Choice(served.heuristic_config, tuple(passed_over))
            return Choice(config, tuple(passed_over), source, entry, row, predicted)
        passed_over.append(f"{source.title} {source.path}: none of its kernels serves: {why_not}")
    return Choice(served.heuristic_config, tuple(passed_over))


@functools.cache
@no_collections()
def find_tables(
    operation: Operation[W, C], gpu: str
) -> tuple[tuple[Source[W, C], ...], tuple[str, ...]]:
    """Returns the tables of an operation for a GPU, best first, and why others were not used.

    A table that is damaged, from another GPU or of other kernels also raises a warning. Each
    process reads the tables once, until ``forget_tables``.
    """
    sources, refused = [], []
    places = {"shipped table": shipped_table_path(gpu, operation)}
    try:
        places = {"your table": user_table_path(gpu, operation)} | places
    except TuningError as error:
        refused.append(f"your table: {error}")
    for title, path in places.items():
        if not path.exists():
            refused.append(f"{title}: there is none ({path})")
            continue
        try:
            sources.append(Source(title, path, read_for(operation, gpu, path)))
        except TuningError as error:
            refused.append(f"{title}: {error}")
            tune = f"flashsmith tune --operation {operation.name}"
            tune = tune.removesuffix(f" --operation {FORWARD.name}")
            remedy = f"`{tune} --force` replaces it"
            if title != "your table":
                remedy = f"`{tune}` makes one of your own"
            warnings.warn(f"{error}; {remedy}", stacklevel=2)
    return tuple(sources), tuple(refused)


def forget_tables() -> None:
    """Drops the tables and all choices; the next choice reads the tables again."""
    find_tables.cache_clear()
    for clear in _of_tables:
        clear()
    forget_calls()


def forget_calls() -> None:
    """Drops remembered calls, which then look up their kernels again; choices are kept."""
    for clear in _of_calls:
        clear()


_of_tables: list[Callable[[], None]] = []
_of_calls: list[Callable[[], None]] = []


def forget_with_tables(clear: Callable[[], None]) -> None:
    """Registers ``clear``, which drops choices, for ``forget_tables`` to call."""
    _of_tables.append(clear)


def forget_with_calls(clear: Callable[[], None]) -> None:
    """Registers ``clear``, which drops calls, for ``forget_calls`` and so ``forget_tables``."""
    _of_calls.append(clear)


def _entries_for(
    sources: tuple[Source[W, C], ...], key: TuningKey, passed_over: list[str]
) -> Iterator[tuple[Source[W, C], Entry[W, C]]]:
    """Yields the entries that may serve, best first: of the same bucket, then of other fills of the
    GPU, each of the workload's dtype before the other one. Tables without one of these go to
    ``passed_over``."""
    keys = [key._replace(dtype=each) for each in sorted(DType, key=lambda each: each != key.dtype)]
    for wanted in keys:
        passed_over.extend(_without_entry(sources, wanted))
        yield from _entries(sources, [wanted])
    for wanted in keys:
        yield from _entries(sources, _other_fills(wanted))


def _other_fills(key: TuningKey) -> list[TuningKey]:
    """Returns the keys of the same lengths at other fills of the GPU, most similar first."""
    _, *others = key.bucket.in_order_of_similarity()
    return [key._replace(bucket=bucket) for bucket in others]


def _entries(
    sources: tuple[Source[W, C], ...], keys: Iterable[TuningKey]
) -> Iterator[tuple[Source[W, C], Entry[W, C]]]:
    for key, source in product(keys, sources):
        if (entry := source.table.entries.get(key)) is not None:
            yield source, entry


def _without_entry(sources: tuple[Source[W, C], ...], key: TuningKey) -> Iterator[str]:
    """Yields a sentence for each table without an entry for the key, at any fill of the GPU."""
    keys = {key, *_other_fills(key)}
    for source in sources:
        if not source.table.entries.keys() & keys:
            lengths = f"{key.dtype} d {key.d_head} {key.variant}, {key.bucket.lengths}"
            yield f"{source.title} {source.path}: no entry for {lengths}"
