"""A cache and a tiny source tree, for the tests of the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import support.tiny_build as tiny
from flashsmith.jit import HostLibrary, Module, SourceTree, build_kernels, find_host, find_modules
from support.tiny_build import EMULATOR, INSTANCES

HOST_FILES = ["memory.cpp", "tiny.cpp"]
HOST = [*HOST_FILES, "link"]  # what is compiled for a host library
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

    @property
    def sources(self) -> SourceTree:
        return SourceTree(self.csrc, tiny.generate)

    def build(self, count: int = 1, **options: object) -> list[Module]:
        return build_kernels(INSTANCES[:count], EMULATOR, sources=self.sources, **options)  # type: ignore[arg-type]

    def find(self, count: int = 1) -> list[Module]:
        """Returns the modules of the first kernels; fewer than ``count`` if some are not built."""
        found = find_modules(INSTANCES[:count], EMULATOR, sources=self.sources)
        return [module for modules in found.values() for module in modules]

    def find_host(self) -> HostLibrary | None:
        return find_host(sources=self.sources)

    @property
    def host(self) -> HostLibrary:
        """The host library, which was built."""
        found = self.find_host()
        assert found is not None
        return found

    def new_compilations(self, count: int = 1, **options: object) -> list[str]:
        """Builds, and returns what was compiled: names of files, and 'link' for a host library."""
        self.log.unlink(missing_ok=True)
        modules = self.build(count, **options)
        assert tiny.sum_of_kernels(modules, self.sources) == 7 * count
        return tiny.compiled(self.log)


def append_comment(path: Path) -> None:
    path.write_text(path.read_text() + "// a comment\n")


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
