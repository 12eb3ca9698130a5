"""While the chosen kernel is being built, one that exists serves."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import torch

from flashsmith import settings
from flashsmith.configs import AttentionKernelConfig, ForwardKernelConfig, KernelId, Variant
from flashsmith.configs.families import families_for, family_of
from flashsmith.jit import Target, build_library
from flashsmith.runtime.device import target_of
from flashsmith.runtime.kernels import existing_instances, find_distance, is_at_hand, is_loaded
from flashsmith.selection.choose import find_tables, forget_calls, gpu_of, remember_reason

logger = logging.getLogger("flashsmith")

# A capture of a CUDA graph must load nothing, so the switch is tried again after it. And a call
# that is thought over while a build ends may remember the stand-in.
_LATER_SECONDS = 1.0


def at_hand(
    config: AttentionKernelConfig, variant: Variant, device: torch.device
) -> AttentionKernelConfig:
    """What to call now: ``config``, or a stand-in while its kernel is in no library.

    The kernel is then built in the background, and the calls that are remembered are forgotten when
    it is there. Stand-ins are kernels that ``attention`` might choose, too: their soak was clean.
    Where there is none, or building in the background is off, ``config``: its call waits.
    """
    if not _builds_in_background(device):
        return config
    instance, target = KernelId(config, variant), target_of(device)
    if is_loaded(instance, target):
        return config
    captures = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not captures and is_at_hand(instance, target):
        return config
    stand_in = _find_stand_in(instance, target, device, only_loaded=captures)
    if stand_in is None:
        return config
    if captures:
        _forget_calls_later()
    else:
        _builds.order(instance, target)
    remember_reason(stand_in, variant, device, f"stands in for {config}, which is not there yet")
    return stand_in


def _builds_in_background(device: torch.device) -> bool:
    if settings.BUILD.get() is False:
        return False
    asked = settings.BACKGROUND_BUILD.get()
    return device.type == "cuda" if asked is None else asked


def _find_stand_in(
    instance: KernelId, target: Target, device: torch.device, only_loaded: bool
) -> AttentionKernelConfig | None:
    """The one most like the kernel."""
    wanted = instance.config
    variant = instance.variant
    trusted = {
        KernelId(cfg, variant) for cfg in _trusted(instance, device) if cfg.serves_variant(variant)
    }
    if only_loaded:
        found = {each for each in trusted if is_loaded(each, target)}
    else:
        found = trusted & existing_instances(target)
    ranked = sorted(found - {instance}, key=lambda each: (find_distance(each.config, wanted), each))
    return ranked[0].config if ranked else None


def _trusted(instance: KernelId, device: torch.device) -> Iterator[ForwardKernelConfig]:
    """What tables and rules name for the kernel's dtype, d_head and variant."""
    config, variant, (gpu, capability) = instance.config, instance.variant, gpu_of(device)
    families = families_for(gpu, capability)
    for family in families:
        if config.d_head in family.d_heads:
            for of_rule in family.rule_configs(config.dtype, config.d_head):
                yield of_rule.with_room_for(variant)
    sources = find_tables(gpu)[0] if gpu is not None else ()
    for entry in (entry for source in sources for entry in source.table.entries.values()):
        if entry.workload.variant.tuning_key() == variant.tuning_key():
            for row in entry.ranked:
                # A soak is of one dtype, so nothing is lent to the other here.
                same = (row.config.dtype, row.config.d_head) == (config.dtype, config.d_head)
                if same and family_of(row.config) in families:
                    yield row.config.with_room_for(variant)


def _forget_calls_later() -> None:
    timer = threading.Timer(_LATER_SECONDS, forget_calls)
    timer.daemon = True
    timer.start()


class _Builds:
    """Builds one kernel after the other in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: set[tuple[KernelId, Target]] = set()  # what failed is not tried again
        self._waiting: SimpleQueue[tuple[KernelId, Target]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def had_orders(self) -> bool:
        return bool(self._ordered)

    def order(self, instance: KernelId, target: Target) -> None:
        """Has a kernel built, once."""
        with self._lock:
            if (instance, target) in self._ordered:
                return
            self._ordered.add((instance, target))
            self._waiting.put((instance, target))
            if self._thread is None:
                name = "flashsmith builds"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            instance, target = self._waiting.get()
            begin = time.monotonic()
            try:
                build_library([instance], target)
            except Exception as error:
                logger.warning(
                    "kernel %s could not be built; a stand-in goes on: %s", instance, error
                )
                continue
            logger.info("kernel %s was built in %.1f s", instance, time.monotonic() - begin)
            forget_calls()
            _forget_calls_later()


_builds = _Builds()


def _start_anew_in_child() -> None:
    """The thread that builds is the parent's, and may have held the lock. What it was to build is
    ordered again by the calls that want it, so none goes on with what is remembered for it."""
    global _builds
    had_orders, _builds = _builds.had_orders, _Builds()
    if had_orders:
        forget_calls()


os.register_at_fork(after_in_child=_start_anew_in_child)
