"""Each configuration class, and Variant, has the fields of the C++ struct of the same name.

``load_kernel`` (csrc/host/from_fields.h) takes the values in their order, so a name or a type that
differs would make another kernel.
"""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from flashsmith.configs import CONFIG_CLASSES, KernelConfig, Variant
from support.paths import CSRC_INCLUDE

# The type in Python -> the type in C++; a hash has 48 bits, so it needs int64_t.
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
