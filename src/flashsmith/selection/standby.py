"""Fallbacks: an existing kernel serves while the chosen one is being built."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flashsmith import settings
from flashsmith.configs import AttentionKernelConfig, ForwardKernelConfig, KernelId, Variant
from flashsmith.configs.registry import FORWARD, family_of
from flashsmith.jit import Target, build_apart, default_jobs
from flashsmith.runtime.device import target_of
from flashsmith.runtime.kernels import (
    find_distance,
    instances_at_hand,
    is_at_hand,
    is_loaded,
    loaded_instances,
)
from flashsmith.selection.choose import find_tables, forget_calls
from flashsmith.selection.select import gpu_of, remember_reason

logger = logging.getLogger("flashsmith")

# A capture of a CUDA graph must load nothing, so the switch to the chosen kernel is tried again
# afterwards. A call that chooses while a build ends may also remember the fallback.
_LATER_SECONDS = 1.0
# After a build failed, another process that shares the cache may have a compiler that succeeds.
_LOOK_AGAIN_SECONDS = 60.0


class _BuildKey(NamedTuple):
    """A kernel that is built in the background."""

    instance: KernelId
    target: Target


def at_hand(
    config: AttentionKernelConfig, variant: Variant, device: torch.device
) -> AttentionKernelConfig:
    """Returns what to call now: ``config``, or a fallback while its kernel is in no library.

    The kernel is then built in the background, and remembered calls are dropped when it is there.
    Until then, or after its build failed, a call that needs it does not search again. Fallbacks are
    kernels that ``attention`` might choose too, so the soak found them right. If there is none, or
    background builds are off, the result is ``config``, and its call waits.
    """
    if not _builds_in_background(device):
        return config
    wanted = _BuildKey(KernelId(config, variant), target_of(device))
    if is_loaded(*wanted):
        return config
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        candidates = _candidates(wanted.instance, device)
        fallback = _most_similar(candidates & loaded_instances(wanted.target), config)
        if fallback is None:
            return config
        _forget_calls_later()
    else:
        fallback = _builds.fallback_for(wanted)
        if fallback is None:
            if is_at_hand(*wanted):
                return config
            candidates = _candidates(wanted.instance, device)
            fallback = _most_similar(instances_at_hand(candidates, wanted.target), config)
            if fallback is None:
                return config
        _builds.order(wanted, fallback)
    remember_reason(
        fallback, variant, device, f"is the fallback of {config}, which is not built yet"
    )
    return fallback


def _builds_in_background(device: torch.device) -> bool:
    if settings.BUILD.get() is False:
        return False
    asked = settings.BACKGROUND_BUILD.get()
    return device.type == "cuda" if asked is None else asked


def _candidates(instance: KernelId, device: torch.device) -> set[KernelId]:
    """Returns the kernels that may serve in place of one, whether they exist or not."""
    variant = instance.variant
    trusted = (cfg for cfg in _trusted(instance, device) if cfg.serves_variant(variant))
    return {KernelId(cfg, variant) for cfg in trusted} - {instance}


def _most_similar(
    found: Iterable[KernelId], config: AttentionKernelConfig
) -> AttentionKernelConfig | None:
    """Returns the configuration that differs least from ``config``; None if there is none."""
    ranked = sorted(found, key=lambda each: (find_distance(each.config, config), each))
    return ranked[0].config if ranked else None


def _trusted(instance: KernelId, device: torch.device) -> Iterator[ForwardKernelConfig]:
    """Yields the configurations of tables and heuristics for the kernel's dtype, d_head and
    variant."""
    config, variant, (gpu, capability) = instance.config, instance.variant, gpu_of(device)
    families = FORWARD.families_for(gpu, capability)
    for family in families:
        if config.d_head in family.d_heads:
            for of_heuristic in family.heuristic_configs(config.dtype, config.d_head):
                yield of_heuristic.adapted_to(variant)
    sources = find_tables(FORWARD, gpu)[0] if gpu is not None else ()
    for entry in (entry for source in sources for entry in source.table.entries.values()):
        if entry.workload.variant.tuning_key() == variant.tuning_key():
            for row in entry.ranked:
                # The soak ran with this dtype, so a row of the other dtype is not trusted here.
                same = (row.config.dtype, row.config.d_head) == (config.dtype, config.d_head)
                if same and family_of(row.config) in families:
                    yield row.config.adapted_to(variant)


def _forget_calls_later() -> None:
    timer = threading.Timer(_LATER_SECONDS, forget_calls)
    timer.daemon = True
    timer.start()


@dataclass
class _Order:
    """The state of a kernel that was ordered."""

    fallback: AttentionKernelConfig
    # The time, in seconds of time.monotonic(), from which on a look-up may succeed: infinity while
    # the kernel waits or is built, minus infinity once it was built.
    worth_a_look: float = math.inf


class _Builds:
    """Builds kernels in parallel, the last ordered first, each once.

    Each thread waits for a build process, and ends when no kernel is left to build. The threads are
    daemons, so that they do not keep the program alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[_BuildKey, _Order] = {}
        self._waiting: list[_BuildKey] = []  # the last is built first
        self._builders = 0  # threads

    @property
    def had_orders(self) -> bool:
        return bool(self._orders)

    def fallback_for(self, wanted: _BuildKey) -> AttentionKernelConfig | None:
        """Returns the fallback for a kernel that is known to be missing; None: a look-up may
        succeed.

        A look-up compares sources and reads the cache, too slow for calls whose lengths always
        change.
        """
        order = self._orders.get(wanted)
        if order is None or time.monotonic() >= order.worth_a_look:
            return None
        return order.fallback

    def order(self, wanted: _BuildKey, fallback: AttentionKernelConfig) -> None:
        """Orders a kernel's build, once, before those that were ordered earlier and still wait."""
        with self._lock:
            order = self._orders.get(wanted)
            if order is None:
                max_builders = _max_builders()  # raises for a bad setting, before the order
                self._orders[wanted] = _Order(fallback)
                self._waiting.append(wanted)
                if self._builders < max_builders:
                    self._start_builder()
            elif wanted in self._waiting:
                self._waiting.remove(wanted)
                self._waiting.append(wanted)
                if not self._builders:  # no thread could be started before
                    self._start_builder()
            elif -math.inf < order.worth_a_look <= time.monotonic():
                # The build failed, and the caller's look-up did too.
                order.fallback = fallback
                order.worth_a_look = time.monotonic() + _LOOK_AGAIN_SECONDS

    def _start_builder(self) -> None:
        thread = threading.Thread(target=self._work, name="flashsmith builds", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # at exit, or if the system has no more threads
            logger.warning("no kernel is built in the background: %s", error)
            return
        self._builders += 1

    def _work(self) -> None:
        while (wanted := self._next()) is not None:
            self._build(wanted, self._orders[wanted])

    def _next(self) -> _BuildKey | None:
        with self._lock:
            if self._waiting:
                return self._waiting.pop()
            self._builders -= 1
            return None

    def _build(self, wanted: _BuildKey, order: _Order) -> None:
        begin = time.monotonic()
        try:
            build_apart(*wanted)
        except Exception as error:
            logger.warning(
                "kernel %s could not be built; the fallback serves: %s", wanted.instance, error
            )
            order.worth_a_look = time.monotonic() + _LOOK_AGAIN_SECONDS
            return
        logger.info("kernel %s was built in %.1f s", wanted.instance, time.monotonic() - begin)
        order.worth_a_look = -math.inf
        forget_calls()
        _forget_calls_later()


def _max_builders() -> int:
    """Returns how many kernels are built at a time; on two or more cores one is left to the
    program."""
    return max(1, min(default_jobs(), len(os.sched_getaffinity(0)) - 1))


_builds = _Builds()


def _start_anew_in_child() -> None:
    """Starts with no orders in a child process: the build threads are the parent's, and one may
    have held the lock. Calls order their kernels again, so remembered calls are dropped."""
    global _builds
    had_orders, _builds = _builds.had_orders, _Builds()
    if had_orders:
        forget_calls()


os.register_at_fork(after_in_child=_start_anew_in_child)
