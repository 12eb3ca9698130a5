"""Kernel names, as compilers, profilers and tables write them, back into configurations.

Three forms are read: the short form, also as a cell of a `|`-separated table row; the demangled
name, without types as c++filt prints it or with them (`(c10::ScalarType)5, (int)128, (bool)1`); and
the mangled name, which ptxas reports and which a demangler older than C++20 leaves as it is.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from flashsmith.configs.dtype import DType
from flashsmith.configs.forward import FlashForwardKernelConfig, ForwardKernelInstance
from flashsmith.configs.variant import FORWARD_VARIANTS, FULL, ForwardVariant

_EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
_FIELDS = fields(FlashForwardKernelConfig)
_CPP_DTYPES = {dtype.to_cpp_str(): dtype for dtype in DType}

_FLAGS = {
    "async": "async_copy",
    "eager": "eager_load_blocks",
    "swizzled": "swizzled",
    "buffer": "mma_double_buffer_loads",
    "opt_softmax": "optimized_softmax",
}
_LOAD_TILES = re.compile(r"load_(\d+)_(\d+)_(\d+)_tiles")
_SHORT_FORM = re.compile(
    r"\(\s*(?P<dtype>\w+)\s*,(?:\s*(?P<d_head>\d+)\s*,)?"
    r"\s*(?P<B_r>\d+)\s*,\s*(?P<B_c>\d+)\s*,\s*(?P<n_warps>\d+)\s*\)"
    r"\s*:\s*(?P<features>[\w+]+)"
    rf"(?:\s+(?P<variant>{'|'.join(variant.name for variant in FORWARD_VARIANTS)}))?"
)

_CONFIG = re.compile(r"FlashForwardKernelConfig\s*\{([^{}]*)\}")
_VARIANT = re.compile(r"ForwardVariant\s*\{([^{}]*)\}")
# A type only where one is printed, then an enumerator, true, false or a number.
_VALUE = re.compile(r"(?:\(\s*(?P<type>[\w:]+)\s*\)\s*)?(?P<value>[\w:]+)")

# Itanium ABI: L <type> <value> E, the type being i (int), b (bool) or N...E (the enumeration).
_MANGLED_VALUE = r"L(?:N\w*?ScalarTypeE|i|b)\d+E"
_MANGLED_CONFIG = re.compile(rf"24FlashForwardKernelConfigE((?:{_MANGLED_VALUE})+)E")
_MANGLED_VARIANT = re.compile(rf"14ForwardVariantE((?:{_MANGLED_VALUE})*)E")


def parse_kernel_name_into_config(name: str, d_head: int | None = None) -> FlashForwardKernelConfig:
    """The configuration that a kernel name, demangled or mangled, or a short form stands for.

    Args:
        name: the name; a table row may have other cells beside it.
        d_head: the head dimension of a short form whose tuple leaves it out, (FP16, 64, 64, 4).
            Such a form does not say it, so it is needed there; elsewhere it must agree.

    Raises:
        ValueError: the name is in none of the forms, incomplete, or names two configurations.
    """
    return parse_kernel_name_into_instance(name, d_head).config


def parse_kernel_name_into_instance(name: str, d_head: int | None = None) -> ForwardKernelInstance:
    """As parse_kernel_name_into_config, with the variant; a name without one: full attention."""
    parse = _parse_cpp_name if "FlashForwardKernelConfig" in name else _parse_short_form
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
            f"{_EXAMPLE!r} and a kernel's C++ name with FlashForwardKernelConfig{{...}}"
        ) from None
    return instance


def _parse_short_form(text: str, d_head: int | None) -> set[ForwardKernelInstance]:
    # Markdown may emphasise a cell.
    cells = (cell.strip(" \t\r\n`*") for cell in text.split("|"))
    matches = (match for cell in cells if (match := _SHORT_FORM.fullmatch(cell)))
    return {_from_short_form(match, d_head) for match in matches}


def _from_short_form(match: re.Match[str], d_head: int | None) -> ForwardKernelInstance:
    d_head = int(match["d_head"]) if match["d_head"] else d_head
    if d_head is None:
        raise ValueError(
            "its tuple has no d_head; pass d_head, or write (dtype, d_head, B_r, B_c, n_warps)"
        )
    flags = dict.fromkeys(_FLAGS.values(), False)
    load_tiles: tuple[int, ...] = ()
    for feature in match["features"].split("+"):
        load = _LOAD_TILES.fullmatch(feature)
        if load and not load_tiles:
            load_tiles = tuple(int(n) for n in load.groups())
        elif feature in _FLAGS and not flags[_FLAGS[feature]]:
            flags[_FLAGS[feature]] = True
        else:
            known = ", ".join((*_FLAGS, "load_Q_K_V_tiles"))
            raise ValueError(
                f"its feature {feature!r} is unknown or repeated; features are {known}"
            )
    if not load_tiles:
        raise ValueError("it has no load_Q_K_V_tiles")
    Q_tiles, K_tiles, V_tiles = load_tiles
    config = FlashForwardKernelConfig(
        dtype=DType.from_string(match["dtype"]),
        d_head=d_head,
        B_r=int(match["B_r"]),
        B_c=int(match["B_c"]),
        n_warps=int(match["n_warps"]),
        Q_mma_load_K_tiles=Q_tiles,
        K_mma_load_K_tiles=K_tiles,
        V_mma_load_K_tiles=V_tiles,
        **flags,
    )
    return ForwardKernelInstance(config, ForwardVariant.from_name(match["variant"] or FULL.name))


def _parse_cpp_name(text: str, _d_head: int | None) -> set[ForwardKernelInstance]:
    configs = {
        _config_from_values(values) for values in _cpp_values(_CONFIG, _MANGLED_CONFIG, text)
    }
    variants = {
        _variant_from_values(values) for values in _cpp_values(_VARIANT, _MANGLED_VARIANT, text)
    }
    return {
        ForwardKernelInstance(config, variant)
        for config in configs
        for variant in variants or {FULL}
    }


def _cpp_values(
    demangled: re.Pattern[str], mangled: re.Pattern[str], text: str
) -> list[list[tuple[str, str]]]:
    """The (type, value) pairs of each struct literal in `text`; "" where no type is written."""
    found = [
        [_split_value(value) for value in body.split(",") if value.strip()]
        for body in demangled.findall(text)
    ]
    for body in mangled.findall(text):
        literals = re.findall(r"L(?:N\w*?(ScalarType)E|(i)|(b))(\d+)E", body)
        found.append(
            [(enum or ("int" if is_int else "bool"), value) for enum, is_int, _, value in literals]
        )
    return found


def _split_value(text: str) -> tuple[str, str]:
    match = _VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text.strip()!r} is not a value")
    return (match["type"] or "").rpartition("::")[2], match["value"]


def _config_from_values(values: list[tuple[str, str]]) -> FlashForwardKernelConfig:
    if len(values) > len(_FIELDS):
        raise ValueError(f"it has {len(values)} values for the {len(_FIELDS)} fields")
    # g++ leaves out the zeros that a literal ends with.
    values = values + [("", "0")] * (len(_FIELDS) - len(values))
    return FlashForwardKernelConfig(
        *(
            _convert(field.name, str(field.type), *value)
            for field, value in zip(_FIELDS, values, strict=True)
        )
    )


def _variant_from_values(values: list[tuple[str, str]]) -> ForwardVariant:
    if len(values) > 1:
        raise ValueError(f"its ForwardVariant has {len(values)} values for 1 field")
    return ForwardVariant(*(_convert("causal", "bool", *value) for value in values))


def _convert(name: str, kind: str, cpp_type: str, value: str) -> Any:
    if cpp_type in ("", {"DType": "ScalarType"}.get(kind, kind)):
        if kind == "DType":
            enumerator = f"ScalarType::{value.rpartition('::')[2]}"
            return (
                _CPP_DTYPES[enumerator] if enumerator in _CPP_DTYPES else DType.from_string(value)
            )
        if kind == "bool" and value in ("0", "1", "false", "true"):
            return value in ("1", "true")
        if kind == "int" and value.isdigit():
            return int(value)
    written = f"({cpp_type}){value}" if cpp_type else value
    raise ValueError(f"its {name} is {written}, which is no {kind}")
