"""Has ``import flash_attn`` find flashsmith's functions, in programs that are not changed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterable
from typing import NoReturn

import flashsmith.flash_attn as package
from flashsmith.errors import FlashsmithError
from flashsmith.flash_attn import bert_padding, fa3, flash_attn_interface, layers, ops
from flashsmith.flash_attn.layers import rotary
from flashsmith.flash_attn.ops import triton
from flashsmith.flash_attn.ops.triton import rotary as triton_rotary

_NAME = "flash_attn"
_MODULES = {
    _NAME: package,
    f"{_NAME}.flash_attn_interface": flash_attn_interface,
    f"{_NAME}.bert_padding": bert_padding,
    f"{_NAME}.layers": layers,
    f"{_NAME}.layers.rotary": rotary,
    f"{_NAME}.ops": ops,
    f"{_NAME}.ops.triton": triton,
    f"{_NAME}.ops.triton.rotary": triton_rotary,
}
_FA3 = "flash_attn_interface"  # FlashAttention-3's module, which stands beside flash_attn


_METADATA = f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {package.__version__}\n"
_ALL = importlib.metadata.DistributionFinder.Context()


def install_as_flash_attn() -> None:
    """Has ``import flash_attn`` in this process find the functions of ``flashsmith.flash_attn``,
    and ``import flash_attn_interface`` those of ``flashsmith.flash_attn.fa3``, unless
    FlashAttention-3 is installed.

    Programs that ask for the installed distribution find flash-attn 2.8.4, as transformers does
    before it takes attn_implementation="flash_attention_2". Call it before they are imported.

    Raises:
        FlashsmithError: Another flash_attn has been imported.
    """
    present = sys.modules.get(_NAME, package)
    if present is not package:
        raise FlashsmithError(
            f"flash_attn has been imported already, from {getattr(present, '__file__', None)}; "
            "call flashsmith.install_as_flash_attn() before anything imports flash_attn"
        )
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "transformers" in sys.modules:
        warnings.warn(
            "transformers was imported before flashsmith.install_as_flash_attn(): it may have "
            "looked for flash_attn already, and remember that there was none; install first",
            stacklevel=2,
        )
    sys.modules.update(_MODULES)
    if importlib.util.find_spec(_FA3) is None:
        sys.modules[_FA3] = fa3
    sys.meta_path.insert(0, _Finder())


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says of flash-attn."""

    def read_text(self, filename: str) -> str | None:
        return {"METADATA": _METADATA, "top_level.txt": f"{_NAME}\n"}.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> NoReturn:
        raise FlashsmithError("flash-attn is installed in memory alone, by flashsmith")


class _Finder(importlib.metadata.DistributionFinder):
    """Finds the distribution; the modules are found in sys.modules, and others are refused: those
    of ``flashsmith.flash_attn`` itself must not be loaded twice, under two names."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname.startswith(f"{_NAME}."):
            raise ModuleNotFoundError(
                f"no module {fullname}: flash_attn is flashsmith's here (install_as_flash_attn), "
                f"which has {', '.join(_MODULES)}",
                name=fullname,
            )

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _ALL
    ) -> Iterable[importlib.metadata.Distribution]:
        if context.name is None or re.sub(r"[-_.]+", "_", context.name).lower() == _NAME:
            yield _Distribution()
