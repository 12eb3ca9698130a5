"""A configuration finds its kernel, which is remembered and can be called."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    VARIANTS,
    DType,
    KernelId,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_config,
)
from flashsmith.errors import KernelNotFoundError
from flashsmith.jit import Module, Target
from flashsmith.runtime import Kernel, find_kernel, find_kernels, kernels, loaded_instances
from flashsmith.runtime import host as host_library
from flashsmith.runtime.call_args import FULL_EXTRAS, NO_SCALES, CallArgs, Scales
from flashsmith.runtime.host import load_host
from flashsmith.runtime.kernels import find_distance, is_at_hand, is_loaded, load_module
from flashsmith.runtime.launch_cache import LaunchCache
from flashsmith.runtime.plan import Launch, Plan

NAMES = ("q", "k", "v", "o", "lse", "workspace")
# These extras are tensors; the others are numbers.
TENSORS = CallArgs._fields[: CallArgs._fields.index("softcap")]
TARGET = Target.cuda("sm_87")  # no test runs its kernels
INSTANCES = [
    KernelId(cfg, variant)
    for cfg in (*get_kernel_progression_configs(), *get_sm90_kernel_progression_configs())
    for variant in VARIANTS
]


class Host:
    """A fake host library, as tvm-ffi shows it: it makes kernels from their fields."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.calls: list[tuple[Any, ...]] = []

    def load_kernel(self, *told: Any) -> dict[str, Callable[..., float]]:
        self.told.append(told)

        def forward(*arguments: Any) -> float:
            self.calls.append((told[1], *arguments))
            return 0.5

        return {"forward": forward}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(kernels, "load_host", lambda *_: host)
    monkeypatch.setattr(kernels, "_loaded", {})
    return host


def module_of(instance: KernelId, target: Target = TARGET) -> Module:
    manifest = {
        "artifact": {"file": "kernel"},
        "name": instance.name,
        "target": {"kind": target.kind, "archs": list(target.archs)},
        "functions": {"some_kernel": f"symbol of {instance.slug}"},
    }
    return Module(Path("modules", instance.slug), manifest)


def load_all() -> None:
    for instance in INSTANCES:
        load_module(module_of(instance), instance, TARGET)


def test_kernels_of_both_families_are_found_by_their_fields(host: Host) -> None:
    load_all()
    for _ in range(2):
        found = [find_kernel(instance, TARGET) for instance in INSTANCES]
    assert [kernel.instance for kernel in found] == INSTANCES
    for kernel in found:
        kernel("q", "k", "v", "o", 1.0)
    assert [name for name, *_ in host.calls] == [instance.name for instance in INSTANCES]
    assert len(host.told) == len(INSTANCES), "what was loaded is remembered"
    assert loaded_instances(TARGET) == set(INSTANCES)


def test_the_host_is_told_the_fields_in_their_order_and_the_module(host: Host) -> None:
    by_family = {instance.config.family: instance for instance in INSTANCES}
    for instance, gpu in ((by_family["sm80"], [8, 0, 0]), (by_family["sm90"], [9, 0, 1])):
        load_module(module_of(instance), instance, TARGET)
        config, variant = instance.config, instance.variant
        assert host.told[-1] == (
            *("gpu", instance.name, type(config).__name__, config.family, gpu),
            [int(getattr(config, field.name)) for field in fields(config)],
            [int(getattr(variant, field.name)) for field in fields(variant)],
            f"modules/{instance.slug}/kernel",
            {"some_kernel": f"symbol of {instance.slug}"},
        )
    emulated = module_of(INSTANCES[0], Target.emulator())
    load_module(emulated, INSTANCES[0], Target.emulator())
    assert host.told[-1][0] == "emulator"


def test_the_kernel_that_was_loaded_first_stays(host: Host) -> None:
    """Threads may load a kernel at once, and calls keep what they found."""
    first, again = (load_module(module_of(INSTANCES[0]), INSTANCES[0], TARGET) for _ in range(2))
    assert first is again is find_kernel(INSTANCES[0], TARGET)


def test_a_kernel_is_loaded_for_one_target(host: Host) -> None:
    load_module(module_of(INSTANCES[0]), INSTANCES[0], TARGET)
    assert is_loaded(INSTANCES[0], TARGET)
    assert not is_loaded(INSTANCES[0], Target.emulator())
    assert not is_loaded(INSTANCES[1], TARGET)


def test_what_is_loaded_is_at_hand_whatever_became_of_its_file(host: Host) -> None:
    lacking = KernelId(replace(INSTANCES[0].config, B_c=32))
    load_module(module_of(INSTANCES[0]), INSTANCES[0], TARGET)  # its file does not exist
    assert is_at_hand(INSTANCES[0], TARGET)
    assert not is_at_hand(lacking, TARGET)


def test_the_distance_of_configurations_is_the_fields_that_differ() -> None:
    """A configuration of another family is further away than any of the same family."""
    configs = [*dict.fromkeys(instance.config for instance in INSTANCES)]
    sm80, sm90 = ([c for c in configs if c.family == family] for family in ("sm80", "sm90"))
    changed = replace(sm80[0], B_r=sm80[0].B_r * 2)
    assert find_distance(sm80[0], sm80[0]) == 0
    assert find_distance(sm80[0], changed) == 1
    assert find_distance(changed, replace(changed, B_c=128, n_warps=16)) == 2
    furthest = max(find_distance(a, b) for same in (sm80, sm90) for a in same for b in same)
    assert find_distance(sm80[0], sm90[0]) == find_distance(sm90[0], sm80[0]) > furthest


def test_the_three_closest_are_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    monkeypatch.setattr("flashsmith.runtime.kernels.built_instances", lambda _: set())
    load_all()
    base = INSTANCES[0].config
    with pytest.raises(KernelNotFoundError) as caught:
        find_kernel(KernelId(replace(base, B_c=32)), TARGET)
    named = re.search("Closest that exist: (.*?). Run", str(caught.value))
    assert named is not None
    closest = named[1].split("; ")
    assert len(closest) == 3 and closest[0] == KernelId(base).name
    assert len(set(closest)) == 3


def test_a_call_passes_everything_in_the_order_of_the_host(host: Host) -> None:
    load_all()
    kernel = find_kernel(INSTANCES[3], TARGET)
    assert kernel("q", "k", "v", "o", 0.25) == 0.5
    scales = Scales(k_scale="s")
    assert kernel("q", "k", "v", "o", 0.25, True, lse="l", workspace="w", scales=scales) == 0.5
    sinks = CallArgs(sinks="s", window_right=5)
    assert kernel("q", "k", "v", "o", 0.25, block_table="t", extras=sinks) == 0.5
    causal = (*[None] * 10, 0.0, -1, 0, False, -1, -1, 0, 1, 0.0)
    name = INSTANCES[3].name
    assert host.calls == [
        (name, False, "q", "k", "v", "o", None, *NO_SCALES, None, None, 0.25, *causal),
        (name, True, "q", "k", "v", "o", "l", None, "s", None, None, "w", 0.25, *causal),
        (name, False, "q", "k", "v", "o", None, *NO_SCALES, "t", None, 0.25, *sinks),
    ]


# These kernels are real.

BUILT = [
    KernelId(parse_kernel_name_into_config(name), variant)
    for name in (
        "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles",
        "(FP16, 64, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
        "(BF16, 64, 64, 32, 1): wgmma+stages_1",
    )
    for variant in VARIANTS
]


@pytest.fixture(scope="module")
def plans() -> list[Callable[..., Any]]:
    """Returns the operation ``plan`` of each kernel, as it comes from C++."""
    return [each.operations["plan"] for each in find_kernels(BUILT, Target.emulator())]


def test_names_tell_kernels_apart_by_every_field() -> None:
    for instance in BUILT:
        for field in fields(instance.config):
            value = getattr(instance.config, field.name)
            other: Any = not value if isinstance(value, bool) else value + 1
            if isinstance(value, DType):
                other = next(dtype for dtype in DType if dtype != value)
            changed = KernelId(replace(instance.config, **{field.name: other}), instance.variant)
            assert changed.name != instance.name, field.name


def test_the_call_in_python_has_the_arguments_that_the_host_declares() -> None:
    """The arguments are those of ``Kernel.__call__`` and ``CallArgs``, with the shapes and dtypes
    that the host checks."""
    declared = [dict(argument) for argument in load_host().arguments("forward")]
    parameters = inspect.signature(Kernel.__call__).parameters
    for argument in declared:  # each element of the list has a line
        argument["name"] = re.sub(r"\[\d\]", "", str(argument["name"]))
    own = [*(n for n in parameters if n in NAMES[:-1]), *Scales._fields, "block_table"]
    given = [*own, *TENSORS, NAMES[-1]]
    assert [*dict.fromkeys(a["name"] for a in declared)] == given
    assert {a["name"] for a in declared if a["optional"] == "yes"} == {
        "lse", "workspace", *own[-len(Scales._fields) - 1 :], *TENSORS,
    }  # fmt: skip
    told = "\n".join(str(inspect.getdoc(each)) for each in (Kernel.__call__, Scales, CallArgs))
    for argument in declared:
        (entry,) = re.findall(rf"^ *(?:\w+, )?{argument['name']}(?:, \w+)?: (.*)", told, re.M)
        if argument["shape"] != "()":  # only its own check knows the sizes
            assert entry.replace(",)", ")").startswith(argument["shape"]), argument
        if argument["element"] in ("float32", "int32", "int64"):
            assert f", {argument['element']}" in entry, argument
    assert {a["name"] for a in declared if a["use"] == "written"} == {"o", "lse"}


def test_a_plan_says_what_is_launched(plans: list[Callable[..., Any]]) -> None:
    """The emulator has four SMs, and the two families count thread blocks differently."""
    q, k = torch.zeros(2, 130, 4, 64).half(), torch.zeros(2, 70, 2, 64).half()
    mma, wgmma = plans[0], plans[4]
    plan = Plan.of(mma(q, k, k, q, None, *NO_SCALES, None, None, 1.0, *FULL_EXTRAS))
    assert plan == Plan((Launch((3, 4, 2), 1, 128, 3 * 64 * 64 * 2),), 0, 0)
    tensors = (t.bfloat16() for t in (q, k, k, q))
    plan = Plan.of(wgmma(*tensors, None, *NO_SCALES, None, None, 1.0, *FULL_EXTRAS))
    assert plan.launches[0].grid == (3 * 4 * 2, 1, 1)
    assert plan.launches[0].threads == BUILT[4].config.threads_per_block
    assert plan.launches[0].shared_memory_bytes == BUILT[4].config.shared_memory_bytes
    with pytest.raises(ValueError, match="q has 4 heads and k has 3"):
        k = torch.zeros(2, 70, 3, 64).half()
        mma(q, k, k, q, None, *NO_SCALES, None, None, 1.0)


@pytest.mark.parametrize(
    ("index", "given", "words"),
    [
        (1, None, "k is a None; expected a tensor"),
        (4, 3, "lse is a int; expected a tensor"),
        (10, "half", "softmax_scale is a .*; expected a number"),
        (13, 2.0, "sinks is a float; expected a tensor"),
        (21, None, "softcap is a None; expected a number"),
        (23, 1.5, "window_right is a float; expected a number"),
    ],
)
def test_an_argument_of_another_type_is_named(
    plans: list[Callable[..., Any]], index: int, given: Any, words: str
) -> None:
    q = torch.zeros(1, 64, 1, 64, dtype=torch.float16)
    arguments = [q, q, q, torch.empty_like(q), None, *NO_SCALES, None, None, 1.0, *FULL_EXTRAS]
    arguments[index] = given
    with pytest.raises(TypeError, match=words):
        plans[0](*arguments)


@pytest.mark.parametrize("count", [10, 12, 29, 31])
def test_another_number_of_arguments_is_refused(
    plans: list[Callable[..., Any]], count: int
) -> None:
    with pytest.raises(TypeError, match=f"takes 11 or 30 arguments, but got {count}"):
        plans[0](*[1] * count)


# ---- threads ----


def test_threads_that_load_kernels_at_once_get_one_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All start at once, each with another order, and nothing is loaded yet."""
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(host_library, "_module", None)
    connected: list[Any] = []
    monkeypatch.setattr(LaunchCache, "connect", lambda _, module: connected.append(module))
    start = threading.Barrier(8)

    def load(first: int) -> list[Kernel]:
        start.wait(30)
        wanted = BUILT[first % len(BUILT) :] + BUILT[: first % len(BUILT)]
        kernels.load_kernels(wanted, Target.emulator())
        return [find_kernel(each, Target.emulator()) for each in BUILT]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load, range(8)))
    for of_thread in found:
        assert all(a is b for a, b in zip(of_thread, found[0], strict=True))
    assert [kernel.instance for kernel in found[0]] == BUILT
    assert len({id(kernel.module) for kernel in found[0]}) == 1
    assert len(connected) == 1, "the launch cache is that of one host library"
