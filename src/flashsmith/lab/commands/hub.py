"""Writes the package and its kernels as a kernel of the Hugging Face Hub, in the layout that
kernel-builder has for kernels of TVM-FFI::

    README.md                                 the model card
    build/tvm-ffi01-cu130-x86_64-linux/       a variant: the loader takes one that fits the machine
        __init__.py                           the functions
        metadata.json                         what the loader checks, and the hashes of all files
        _package/flashsmith/                  the package, with the kernels in prebuilt/
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flashsmith
from flashsmith.errors import CacheError
from flashsmith.jit import (
    HostLibrary,
    KernelCache,
    Module,
    built_instances,
    find_host,
    list_modules,
)
from flashsmith.jit import find_modules as find_kernels
from flashsmith.jit.cache import MANIFEST
from flashsmith.lab.commands.hub_texts import CARD, ENTRY, PACKAGE_FOLDER
from flashsmith.version import __version__

# The major version of the functions' interface, which the hub keeps as a branch v1. It rises when
# an argument or a result changes incompatibly.
HUB_VERSION = 1
NAME = "flashsmith"
_METADATA = "metadata.json"
# No function of the kernel needs these.
_LEFT_OUT = ("__main__.py", "cli", "lab", "prebuilt", "results")
_ID_DIGITS = 12


@dataclass(frozen=True)
class HubVariant:
    """A variant of the kernel, which serves one backend."""

    folder: Path
    backend: str  # 'cuda' or 'cpu'
    archs: tuple[str, ...]  # compute capabilities like '9.0a'; none on a CPU
    kernels: int


def write_hub(folder: Path, caches: Sequence[KernelCache] | None = None) -> list[HubVariant]:
    """Returns the variants, one for each backend that there are kernels for; writes them into
    ``folder``, where they replace their former versions. Other variants there stay, so that several
    machines can contribute theirs.

    caches: Where the kernels and the host library are; default: ``find_caches``.

    Raises:
        CacheError: There are no kernels or there is no host library.
        ValueError: The folder has a variant that is not flashsmith's.
    """
    host = find_host(caches=caches)
    modules = _modules(caches)
    if host is None or not modules:
        what = "kernels" if host else "host library"
        raise CacheError(
            f"there are no built {what} of this version; run `flashsmith build --for-attention`, "
            "with --out for a folder of its own, which --from then names"
        )
    by_backend: dict[str, list[Module]] = {}
    for module in modules:
        by_backend.setdefault("cuda" if module.target.archs else "cpu", []).append(module)
    plan = {
        folder / "build" / _variant(backend, each, host): (backend, each)
        for backend, each in sorted(by_backend.items())
    }
    for place in plan:
        _refuse_foreign(place)
    found = [_write_variant(place, *plan[place], host) for place in plan]
    _write_card(folder)
    return found


def _modules(caches: Sequence[KernelCache] | None) -> list[Module]:
    """Returns the newest modules of the present sources, for every architecture."""
    targets = {module.target for module in list_modules(caches)}
    return [
        module
        for target in sorted(targets, key=lambda each: each.name)
        for found in find_kernels(
            built_instances(target, caches=caches), target, caches=caches
        ).values()
        for module in found
    ]


def _variant(backend: str, modules: Iterable[Module], host: HostLibrary) -> str:
    """Returns the name of the variant, whose parts the loader compares with the machine: tvm-ffi,
    CUDA, processor and system."""
    major, minor, *_ = str(host.manifest["tvm_ffi"]).split(".")
    compute = "cpu" if backend == "cpu" else "cu{}{}".format(*max(map(_cuda_version, modules)))
    system = platform.system().lower()
    return f"tvm-ffi{major}{minor}-{compute}-{platform.machine()}-{system}"


def _cuda_version(module: Module) -> tuple[int, int]:
    compiler = " ".join(module.manifest["compiler"])
    found = re.search(r"(?:release|NVRTC) (\d+)\.(\d+)", compiler)
    if found is None:
        raise CacheError(
            f"the compiler of {module.path} does not say its version of CUDA: {compiler!r}; "
            "`flashsmith build --force` compiles it again"
        )
    return int(found[1]), int(found[2])


def _write_variant(
    place: Path, backend: str, modules: Sequence[Module], host: HostLibrary
) -> HubVariant:
    archs = sorted({_capability(arch) for module in modules for arch in module.target.archs})
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as staging:
        staged = Path(staging) / place.name
        package = staged / PACKAGE_FOLDER / NAME
        _copy_package(package)
        entries: list[Module | HostLibrary] = [*modules, host]
        for entry in entries:
            kind = entry.directory.parent.name  # kernels or hosts
            _copy_entry(entry, package / "prebuilt" / kind / entry.directory.name)
        (staged / "__init__.py").write_text(
            ENTRY.format(version=__version__, package_folder=PACKAGE_FOLDER)
        )
        metadata = _metadata(staged, backend, archs)
        (staged / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
        shutil.rmtree(place, ignore_errors=True)
        staged.rename(place)
    return HubVariant(place, backend, tuple(archs), len({module.name for module in modules}))


def _copy_package(to: Path) -> None:
    source = Path(flashsmith.__file__).parent

    def ignored(folder: str, names: list[str]) -> set[str]:
        left_out = _LEFT_OUT if Path(folder) == source else ()
        return {name for name in names if name in left_out or name == "__pycache__"}

    shutil.copytree(source, to, ignore=ignored)


def _copy_entry(entry: Module | HostLibrary, to: Path) -> None:
    """Copies the manifest and the file that it describes, without logs."""
    to.mkdir(parents=True)
    for path in (entry.directory / MANIFEST, entry.path):
        shutil.copy(path, to / path.name)


def _metadata(staged: Path, backend: str, archs: Sequence[str]) -> dict[str, Any]:
    """Returns what the loader checks. The id names a module, and differs if a file does."""
    files = {
        str(path.relative_to(staged)): base64.b64encode(_sha256(path)).decode()
        for path in sorted(staged.rglob("*"))
        if path.is_file()
    }
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return {
        "name": NAME,
        "id": f"_{NAME}_{backend}_{digest[:_ID_DIGITS]}",
        "version": HUB_VERSION,
        "license": "Apache-2.0",
        "python-depends": ["tvm-ffi"],
        "backend": {"type": backend, **({"archs": list(archs)} if archs else {})},
        "digest": {"algorithm": "sha256", "files": files},
    }


def _sha256(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _capability(arch: str) -> str:
    """Returns '9.0a' for 'sm_90a'."""
    number = arch.removeprefix("sm_")
    digits = number.rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}{number[len(digits) :]}"


def _refuse_foreign(place: Path) -> None:
    if not place.exists():
        return
    try:
        name = json.loads((place / _METADATA).read_text())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if name != NAME:
        raise ValueError(
            f"--out: {place} exists and is no variant of {NAME}; choose another folder"
        )


def _write_card(folder: Path) -> None:
    """Writes the model card; one that is there stays, because people edit it."""
    path = folder / "README.md"
    if not path.exists():
        variants = sorted(each.name for each in (folder / "build").iterdir())
        names = ", ".join(f"`{name}`" for name in variants)
        path.write_text(CARD.format(version=__version__, hub_version=HUB_VERSION, variants=names))
