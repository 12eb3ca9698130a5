"""tools/build/wheels.py: an installed wheel computes without a compiler."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashsmith import settings
from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.jit import find_host
from flashsmith.jit.binary import find_libc, platform_here
from support.paths import ROOT
from support.scripts import load_script
from support.workshop import edit_manifest

EMULATED = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+opt_softmax causal"
FOR_GPUS = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+opt_softmax"
HAS_NVCC = shutil.which("nvcc") is not None

ATTENTION = """\
import torch, flashsmith
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 100, 2, 64).bfloat16()
o = flashsmith.attention(q, k, v, causal=True)
rows = (x.transpose(1, 2).float() for x in (q, k, v))
expected = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True)
error = (o.float() - expected.transpose(1, 2)).abs().max().item()
assert 0 < error < 0.02, error
print(flashsmith.__file__)
"""
FIND = f"""\
from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.jit import Target, find_module
instance = parse_kernel_name_into_instance({FOR_GPUS!r})
print(find_module(instance, Target.cuda("sm_80")).path)
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/build/wheels.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a wheel for this machine with two kernels, and of its parts' sizes."""
    folder = tmp_path_factory.mktemp("wheels")
    words = ["--machine", "own", "--emulated", EMULATED, "--arch", "sm_80"]
    words += ["--cubins", FOR_GPUS if HAS_NVCC else "none"]
    words += ["--out", str(folder), "--sizes", str(folder / "sizes.csv")]
    command = [sys.executable, ROOT / "tools" / "build" / "wheels.py", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


class Installed:
    """A new environment with the wheel, beside whose packages it finds the suite's."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        self.python, self.cache = venv / "bin" / "python", folder / "cache"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        self.package = packages / "flashsmith"

    def run(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program where there are no compilers, and nothing of flashsmith is built."""
        kept = {k: v for k, v in os.environ.items() if k not in {s.name for s in settings.ALL}}
        kept.pop("PYTHONPATH", None)
        kept |= {"PATH": str(self.python.parent), "FLASHSMITH_CACHE_DIR": str(self.cache)}
        kept |= {"PYTHONDONTWRITEBYTECODE": "1"} | environment
        return subprocess.run(
            [self.python, "-c", program], env=kept, cwd="/", capture_output=True, text=True
        )

    def files(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.package.rglob("*")}


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Installed:
    return Installed(tmp_path, wheel)


def test_attention_needs_no_compiler_and_writes_nothing(installed: Installed) -> None:
    before = installed.files()
    done = installed.run(ATTENTION)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed.package / "__init__.py")
    assert done.stderr == ""
    assert installed.files() == before
    assert not installed.cache.exists()


@pytest.mark.skipif(not HAS_NVCC, reason="needs nvcc on PATH")
def test_kernels_for_gpus_are_found(installed: Installed) -> None:
    done = installed.run(FIND)
    assert Path(done.stdout.strip()).is_relative_to(installed.package / "prebuilt"), done.stderr


@pytest.mark.parametrize(
    ("field", "value", "there", "build"),
    [
        ("binary", "ELF 0201 b700", f"aarch64 with {find_libc()}", "1"),
        ("libc", "glibc 999.1", "glibc 999.1", "0"),
    ],
)
def test_a_wheel_for_another_platform_says_so(
    installed: Installed, field: str, value: str, there: str, build: str
) -> None:
    (host,) = (installed.package / "prebuilt" / "hosts").iterdir()
    edit_manifest(host, lambda manifest: manifest.update({field: value}))
    done = installed.run(ATTENTION, FLASHSMITH_BUILD=build)
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("flashsmith.errors.ToolchainError: the host library "), done.stderr
    assert f"{there}, and this machine is {platform_here()}; install flashsmith's wheel" in line
    assert ("or install g++ 11" in line) == (build == "1")


def test_the_record_has_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
        rows = csv.reader(archive.read(record).decode().splitlines())
        listed = {name: (sha, size) for name, sha, size in rows}
        assert listed.pop(record) == ("", "")
        assert listed.keys() == {*archive.namelist()} - {record}
        for name, (sha, size) in listed.items():
            content = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (sha, size) == (f"sha256={digest.decode()}", str(len(content))), name


def test_the_platform_is_that_of_the_host_library(wheel: Path) -> None:
    libc = find_libc().partition(" ")[2].replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-manylinux_{libc}_{os.uname().machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        text = archive.read(name).decode()
    assert f"Tag: {wheel.name.partition('-py3')[1][1:]}" in text
    assert "Root-Is-Purelib: false" in text


def test_nothing_names_the_builder_s_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/prebuilt/" in name]
        assert {Path(name).suffix for name in names} <= {".so", ".cubin", ".json"}
        assert len(names) == 2 * (3 if HAS_NVCC else 2)
        for name in names:
            assert str(ROOT).encode() not in archive.read(name), name


def test_the_sizes_are_those_of_the_parts(tool: ModuleType, built: Path, wheel: Path) -> None:
    rows = list(csv.DictReader((built / "sizes.csv").open()))
    kernels = {"kernels emulated"} | ({"kernels sm_80"} if HAS_NVCC else set())
    others = {"host library", "C++ sources", "measured results", "Python"}
    assert {row["part"] for row in rows} == kernels | others
    with zipfile.ZipFile(wheel) as archive:
        assert sum(int(row["raw_bytes"]) for row in rows) == sum(
            info.file_size for info in archive.infolist()
        )
    assert sum(int(row["zipped_bytes"]) for row in rows) < wheel.stat().st_size


def test_a_wheel_that_is_too_large_is_refused(
    tool: ModuleType, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(tool.why_not(wheel)) == []
    monkeypatch.setattr(tool, "_MOST_BYTES", 1000)
    (fault,) = tool.why_not(wheel)
    assert fault.startswith(wheel.name) and fault.endswith("MB; it may have 0.00")


def test_a_host_library_of_another_c_library_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    host = find_host()
    assert host is not None
    musl = replace(host, manifest=host.manifest | {"libc": "musl 1.2"})
    with pytest.raises(ValueError, match=r"linked with musl 1\.2; wheels need glibc"):
        tool.platform_wheel(tmp_path / "x-none-any.whl", musl, [], tmp_path)


def test_kernels_can_be_named(tool: ModuleType) -> None:
    (kernel,) = tool.kernels_of_gpus("sm_80", (FOR_GPUS,))
    assert kernel == parse_kernel_name_into_instance(FOR_GPUS)
    assert tool.kernels_of_gpus("sm_80", ("none",)) == tool.kernels_of_cpus(("none",)) == []


def test_first_calls_on_a_cpu_are_among_the_kernels(tool: ModuleType) -> None:
    found = {kernel.name for kernel in tool.kernels_of_cpus()}
    assert {EMULATED, FOR_GPUS} <= found
    assert len(found) < 100


def test_kernels_of_every_operation_come_for_gpus(tool: ModuleType) -> None:
    for arch in ("sm_80", "sm_90a"):
        kernels = tool.kernels_of_gpus(arch)
        assert {kernel.config.operation for kernel in kernels} == {"forward", "backward", "decode"}
        assert [kernel.name for kernel in kernels if kernel.config.problems(arch)] == []
