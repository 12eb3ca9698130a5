"""A cache and a tiny source tree, for the tests of the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import support.tiny_build as tiny
from flashsmith.jit import (
    Library,
    SourceTree,
    build_library,
    find_library,
)
from support.tiny_build import EMULATOR, INSTANCES

HOST_FILES = ["memory.cpp", "registry.cpp"]
KERNEL_FILES = [f"{instance.slug}.cu" for instance in INSTANCES]


@dataclass
class Workshop:
    """A cache, a tiny source tree, and a compiler that logs its calls."""

    root: Path

    def __post_init__(self) -> None:
        self.cache = self.root / "cache"
        self.log = self.root / "compiler.log"
        self.csrc = tiny.make_csrc(self.root / "csrc")
        self.compiler = tiny.make_compiler(self.root / "cxx", self.log)

    def build(self, count: int = 1, **options: object) -> Library:
        sources = SourceTree(self.csrc, tiny.generate)
        return build_library(INSTANCES[:count], EMULATOR, sources=sources, **options)  # type: ignore[arg-type]

    def find(self, count: int = 1) -> Library | None:
        return find_library(
            INSTANCES[:count], EMULATOR, sources=SourceTree(self.csrc, tiny.generate)
        )

    def new_compilations(self, count: int = 1, **options: object) -> list[str]:
        self.log.unlink(missing_ok=True)
        library = self.build(count, **options)
        assert tiny.sum_of_kernels(library) == 7 * count
        return tiny.compiled(self.log)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit_manifest(entry: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest of an entry, and renews the manifest's own hash."""
    path = entry / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    change(manifest)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(manifest | {"manifest_sha256": digest}))
