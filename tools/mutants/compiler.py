"""Runs as a C++ compiler that keeps objects, so that a mutant compiles only what it changes.

It stands in place of the compiler (FLASHSMITH_CXX, CXX). ``c++ -c`` of a known source with known
flags and unchanged headers copies the kept object; everything else runs the compiler. A run with
MUTANTS_RECORD=1 keeps new objects; mutants only read them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str], compiler: str, store: Path, root: Path) -> int:
    """Compiles, or copies a kept object; paths below ``root``, the copy of the project, are equal
    in all copies."""
    if "-c" not in arguments or "-o" not in arguments:
        os.execv(compiler, [compiler, *arguments])
    source = Path(arguments[arguments.index("-c") + 1])
    target = Path(arguments[arguments.index("-o") + 1])
    if not source.is_file():  # in nvcc's own calls, the next argument is another option
        os.execv(compiler, [compiler, *arguments])
    entry = store / _key(arguments, source, target, root)
    if _is_current(entry, root, source.parent):
        shutil.copyfile(entry / "object", target)
        return 0
    if not os.environ.get("MUTANTS_RECORD"):
        os.execv(compiler, [compiler, *arguments])
    with tempfile.TemporaryDirectory(dir=store) as scratch:
        depfile = Path(scratch) / "headers"
        status = subprocess.call([compiler, *arguments, "-MMD", "-MF", str(depfile)])
        if status == 0:
            _keep(entry, target, _headers(depfile, source), root, source.parent)
    return status


def _key(arguments: list[str], source: Path, target: Path, root: Path) -> str:
    """Returns a hash of the source's text and the flags, without the folders' names."""
    folders = {str(source): "<source>", str(target): "<target>", str(root): "<root>"}
    flags = []
    for argument in arguments:
        for path, name in folders.items():
            argument = argument.replace(path, name)
        flags.append(argument)
    text = json.dumps([flags, source.name, source.read_text()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_current(entry: Path, root: Path, beside: Path) -> bool:
    try:
        headers: dict[str, str] = json.loads((entry / "headers.json").read_text())
        return all(_hash(_absolute(name, root, beside)) == known for name, known in headers.items())
    except OSError:
        return False


def _headers(depfile: Path, source: Path) -> list[Path]:
    """Returns the headers that ``source`` includes, system headers too, from a rule for make."""
    words = depfile.read_text().replace("\\\n", " ").partition(":")[2].split()
    return [path for word in words if (path := Path(word).absolute()) != source.absolute()]


def _keep(entry: Path, target: Path, headers: list[Path], root: Path, beside: Path) -> None:
    known = {_relative(path, root, beside): _hash(path) for path in headers}
    with tempfile.TemporaryDirectory(dir=entry.parent) as scratch:
        folder = Path(scratch) / "entry"
        folder.mkdir()
        shutil.copyfile(target, folder / "object")
        (folder / "headers.json").write_text(json.dumps(known))
        try:
            folder.rename(entry)
        except OSError:
            shutil.rmtree(entry, ignore_errors=True)  # its headers are stale; the next run keeps it


def _relative(path: Path, root: Path, beside: Path) -> str:
    """Returns a name that means the same in another copy: below the root, or beside the source."""
    for folder, mark in ((beside, "@"), (root, "")):
        if path.is_relative_to(folder.absolute()):
            return f"{mark}{path.relative_to(folder.absolute())}"
    return str(path)


def _absolute(name: str, root: Path, beside: Path) -> Path:
    return beside / name[1:] if name.startswith("@") else root / name


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_script(path: Path, compiler: str, store: Path, root: Path) -> None:
    """Writes an executable that calls ``main``."""
    code = f"main(sys.argv[1:], {compiler!r}, Path({str(store)!r}), Path({str(root)!r}))"
    path.write_text(
        f"#!{sys.executable} -IS\n"
        "import runpy, sys\nfrom pathlib import Path\n"
        f"main = runpy.run_path({str(Path(__file__).resolve())!r})['main']\n"
        f"sys.exit({code})\n"
    )
    path.chmod(0o755)
