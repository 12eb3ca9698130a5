"""Makes a platform wheel from the pure one and built files, and measures the parts of a wheel."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.jit import HostLibrary, KernelCache, Module
from flashsmith.jit.binary import machine_of
from flashsmith.jit.cache import MANIFEST

PREBUILT = "flashsmith/prebuilt"  # where flashsmith.jit.cache looks for it
_WRITTEN_ANEW = ("created", "artifact", "key")
_PARTS = (  # the first that a file's path begins with
    (f"{PREBUILT}/hosts/", "host library"),
    ("flashsmith/results/", "measured results"),
    ("flashsmith/csrc/", "C++ sources"),
    ("", "Python"),
)


@dataclass
class Part:
    """A part of a wheel, with its sizes in bytes."""

    name: str
    files: int = 0
    raw: int = 0
    zipped: int = 0

    def add(self, info: zipfile.ZipInfo) -> None:
        self.files += 1
        self.raw += info.file_size
        self.zipped += info.compress_size


def pure_wheel(project: Path, folder: Path) -> Path:
    """Builds the wheel that any machine can install, by hatchling, which must be installed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    asked = ["--no-deps", "--no-index", "--no-build-isolation", "-w", folder, project]
    subprocess.run([*pip, *asked], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def platform_wheel(pure: Path, host: HostLibrary, modules: Iterable[Module], folder: Path) -> Path:
    """Writes a wheel with a host library and kernels into ``folder``.

    Its platform is that of the host library: the machine and the oldest C library.
    """
    platform = f"manylinux_{_version_of(host)}_{machine_of(host.manifest['binary'])}"
    with tempfile.TemporaryDirectory() as name:
        _run_wheel("unpack", "--dest", name, pure)
        (unpacked,) = Path(name).iterdir()
        prebuilt = KernelCache(unpacked / PREBUILT)
        prebuilt.create()
        for product, of in (
            (host, prebuilt.hosts),
            *((each, prebuilt.kernels) for each in modules),
        ):
            _copy(product, prebuilt, of)
        (file,) = unpacked.glob("*.dist-info/WHEEL")
        text = re.sub(r"(?m)^Tag: .*$", f"Tag: py3-none-{platform}", file.read_text())
        file.write_text(text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"))
        folder.mkdir(parents=True, exist_ok=True)
        _run_wheel("pack", "--dest-dir", folder, unpacked)
    return folder / pure.name.replace("-none-any.whl", f"-none-{platform}.whl")


def _version_of(host: HostLibrary) -> str:
    """Returns the version of the C library, as a tag has it."""
    name, _, version = str(host.manifest["libc"]).partition(" ")
    if name != "glibc" or not version:
        raise ValueError(f"the host library is linked with {name} {version}; wheels need glibc")
    return version.replace(".", "_")


def _copy(product: HostLibrary | Module, prebuilt: KernelCache, of: Path) -> None:
    """Copies the library or module alone: logs name the files of the builder."""
    manifest = {k: v for k, v in product.manifest.items() if k not in _WRITTEN_ANEW}
    entry = of / product.directory.name
    with prebuilt.staging(entry.name) as staged:
        shutil.copy(product.path, staged)
        prebuilt.publish(staged, entry, product.manifest["key"], product.path.name, manifest)


def _run_wheel(*words: str | Path) -> None:
    command = [sys.executable, "-m", "wheel", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def parts_of(wheel: Path) -> list[Part]:
    """Returns the parts of a wheel, its kernels by architecture, the largest first."""
    parts: dict[str, Part] = {}
    with zipfile.ZipFile(wheel) as archive:
        kernels = dict(_kernels_in(archive))
        for info in archive.infolist():
            entry = info.filename.rpartition("/")[0]
            name = kernels.get(entry) or next(
                part for path, part in _PARTS if info.filename.startswith(path)
            )
            parts.setdefault(name, Part(name)).add(info)
    return sorted(parts.values(), key=lambda part: part.zipped, reverse=True)


def _kernels_in(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yields the folder of each kernel, and the part that it belongs to."""
    for name in archive.namelist():
        if name.startswith(f"{PREBUILT}/kernels/") and name.endswith(f"/{MANIFEST}"):
            target = json.loads(archive.read(name))["target"]
            yield (
                name.removesuffix(f"/{MANIFEST}"),
                " ".join(["kernels", *(target["archs"] or ["emulated"])]),
            )


def write_csv(path: Path, wheels: Sequence[Path]) -> None:
    """Writes the sizes of wheels' parts."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("wheel", "part", "files", "raw_bytes", "zipped_bytes"))
        for wheel in wheels:
            rows.writerows((wheel.name, *vars(part).values()) for part in parts_of(wheel))
