"""``load_kernel`` of csrc/host/exports.cpp makes a kernel of each family from its fields."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from flashsmith.configs import CONFIG_CLASSES, DType, KernelConfig, KernelId, Variant
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.sets import get_kernel_configs
from flashsmith.runtime import load_host
from support.emulator_program import CXX
from support.paths import CSRC

VARIANTS = tuple(map(Variant.from_name, ("full", "causal", "causal+varlen", "softcap+alibi")))
KNOWN = [
    *(get_kernel_configs("all") + get_kernel_configs("sm90")),
    *(BACKWARD.heuristic_configs() + DECODE.heuristic_configs()),
]
BY_KIND = {kind: [config for config in KNOWN if type(config) is kind] for kind in CONFIG_CLASSES}
EACH_KIND = pytest.mark.parametrize("kind", CONFIG_CLASSES, ids=lambda kind: kind.__name__)
# All functions that the families ask a module for.
FUNCTIONS = sorted(
    name
    for path in (CSRC / "host").rglob("*.*")
    for name in re.findall(r'"(\w+_kernel)"', path.read_text())
)


def drawn() -> list[KernelId]:
    """Returns random kernels of each class and variant, some of which are similar."""
    rng = random.Random(7)
    return [
        KernelId(rng.choice(configs), variant)
        for configs in BY_KIND.values()
        for variant in VARIANTS
    ]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module with one function, which nothing calls."""
    path = tmp_path_factory.mktemp("module") / "kernel.so"
    text = 'extern "C" void nothing() {}'
    command = [str(CXX), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def values_of(given: KernelConfig | Variant) -> list[int]:
    return [int(getattr(given, field.name)) for field in fields(given)]


def load(
    module: Path,
    kind: str,
    config: list[int],
    variant: list[int],
    functions: dict[str, str] | None = None,
) -> Any:
    names = dict.fromkeys(FUNCTIONS, "nothing") if functions is None else functions
    told = ("emulator", "name", kind, "family", [8, 0, 0], config, variant, str(module), names)
    return load_host().load_kernel(*told)


def test_every_kernel_of_every_class_is_made(module: Path) -> None:
    for instance in drawn():
        config = instance.config
        made = load(module, type(config).__name__, values_of(config), values_of(instance.variant))
        assert {"plan", config.operation} <= {str(name) for name in made}
    assert len(BY_KIND) == len(CONFIG_CLASSES) and all(BY_KIND.values())


@EACH_KIND
def test_a_struct_has_as_many_fields_as_the_class_in_python(
    module: Path, kind: type[KernelConfig]
) -> None:
    config, variant = values_of(BY_KIND[kind][0]), values_of(Variant())
    for wrong in (config[:-1], [*config, 0]):
        words = f"{kind.__name__} came with {len(wrong)} fields; .* struct has {len(config)}: "
        with pytest.raises(ValueError, match=words):
            load(module, kind.__name__, wrong, variant)
    for wrong in (variant[:-1], [*variant, 0]):
        words = f"^Variant came with {len(wrong)} fields; .* struct has {len(variant)}: "
        with pytest.raises(ValueError, match=words):
            load(module, kind.__name__, config, wrong)


@EACH_KIND
def test_a_value_that_its_field_cannot_hold_is_refused(
    module: Path, kind: type[KernelConfig]
) -> None:
    """A value that C++ would cut is that of another kernel."""
    config, variant = BY_KIND[kind][0], Variant()
    for index, field in enumerate(fields(config)):
        wrong = values_of(config)
        wrong[index] = 2 if isinstance(getattr(config, field.name), bool) else 1 << 40
        words = f"^{kind.__name__} came with {wrong[index]} as field {index}, .* cannot hold"
        with pytest.raises(ValueError, match=words):
            load(module, kind.__name__, wrong, values_of(variant))
    for index, field in enumerate(fields(variant)):
        wrong = values_of(variant)
        if isinstance(getattr(variant, field.name), bool):
            wrong[index] = 2
            with pytest.raises(ValueError, match=f"^Variant came with 2 as field {index}, "):
                load(module, kind.__name__, values_of(config), wrong)


def test_a_score_of_48_bits_is_held(module: Path) -> None:
    config = BY_KIND[CONFIG_CLASSES[0]][0]
    score = replace(Variant(), score=(1 << 48) - 1)
    assert load(module, type(config).__name__, values_of(config), values_of(score))


@pytest.mark.parametrize("kind", ["Unheard", "", "Variant"])
def test_a_class_of_no_family_is_refused(module: Path, kind: str) -> None:
    with pytest.raises(ValueError, match=f"type is {kind}; expected .* configuration class"):
        load(module, kind, [5] * 13, [0] * 11)


@EACH_KIND
def test_a_module_of_another_family_is_refused_by_its_missing_function(
    module: Path, kind: type[KernelConfig]
) -> None:
    config = values_of(BY_KIND[kind][0])
    with pytest.raises(RuntimeError, match=rf"{module} has no function \w+_kernel$"):
        load(module, kind.__name__, config, values_of(Variant()), {"other_kernel": "nothing"})


def test_a_module_without_a_symbol_of_its_manifest_is_refused(module: Path) -> None:
    config = BY_KIND[CONFIG_CLASSES[0]][0]
    functions = dict.fromkeys(FUNCTIONS, "nothing") | {FUNCTIONS[0]: "nowhere"}
    with pytest.raises(RuntimeError, match=f"{module} has no function nowhere"):
        load(module, type(config).__name__, values_of(config), values_of(Variant()), functions)


def test_a_module_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    config = BY_KIND[CONFIG_CLASSES[0]][0]
    told = type(config).__name__, values_of(config), values_of(Variant())
    with pytest.raises(RuntimeError, match=r"absent\.so: cannot open"):
        load(tmp_path / "absent.so", *told)
    text = tmp_path / "text.so"
    text.write_text("no ELF file")
    with pytest.raises(RuntimeError, match=r"text\.so: (file too short|invalid ELF)"):
        load(text, *told)


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


def test_kernels_that_differ_in_any_one_field_are_told_apart() -> None:
    """Python remembers kernels, and finds their modules, by these."""
    held = drawn()
    for instance in held:
        for field, other in neighbours(instance):
            assert other != instance and other.name != instance.name, field
            assert other.slug != instance.slug, field
