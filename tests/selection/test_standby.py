"""A kernel that exists serves while the chosen one is built in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith import settings
from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    KernelId,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
)
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.variant import PAGED, Variant
from flashsmith.configs.workload import Workload
from flashsmith.errors import BuildError
from flashsmith.jit import Target, default_jobs
from flashsmith.selection import standby
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.select import why_chosen
from flashsmith.selection.standby import at_hand
from support.forking import in_child
from support.tables import H200, make_entry, write_user_table
from support.waiting import PATIENCE, wait_for

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
EMULATOR = Target.emulator()
CHOSEN, OTHER = (
    SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, length)) for length in (4096, 64)
)
VARIANTS = FULL, CAUSAL, Variant(softcap=True), Variant(causal=True, softcap=True)


@dataclass
class World:
    """The kernels that are built and loaded, and a builder that waits for permission to go on."""

    built: set[KernelId] = field(default_factory=set)
    loaded: set[KernelId] = field(default_factory=set)
    orders: list[KernelId] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)  # at what is built
    may_build: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    forgotten: threading.Event = field(default_factory=threading.Event)
    builders: int = 1
    error: Exception | None = None

    def build(self, instance: KernelId, target: Target) -> None:
        self.orders.append(instance)
        assert self.may_build.acquire(timeout=3 * PATIENCE)  # the test fails earlier
        if self.error:
            raise self.error
        self.built.add(instance)

    def is_at_hand(self, instance: KernelId, target: Target) -> bool:
        self.looks.append(f"for {instance}")
        return instance in self.built

    def instances_at_hand(self, instances: set[KernelId], target: Target) -> set[KernelId]:
        self.looks.append("for fallbacks")
        return instances & self.built

    def go_on(self) -> None:
        """Lets all builds end."""
        self.may_build.release(100)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    made = World()
    monkeypatch.setenv(settings.BACKGROUND_BUILD.name, "on")
    monkeypatch.setenv(settings.TUNED.name, str(tmp_path))
    forget_tables()
    fakes: dict[str, Callable[..., Any]] = {
        "build_apart": made.build,
        "is_loaded": lambda instance, _: instance in made.loaded,
        "is_at_hand": made.is_at_hand,
        "instances_at_hand": made.instances_at_hand,
        "loaded_instances": lambda _: set(made.loaded),
        "forget_calls": made.forgotten.set,
        "_forget_calls_later": lambda: None,
        "_max_builders": lambda: made.builders,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(standby, name, fake)
    monkeypatch.setattr(standby, "_builds", standby._Builds())
    yield made
    made.go_on()
    wait_for(lambda: standby._builds._builders == 0)  # before their world ends
    forget_tables()


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "target_of", lambda _: Target.cuda("sm_90a"))
    monkeypatch.setattr(standby, "gpu_of", lambda _: (H200, (9, 0)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_what_is_built_serves_itself(world: World) -> None:
    world.built |= {KernelId(CHOSEN), KernelId(OTHER)}
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.orders == []


def test_a_fallback_serves_where_no_thread_can_be_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    world.built.add(KernelId(OTHER))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [at_hand(CHOSEN, FULL, CPU) for _ in range(2)] == [OTHER, OTHER]
    assert world.orders == []
    world.go_on()
    at_hand(CHOSEN, FULL, CPU)  # the next call that wants it has it built
    wait_for(lambda: at_hand(CHOSEN, FULL, CPU) == CHOSEN)


def test_without_any_other_kernel_the_call_waits(world: World) -> None:
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.orders == []


def test_another_serves_until_the_chosen_one_is_there(world: World) -> None:
    world.built.add(KernelId(OTHER))
    assert [at_hand(CHOSEN, FULL, CPU) for _ in range(3)] == [OTHER] * 3
    reason = why_chosen(OTHER, FULL, CPU)
    assert reason == f"is the fallback of {CHOSEN}, which is not built yet"
    assert not world.forgotten.is_set()
    world.go_on()
    assert world.forgotten.wait(PATIENCE)
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.orders == [KernelId(CHOSEN)]


def test_a_family_without_such_kernels_stands_in_for_none(world: World, on_h200: None) -> None:
    """Kernels of such a family never stand in, whichever have been built."""
    chosen = SM90_FORWARD.heuristic(Workload.square(DType.FP16, 128, 4096))
    world.built |= {KernelId(CHOSEN, PAGED)}
    assert at_hand(chosen, PAGED, CUDA) == chosen and world.orders == []


def test_what_was_asked_for_last_is_built_first(world: World) -> None:
    world.built |= {KernelId(OTHER, variant) for variant in VARIANTS}
    first, second, third, fourth = VARIANTS
    at_hand(CHOSEN, first, CPU)
    wait_for(lambda: len(world.orders) == 1)
    for variant in (second, third, fourth, second, first):
        assert at_hand(CHOSEN, variant, CPU) == OTHER
    world.go_on()
    wait_for(lambda: standby._builds._builders == 0)
    built = [first, second, fourth, third]  # the first was being built when it was requested again
    assert world.orders == [KernelId(CHOSEN, variant) for variant in built]


def test_kernels_are_built_side_by_side(world: World) -> None:
    world.builders = 2
    world.built |= {KernelId(OTHER, variant) for variant in VARIANTS}
    for variant in VARIANTS:
        at_hand(CHOSEN, variant, CPU)
    wait_for(lambda: len(world.orders) == 2)
    world.may_build.release()
    wait_for(lambda: len(world.orders) == 3)
    world.go_on()
    wait_for(lambda: standby._builds._builders == 0)
    assert sorted(world.orders) == sorted(KernelId(CHOSEN, variant) for variant in VARIANTS)


def test_after_all_was_built_more_can_be(world: World) -> None:
    world.built |= {KernelId(OTHER, variant) for variant in VARIANTS}
    world.go_on()
    for variant in VARIANTS:
        at_hand(CHOSEN, variant, CPU)
        wait_for(lambda: standby._builds._builders == 0)
        assert at_hand(CHOSEN, variant, CPU) == CHOSEN


@pytest.mark.parametrize(
    ("cores", "jobs", "expected"), [(16, 16, 15), (16, 4, 4), (2, 2, 1), (1, 1, 1)]
)
def test_one_core_is_left_to_the_program(
    monkeypatch: pytest.MonkeyPatch, cores: int, jobs: int, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv(settings.JOBS.name, str(jobs))
    assert standby._max_builders() == expected


def test_every_call_names_a_setting_that_is_not_valid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.built.add(KernelId(OTHER))
    monkeypatch.setattr(standby, "_max_builders", default_jobs)
    monkeypatch.setenv(settings.JOBS.name, "many")
    for _ in range(2):
        with pytest.raises(ValueError, match=settings.JOBS.name):
            at_hand(CHOSEN, FULL, CPU)
    assert world.orders == []


def test_calls_look_for_nothing_while_a_kernel_is_built(world: World) -> None:
    world.built.add(KernelId(OTHER))
    at_hand(CHOSEN, FULL, CPU)
    world.looks.clear()
    assert [at_hand(CHOSEN, FULL, CPU) for _ in range(3)] == [OTHER] * 3
    assert world.looks == []
    world.go_on()
    assert world.forgotten.wait(PATIENCE)
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.looks == [f"for {KernelId(CHOSEN)}"]


def test_what_failed_is_looked_for_again_once_in_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have built the kernel by then."""
    world.built.add(KernelId(OTHER))
    world.error = BuildError("no space left")
    world.go_on()
    at_hand(CHOSEN, FULL, CPU)
    wait_for(lambda: standby._builds._builders == 0)
    world.looks.clear()
    clock = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: clock)
    for _ in range(2):
        assert at_hand(CHOSEN, FULL, CPU) == OTHER
    assert world.looks == []
    clock += 61
    for _ in range(2):
        assert at_hand(CHOSEN, FULL, CPU) == OTHER
    assert world.looks == [f"for {KernelId(CHOSEN)}", "for fallbacks"]
    clock += 61
    world.built.add(KernelId(CHOSEN))
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.orders == [KernelId(CHOSEN)]


def test_after_a_fork_the_child_builds_for_itself(world: World) -> None:
    """The builds and the remembered calls of the parent are not the child's."""
    world.built.add(KernelId(OTHER))
    assert at_hand(CHOSEN, FULL, CPU) == OTHER
    wait_for(lambda: bool(world.orders))

    def call() -> None:
        assert world.forgotten.is_set(), "remembered calls would keep the fallback"
        world.go_on()
        assert at_hand(CHOSEN, FULL, CPU) == OTHER
        wait_for(lambda: KernelId(CHOSEN) in world.built)
        assert at_hand(CHOSEN, FULL, CPU) == CHOSEN

    assert in_child(call) == ""
    assert not world.forgotten.is_set() and world.orders == [KernelId(CHOSEN)]


def test_a_child_of_a_parent_that_orders_can_order(world: World) -> None:
    world.built.add(KernelId(OTHER))
    world.go_on()

    def call() -> None:
        assert at_hand(CHOSEN, FULL, CPU) == OTHER
        wait_for(lambda: KernelId(CHOSEN) in world.built)

    with standby._builds._lock:
        assert in_child(call) == ""


def test_a_build_that_fails_is_told_and_not_repeated(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.built.add(KernelId(OTHER))
    world.error = BuildError("no space left")
    world.go_on()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        at_hand(CHOSEN, FULL, CPU)
        wait_for(lambda: bool(caplog.messages))
    assert caplog.messages == [
        f"kernel {CHOSEN} could not be built; the fallback serves: no space left"
    ]
    assert at_hand(CHOSEN, FULL, CPU) == OTHER
    assert world.orders == [KernelId(CHOSEN)]
    assert not world.forgotten.is_set()


@pytest.mark.parametrize(
    "other",
    [
        KernelId(OTHER, CAUSAL),
        KernelId(OTHER.for_dtype(DType.BF16)),
        KernelId(SM80_FORWARD.heuristic(Workload.square(DType.FP16, 64, 64))),
        KernelId(get_kernel_progression_configs()[0]),  # right, but never chosen
        KernelId(get_autotuning_kernel_configs([DType.FP16])[3]),  # not known to be right
    ],
    ids=str,
)
def test_only_what_attention_might_choose_stands_in(world: World, other: KernelId) -> None:
    world.built.add(other)
    assert at_hand(CHOSEN, FULL, CPU) == CHOSEN
    assert world.orders == []


@pytest.mark.usefixtures("on_h200")
def test_kernels_of_a_table_are_fallbacks_on_its_gpu(world: World) -> None:
    entry = make_entry([LARGE := get_autotuning_kernel_configs([DType.FP16])[3]])
    world.built.add(KernelId(LARGE))
    assert at_hand(CHOSEN, FULL, CUDA) == CHOSEN
    write_user_table(entry)
    assert at_hand(CHOSEN, FULL, CUDA) == LARGE
    assert at_hand(CHOSEN.for_dtype(DType.BF16), FULL, CUDA) == CHOSEN.for_dtype(DType.BF16)


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.usefixtures("on_h200")
def test_the_kernel_most_like_the_chosen_one_stands_in(world: World, gone: int) -> None:
    usual = SM90_FORWARD.heuristic(Workload.square(DType.FP16, 128, 4096))
    (small,) = SM90_FORWARD.smaller(Workload.square(DType.FP16, 128, 4096))
    chosen = replace(usual, heads_per_group=64)
    there = [usual, small, OTHER][gone:]  # the most similar one first
    world.built |= {KernelId(config) for config in there}
    assert at_hand(chosen, FULL, CUDA) == there[0]


@pytest.mark.usefixtures("on_h200")
def test_a_capture_loads_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(standby, "_forget_calls_later", lambda: later.append(True))
    world.built |= {KernelId(CHOSEN), KernelId(OTHER)}
    assert at_hand(CHOSEN, FULL, CUDA) == CHOSEN  # nothing loaded could stand in
    world.loaded.add(KernelId(OTHER))
    assert at_hand(CHOSEN, FULL, CUDA) == OTHER
    assert later == [True] and world.orders == []
    world.loaded.add(KernelId(CHOSEN))
    assert at_hand(CHOSEN, FULL, CUDA) == CHOSEN


@pytest.mark.parametrize(
    ("build", "background", "on_cpu", "on_cuda"),
    [
        ("on", "", False, True),
        ("on", "on", True, True),
        ("on", "off", False, False),
        ("off", "on", False, False),
    ],
)
@pytest.mark.usefixtures("on_h200")
def test_the_settings_say_where_fallbacks_serve(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    background: str,
    on_cpu: bool,
    on_cuda: bool,
) -> None:
    monkeypatch.setenv(settings.BUILD.name, build)
    monkeypatch.setenv(settings.BACKGROUND_BUILD.name, background)
    world.built.add(KernelId(OTHER))
    found = [at_hand(CHOSEN, FULL, device) == OTHER for device in (CPU, CUDA)]
    assert found == [on_cpu, on_cuda]
