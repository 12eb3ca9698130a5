"""Finds the classes of the installed transformers whose attention uses its interface."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import transformers

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


def model_classes(families: Container[str] | None = None) -> Iterator[type]:
    """Yields the classes that define a forward, in files that name the interface, by file."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        if families is not None and file.parent.name not in families:
            continue
        if _INTERFACE in file.read_text():
            name = f"transformers.models.{file.parent.name}.{file.stem}"
            yield from _of_module(importlib.import_module(name))


def _of_module(module: Any) -> Iterator[type]:
    for each in list(vars(module).values()):
        if (
            inspect.isclass(each)
            and issubclass(each, transformers.PreTrainedModel)
            and each.__module__ == module.__name__
            and each.config_class is not None
            and "forward" in vars(each)
        ):
            yield each


def family_of(model_class: type) -> str:
    """Returns the folder of a class: ``llama``."""
    return model_class.__module__.split(".")[2]


def attention_layers(model: Any) -> list[Any]:
    """Returns the modules that look up an attention function."""
    return [module for module in model.modules() if _asks(type(module))]


def _asks(module_class: type) -> bool:
    if module_class not in _found:
        source = "".join(
            inspect.getsource(member)
            for member in vars(module_class).values()
            if inspect.isfunction(member)
        )
        _found[module_class] = _INTERFACE in source
    return _found[module_class]


_found: dict[type, bool] = {}
