"""The fields of every configuration class, and of Variant, are those of the C++ struct of its name.

The look-up (csrc/host/registry.cpp) hands the values over in their order, so that a name or a type
which differs would have it find another kernel.
"""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from flashsmith.configs import CONFIG_CLASSES, KernelConfig, Variant
from support.paths import CSRC_INCLUDE

# Python's type -> C++'s; a hash has 48 bits.
TYPES = {"DType": "ScalarType", "bool": "bool", "int": "int"}
WIDE = {"score": "int64_t"}


def header_of(kind: type[KernelConfig | Variant]) -> str:
    header = kind.kernel_header if issubclass(kind, KernelConfig) else "flashsmith/params.h"
    return (CSRC_INCLUDE / header).read_text()


@pytest.mark.parametrize("kind", [*CONFIG_CLASSES, Variant], ids=lambda kind: kind.__name__)
def test_fields_are_those_of_the_cpp_struct(kind: type[KernelConfig | Variant]) -> None:
    body = re.search(rf"^struct {kind.__name__} \{{(.*?)\n\n", header_of(kind), re.S | re.M)
    assert body
    of_cpp = re.findall(r"^  (\w+) (\w+)(?: = \w+)?;", body[1], re.M)
    assert of_cpp == [
        (WIDE.get(f.name, TYPES[str(f.type)]), f.name.replace("_load_K_tiles", "_load_K_fragments"))
        for f in fields(kind)
    ]
