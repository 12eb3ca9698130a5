"""Replaces a name that flashsmith's flash_attn lacks."""

from __future__ import annotations

from typing import Any, NoReturn


class Absent:
    """Raises NotImplementedError when called; as a flag, it is false."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise NotImplementedError(f"flashsmith has no {self._name}")

    def __bool__(self) -> bool:
        return False
