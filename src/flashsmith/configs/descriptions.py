"""What the docstrings of the configuration classes say of their fields."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from flashsmith.configs.base import KernelConfig

# A description in a docstring: names of fields, a colon, a text whose further lines are indented.
_DESCRIPTION = re.compile(r"^([A-Za-z]\w*(?:, \w+)*): (.+(?:\n[ \t]+\S.*)*)", re.MULTILINE)


def descriptions(kind: type[KernelConfig]) -> dict[tuple[str, ...], str]:
    """Fields that are described together -> what a class's docstring says of them, in its order.

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
    """Returns what a class's docstring says of its kernels, beside its first sentence and the
    fields."""
    text = (inspect.getdoc(kind) or "").partition("\n\n")[2]
    return " ".join(text[: next(_DESCRIPTION.finditer(text)).start()].split())
