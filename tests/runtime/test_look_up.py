"""The look-up of csrc/host/registry.cpp, in libraries of the real host and maps of many kernels."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith import codegen
from flashsmith.configs import CONFIG_CLASSES, DType, KernelConfig, KernelId, Variant
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.sets import get_kernel_configs
from flashsmith.errors import KernelNotFoundError
from flashsmith.jit import SourceTree, Target, build_library, find_library
from flashsmith.ops.choices import Choices
from flashsmith.runtime import kernels
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.runtime.loaded import LoadedKernel
from support.caches import kernel_free_cache
from support.paths import CSRC
from support.sm80_kernels import BASE

EMULATOR = Target.emulator()
VARIANTS = tuple(map(Variant.from_name, ("full", "causal", "causal+varlen", "softcap+alibi")))


def drawn(rng: random.Random) -> list[KernelId]:
    """Returns random kernels of each class and variant, some of which are similar."""
    known = [
        *(get_kernel_configs("all") + get_kernel_configs("sm90")),
        *(BACKWARD.heuristic_configs() + DECODE.heuristic_configs()),
    ]
    by_kind = {kind: [c for c in known if type(c) is kind] for kind in CONFIG_CLASSES}
    return [
        KernelId(rng.choice(configs), variant)
        for configs in by_kind.values()
        for variant in VARIANTS
    ]


def changed(value: Any) -> Any:
    if isinstance(value, DType):
        return next(dtype for dtype in DType if dtype != value)
    return not value if isinstance(value, bool) else value + 1


def neighbours(instance: KernelId) -> Iterator[tuple[str, KernelId]]:
    """Yields the kernels that differ in one field, with the field's name."""
    for part in ("config", "variant"):
        whole: KernelConfig | Variant = getattr(instance, part)
        for field in fields(whole):
            other = replace(whole, **{field.name: changed(getattr(whole, field.name))})
            yield field.name, replace(instance, **{part: other})


def without_kernels(instances: Sequence[KernelId]) -> dict[str, str]:
    """Generates null kernels, which compile at once and cannot be called."""
    texts = codegen.generate(instances)
    for instance in instances:
        config = instance.config
        getters = re.findall(
            rf"^{config.kernel_pointer} ({instance.slug}(?:_schedule)?)\(\);",
            texts[codegen.MAP_HEADER],
            re.MULTILINE,
        )
        texts[f"{instance.slug}.cu"] = (
            f'#include "{config.kernel_header}"\nnamespace flashsmith::kernels {{\n'
            + "".join(f"{config.kernel_pointer} {each}() {{ return {{}}; }}\n" for each in getters)
            + "}\n"
        )
    return texts


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a cache for this module alone, since null kernels have the names of real ones."""
    root = kernel_free_cache(tmp_path_factory.mktemp("cache")).root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHSMITH_CACHE_DIR", str(root))
        yield root


@pytest.fixture(scope="module")
def held(cache: Path) -> list[KernelId]:
    return sorted(set(drawn(random.Random(7))))


@pytest.fixture(scope="module")
def loaded(held: list[KernelId]) -> kernels._Loaded:
    sources = SourceTree(CSRC, without_kernels)
    return kernels._Loaded.load(build_library(held, EMULATOR, sources=sources))


def test_every_kernel_of_every_class_is_found(
    loaded: kernels._Loaded, held: list[KernelId]
) -> None:
    found = [loaded.find(instance) for instance in held]
    assert [kernel.instance for kernel in found if kernel] == held
    assert {type(instance.config) for instance in held} == set(CONFIG_CLASSES)
    assert all(kernel and "plan" in kernel.operations for kernel in found)


def test_kernels_that_differ_in_any_one_field_are_told_apart(
    loaded: kernels._Loaded, held: list[KernelId]
) -> None:
    told = {
        (type(instance.config), field): loaded.find(other)
        for instance in held
        for field, other in neighbours(instance)
        if other not in held
    }
    assert [each for each, found in told.items() if found] == []
    asked = {(kind, f.name) for kind in CONFIG_CLASSES for f in (*fields(kind), *fields(Variant))}
    assert set(told) == asked


@pytest.mark.parametrize(
    ("kind", "config", "variant", "words"),
    [
        ("FlashForwardKernelConfig", [5] * 14, [0] * 11, "came with 14 fields; .* struct has 13"),
        ("FlashDecodeKernelConfig", [5] * 8, [0] * 11, "came with 8 fields; .* struct has 9"),
        ("FlashForwardKernelConfig", [5] * 13, [0] * 12, "Variant came with 12 .* struct has 11"),
        ("FlashForwardKernelConfig", [5] * 13, [0] * 11, "came with 5 as field 5, .* cannot hold"),
        ("FlashForwardKernelConfig", [1 << 20] * 13, [0] * 11, "with 1048576 as field 0, .* hold"),
        ("Unheard", [5] * 13, [0] * 11, "type is Unheard; expected .* configuration class"),
    ],
)
def test_what_is_no_configuration_is_refused(
    loaded: kernels._Loaded, kind: str, config: list[int], variant: list[int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        loaded.find_kernel("name", kind, config, variant)


def without_entry(instances: Sequence[KernelId]) -> dict[str, str]:
    """Generates as codegen does, without the first kernel's line in ``forward_kernels``."""
    texts = codegen.generate(instances)
    line = rf"    \{{[^\n]*\n     kernels::{instances[0].slug}\(\)\}},\n"
    texts[codegen.MAP_HEADER], removed = re.subn(line, "", texts[codegen.MAP_HEADER])
    assert removed == 1
    return texts


def test_a_call_of_what_the_map_lacks_names_the_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(kernel_free_cache(tmp_path / "cache").root))
    for function in (build_library, find_library):
        sources = SourceTree(CSRC, without_entry)
        monkeypatch.setattr(kernels, function.__name__, partial(function, sources=sources))
    for name in ("runtime.kernels._loaded", "runtime.kernels._found", "ops.launch._kernels"):
        monkeypatch.setattr(f"flashsmith.{name}", {})
    monkeypatch.setattr("flashsmith.ops.launch._choices", Choices())
    launch_cache.forget()
    q = torch.randn(1, 64, 1, BASE.d_head).to(BASE.dtype.to_torch_dtype())
    with pytest.raises(KernelNotFoundError) as caught:
        flashsmith.forward(BASE, q, q, q)
    for word in (str(BASE), "flash_kernels.cuh", "flashsmith.codegen",
                 "tools/build/generate_kernel_instantiations.py"):  # fmt: skip
        assert word in str(caught.value)


def test_newer_libraries_are_asked_first_then_the_others(
    loaded: kernels._Loaded, held: list[KernelId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is built on demand has a library, and a map, of its own."""
    sources = SourceTree(CSRC, without_kernels)
    newer = KernelId(replace(BASE, dtype=DType.BF16), VARIANTS[1])
    assert newer not in held
    for name in ("_loaded", "_found"):
        monkeypatch.setattr(kernels, name, {})
    kernels.load_library(loaded.library, EMULATOR)
    assert not kernels.is_loaded(newer, EMULATOR)
    kernels.load_library(build_library([newer, held[0]], EMULATOR, sources=sources), EMULATOR)
    found: list[LoadedKernel] = [kernels._find(i, EMULATOR, None) for i in (newer, *held[:2])]
    modules = [each.module for each in kernels._loaded[EMULATOR]]
    assert [modules.index(kernel.module) for kernel in found] == [0, 0, 1]
