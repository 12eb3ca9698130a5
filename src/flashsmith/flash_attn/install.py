"""Makes ``import flash_attn`` find flashsmith's functions, in programs that are not changed."""

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
_FA3 = "flash_attn_interface"  # FlashAttention-3's module, a top-level module beside flash_attn


_METADATA = f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {package.__version__}\n"
_ALL = importlib.metadata.DistributionFinder.Context()


def install_as_flash_attn() -> None:
    """Makes ``import flash_attn`` in this process find ``flashsmith.flash_attn``, and ``import
    flash_attn_interface`` find ``flashsmith.flash_attn.fa3`` unless FlashAttention-3 is installed.

    The installed distribution is reported as flash-attn 2.8.4, which transformers checks before it
    accepts attn_implementation="flash_attention_2". Call this before such programs are imported.

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
    """The metadata that importlib.metadata reports of flash-attn."""

    def read_text(self, filename: str) -> str | None:
        return {"METADATA": _METADATA, "top_level.txt": f"{_NAME}\n"}.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> NoReturn:
        raise FlashsmithError("flash-attn is installed in memory alone, by flashsmith")


class _Finder(importlib.metadata.DistributionFinder):
    """Finds the distribution. The modules are in sys.modules; others are refused, because the
    modules of ``flashsmith.flash_attn`` must not be loaded a second time under another name."""

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
