"""Parses kernel names, as compilers, profilers and tables write them, into configurations.

Three forms are read: the short form, also as a cell of a `|`-separated table row; the demangled
name, without types as c++filt prints it or with them (`(c10::ScalarType)5, (int)128, (bool)1`); and
the mangled name, which ptxas reports and which a demangler older than C++20 does not change.
"""

from __future__ import annotations

import functools
import re
from dataclasses import fields
from typing import Any

from flashsmith.configs.base import CONFIG_CLASSES, ForwardKernelConfig, KernelConfig
from flashsmith.configs.features import read_features
from flashsmith.configs.kernel_id import KernelId
from flashsmith.configs.variant import FULL, NAME_PATTERN, Variant
from flashsmith.dtype import DType

_EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
_CPP_TYPES = {"DType": ("ScalarType",), "bool": ("bool",), "int": ("int", "long")}
_CPP_DTYPES = {dtype.to_cpp_str(): dtype for dtype in DType}

_SHORT_FORM = re.compile(
    r"\(\s*(?P<dtype>\w+)\s*,(?:\s*(?P<d_head>\d+)\s*,)?"
    r"\s*(?P<B_r>\d+)\s*,\s*(?P<B_c>\d+)\s*,\s*(?P<warps>\d+)\s*\)"
    r"\s*:\s*(?P<features>[\w+]+)"
    rf"(?:\s+(?P<variant>{NAME_PATTERN}))?"
)

_VARIANT = re.compile(r"\b(Variant)\s*\{([^{}]*)\}")
# An optional type in parentheses, then an enumerator, true, false or a number.
_VALUE = re.compile(r"(?:\(\s*(?P<type>[\w:]+)\s*\)\s*)?(?P<value>[\w:]+)")

# The Itanium ABI mangles a value as L <type> <value> E, where the type is i (int), b (bool), l
# (long) or N...E (the enumeration).
_MANGLED_VALUE = r"L(?:N\w*?ScalarTypeE|i|b|l)\d+E"
_MANGLED_TYPES = {"i": "int", "b": "bool", "l": "long"}
_MANGLED_VARIANT = re.compile(rf"7(Variant)E((?:{_MANGLED_VALUE})*)E")


@functools.cache
def _classes() -> dict[str, type[KernelConfig]]:
    """Returns the configuration classes by name, once all families are defined."""
    return {kind.__name__: kind for kind in CONFIG_CLASSES}


@functools.cache
def _config_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns patterns of a configuration's literal, demangled and mangled."""
    names = "|".join(_classes())
    return (
        re.compile(rf"(?<!\w)({names})\s*\{{([^{{}}]*)\}}"),
        re.compile(rf"(?<!\d)\d\d({names})E((?:{_MANGLED_VALUE})+)E"),
    )


def is_kernel_name(word: str) -> bool:
    """Returns whether a word is a kernel's name, in any form, and not the key of a set."""
    return word.lstrip().startswith("(") or ":" in word or "{" in word or is_cpp_name(word)


def is_cpp_name(text: str) -> bool:
    """Returns whether `text` has the C++ name of one of our kernels, demangled or mangled."""
    return any(name in text for name in _classes())


def parse_kernel_name_into_config(
    name: str, d_head: int | None = None
) -> ForwardKernelConfig | Any:
    """Returns the configuration of a kernel name, demangled or mangled, or of a short form.

    Args:
        name: The name; a table row may have other cells.
        d_head: The head dimension, required for a short form whose tuple leaves it out, (FP16, 64,
            64, 4); otherwise it must agree.

    Raises:
        TypeError: The name is not a string, or d_head not an int.
        ValueError: The name has none of the forms, is incomplete, or names two configurations.
    """
    return parse_kernel_name_into_instance(name, d_head).config


def parse_kernel_name_into_instance(name: str, d_head: int | None = None) -> KernelId:
    """Returns the kernel of a name, see parse_kernel_name_into_config; without a variant it is full
    attention."""
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}, {name!r:.80}; expected a kernel's name")
    if d_head is not None and (isinstance(d_head, bool) or not isinstance(d_head, int)):
        raise TypeError(f"d_head is a {type(d_head).__name__}, {d_head!r:.80}; expected an int")
    parse = _parse_cpp_name if is_cpp_name(name) else _parse_short_form
    try:
        found = parse(name, d_head)
        if not found:
            raise ValueError("it contains no configuration")
        if len(found) > 1:
            raise ValueError(f"it names {len(found)} kernels: {', '.join(sorted(map(str, found)))}")
        (instance,) = found
        if d_head not in (None, instance.config.d_head):
            raise ValueError(
                f"it says d_head {instance.config.d_head}, the argument d_head {d_head}"
            )
    except ValueError as error:
        raise ValueError(
            f"kernel name {name!r} cannot be parsed: {error}; valid are a short form like "
            f"{_EXAMPLE!r} and a kernel's C++ name with "
            f"{' or '.join(f'{kind}{{...}}' for kind in _classes())}"
        ) from None
    return instance


def _parse_short_form(text: str, d_head: int | None) -> set[KernelId]:
    # Markdown may emphasise a cell.
    cells = (cell.strip(" \t\r\n`*") for cell in text.split("|"))
    matches = (match for cell in cells if (match := _SHORT_FORM.fullmatch(cell)))
    return {_from_short_form(match, d_head) for match in matches}


def _from_short_form(match: re.Match[str], d_head: int | None) -> KernelId:
    d_head = int(match["d_head"]) if match["d_head"] else d_head
    if d_head is None:
        raise ValueError(
            "its tuple has no d_head; pass d_head, or write (dtype, d_head, B_r, B_c, n_warps)"
        )
    texts = match["features"].split("+")
    fitting = (kind for kind in CONFIG_CLASSES if kind.markers <= set(texts))
    kind = max(fitting, key=lambda kind: len(kind.markers))  # one kind has none
    sizes = map(int, match.group("B_r", "B_c", "warps"))
    tup: tuple[Any, ...] = (DType.from_string(match["dtype"]), d_head, *sizes)
    values = dict(zip(kind.tuple_fields, tup, strict=True))
    config = kind(**values, **read_features(texts, kind.feature_table))
    return KernelId(config, Variant.from_name(match["variant"]) if match["variant"] else FULL)


def _parse_cpp_name(text: str, _d_head: int | None) -> set[KernelId]:
    configs = {
        _config_from_values(_classes()[kind], values)
        for kind, values in _cpp_values(*_config_patterns(), text)
    }
    variants = {
        _variant_from_values(values) for _, values in _cpp_values(_VARIANT, _MANGLED_VARIANT, text)
    }
    return {KernelId(config, variant) for config in configs for variant in variants or {FULL}}


def _cpp_values(
    demangled: re.Pattern[str], mangled: re.Pattern[str], text: str
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the name and (type, value) pairs of each struct literal; the type is "" if none is
    written."""
    found = [
        (kind, [_split_value(value) for value in body.split(",") if value.strip()])
        for kind, body in demangled.findall(text)
    ]
    for kind, body in mangled.findall(text):
        literals = re.findall(r"L(?:N\w*?(ScalarType)E|([ibl]))(\d+)E", body)
        values = [(enum or _MANGLED_TYPES[letter], n) for enum, letter, n in literals]
        found.append((kind, values))
    return found


def _split_value(text: str) -> tuple[str, str]:
    match = _VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text.strip()!r} is not a value")
    return (match["type"] or "").rpartition("::")[2], match["value"]


def _config_from_values(kind: type[KernelConfig], values: list[tuple[str, str]]) -> KernelConfig:
    wanted = fields(kind)
    if len(values) > len(wanted):
        raise ValueError(f"it has {len(values)} values for the {len(wanted)} fields")
    # g++ omits trailing zeros of a literal.
    values = values + [("", "0")] * (len(wanted) - len(values))
    return kind(
        *(
            _convert(field.name, str(field.type), *value)
            for field, value in zip(wanted, values, strict=True)
        )
    )


def _variant_from_values(values: list[tuple[str, str]]) -> Variant:
    wanted = fields(Variant)
    if len(values) > len(wanted):
        raise ValueError(f"its Variant has {len(values)} values for {len(wanted)} fields")
    # Omitted values are zeros.
    return Variant(
        *(
            _convert(field.name, str(field.type), *value)
            for field, value in zip(wanted, values, strict=False)
        )
    )


def _convert(name: str, kind: str, cpp_type: str, value: str) -> Any:
    if cpp_type in ("", *_CPP_TYPES[kind]):
        if kind == "DType":
            enumerator = f"ScalarType::{value.rpartition('::')[2]}"
            return (
                _CPP_DTYPES[enumerator] if enumerator in _CPP_DTYPES else DType.from_string(value)
            )
        if kind == "bool" and value in ("0", "1", "false", "true"):
            return value in ("1", "true")
        if kind == "int" and value.removesuffix("l").isdigit():
            return int(value.removesuffix("l"))
    written = f"({cpp_type}){value}" if cpp_type else value
    raise ValueError(f"its {name} is {written}, which is no {kind}")
