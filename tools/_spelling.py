"""Translates options with underscores, as the scripts spell them, for the `flashsmith` command."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = {"--seq-lens": "--seq-len", "--d-heads": "--d-head", "--runs": "--repeats"}


def as_commands_spell(words: Iterable[str]) -> list[str]:
    """Turns `--seq_lens=1024` into `--seq-len=1024`; values and short options do not change."""
    return [_option(word) if word.startswith("--") else word for word in words]


def _option(word: str) -> str:
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    return _NAMES.get(name, name) + equals + value
