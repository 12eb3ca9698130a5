"""Reads the descriptions of fields in the docstrings of configuration classes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from flashsmith.configs.base import KernelConfig

# A description is names of fields, a colon, and a text whose further lines are indented.
_DESCRIPTION = re.compile(r"^([A-Za-z]\w*(?:, \w+)*): (.+(?:\n[ \t]+\S.*)*)", re.MULTILINE)


def descriptions(kind: type[KernelConfig]) -> dict[tuple[str, ...], str]:
    """Returns fields that are described together -> their description, in the docstring's order.

    Raises:
        ValueError: The docstring does not describe all fields in their order.
    """
    text = inspect.getdoc(kind) or ""
    found = {
        tuple(names.split(", ")): " ".join(meaning.split())
        for names, meaning in _DESCRIPTION.findall(text.partition("Raises:")[0])
    }
    described = [name for together in found for name in together]
    names = [field.name for field in fields(kind)]
    if described != names:
        raise ValueError(f"{kind.__name__} describes {described}; its fields are {names}")
    return found


def how_it_works(kind: type[KernelConfig]) -> str:
    """Returns how a class's kernels work: its docstring between the first paragraph and the
    fields."""
    text = (inspect.getdoc(kind) or "").partition("\n\n")[2]
    return " ".join(text[: next(_DESCRIPTION.finditer(text)).start()].split())
