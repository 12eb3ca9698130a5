"""The package as a kernel of the Hugging Face Hub, loaded by the package `kernels`."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flashsmith
from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.flash_attn import hub
from flashsmith.jit import Target, build_host, build_kernels, caches
from support.cli import FITTING, invoke, invoke_json, refused
from support.paths import TESTS

kernels = pytest.importorskip("kernels", reason="pip install kernels")
rust = pytest.importorskip("kernels._rust")

DECODE = "(FP16, 64, 16, 32, 4): decode+stages_3+blocks_2"
# The calls of support.hub_calls need these kernels.
NAMES = [f"{FITTING} {variant}" for variant in ("causal", "causal+varlen", "sinks")]
NAMES += [DECODE, f"{DECODE} sinks"]
FUNCTIONS = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def fill(folder: Path, names: list[str], target: Target) -> Path:
    """Returns a folder like those of `flashsmith build --out`, filled from the session's cache."""
    modules = build_kernels(map(parse_kernel_name_into_instance, names), target)
    for each in (*(module.directory for module in modules), build_host().directory):
        to = folder / each.parent.name / each.name
        if not to.exists():
            shutil.copytree(each, to)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("built"), NAMES, Target.emulator())


@pytest.fixture(scope="module")
def repository(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "repository"
    invoke("hub", "--from", built, "--out", folder)
    return folder


def variant_of(repository: Path, compute: str = "cpu") -> Path:
    (found,) = (repository / "build").glob(f"*-{compute}-*")
    return found


def metadata_of(variant: Path) -> dict[str, Any]:
    return dict(json.loads((variant / "metadata.json").read_text()))


def linked(repository: Path, to: Path) -> Path:
    """Returns the repository as the hub's cache keeps it: every file is a link."""
    for path in repository.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            blob = to / "blobs" / hashlib.sha256(content).hexdigest()
            link = to / "snapshots" / path.relative_to(repository)
            for folder in (blob.parent, link.parent):
                folder.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link.symlink_to(blob)
    return to / "snapshots"


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs Python where flashsmith is not imported yet."""
    outside = [each for each in sys.path if not (Path(each) / "flashsmith").is_dir()]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *outside]),
        "HF_HUB_OFFLINE": "1",
        **settings,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


# ---- the folder ----


def test_the_layout_is_that_of_kernel_builder(repository: Path) -> None:
    variant = variant_of(repository)
    parsed = kernels.variants.parse_variant(variant.name)
    assert isinstance(parsed.framework, kernels.variants.TvmFfi)
    assert sorted(each.name for each in repository.iterdir()) == ["README.md", "build"]
    assert (repository / "README.md").read_text().startswith("---\nlibrary_name: kernels\n")
    metadata = rust.Metadata.read_from_file(variant / "metadata.json")
    assert (str(metadata.name), metadata.version) == ("flashsmith", 1)
    assert metadata.id.isidentifier()
    metadata.digest.validate(rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, variant))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")
def test_kernels_for_gpus_are_a_variant_of_their_own(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "built"))
    written = invoke_json("hub", "--from", copy, "--out", tmp_path / "hub")["variants"]
    cpu = variant_of(tmp_path / "hub")
    before = metadata_of(cpu)
    fill(copy, [FITTING], Target.cuda("sm_80"))
    both = invoke_json("hub", "--from", copy, "--out", tmp_path / "hub")["variants"]
    cuda = kernels.variants.parse_variant(both[1]["variant"]).arch.backend
    assert (both[1]["archs"], both[1]["kernels"]) == (["8.0"], 1)
    assert cuda.version >= kernels.backends.Version("12.8")
    metadata = metadata_of(variant_of(tmp_path / "hub", cuda.variant_str))
    assert metadata["backend"] == {"type": "cuda", "archs": ["8.0"]}
    assert both[:1] == written and written[0]["kernels"] == len(NAMES)
    assert metadata_of(cpu) == before  # the same files have the same id
    assert metadata["id"] != before["id"]


def test_what_people_wrote_stays(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "build" / "tvm-ffi01-cu126-x86_64-linux"
    other.mkdir(parents=True)
    (tmp_path / "README.md").write_text("mine")
    invoke("hub", "--from", built, "--out", tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert other.is_dir()
    variant = variant_of(tmp_path)
    (variant / "metadata.json").write_text('{"name": "another"}')
    message = refused("hub", "--from", built, "--out", tmp_path)
    assert f"{variant} exists and is no variant of flashsmith" in message


def test_no_kernels(tmp_path: Path) -> None:
    message = refused("hub", "--from", tmp_path, "--out", tmp_path / "hub", code=1)
    assert "no built host library" in message
    assert "flashsmith build --for-attention" in message
    assert not (tmp_path / "hub").exists()
    assert "is no folder" in refused("hub", "--from", tmp_path / "x", "--out", tmp_path / "hub")


# ---- loaded ----


@pytest.mark.parametrize("links", [False, True], ids=["folder", "cache of the hub"])
def test_all_functions_compute_without_a_compiler(
    repository: Path, tmp_path: Path, links: bool
) -> None:
    """The process has the kernels of the folder alone, and no package that only builds need."""
    folder = linked(repository, tmp_path / "hub") if links else repository
    done = run(
        "-m", "support.hub_calls", str(folder),
        FLASHSMITH_BUILD="0", FLASHSMITH_CACHE_DIR=str(tmp_path / "empty"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["package"]).is_relative_to(variant_of(folder))
    assert found["id"] == metadata_of(variant_of(folder))["id"]
    assert {*FUNCTIONS, "attention", "decode", "s_aux", "s_aux of decode"} == {*found["errors"]}
    for name, (ours, torchs) in found["errors"].items():
        assert 0 < ours <= 2 * torchs < 0.01, name


def test_models_of_transformers(repository: Path) -> None:
    """Kernels that are not in the folder are built into the cache."""
    pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    done = run("-m", "support.hub_models", str(repository))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as eager\n"


def test_an_imported_flashsmith_of_this_version_gets_the_kernels(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "_prebuilt", [*caches._prebuilt])
    loaded = kernels.get_local_kernel(repository)
    assert {name: getattr(loaded, name) for name in loaded.__all__} == {
        name: getattr(hub, name) for name in hub.__all__
    }
    prebuilt = variant_of(repository) / "_package" / "flashsmith" / "prebuilt"
    assert prebuilt in {each.root for each in caches.find_caches()}


def test_an_imported_flashsmith_of_another_version_is_refused(repository: Path) -> None:
    program = (
        "import sys, types, pathlib, kernels\n"
        "other = sys.modules['flashsmith'] = types.ModuleType('flashsmith')\n"
        "other.__version__, other.__file__ = '0.0.1', 'elsewhere'\n"
        f"kernels.get_local_kernel(pathlib.Path({str(repository)!r}))\n"
    )
    done = run("-c", program)
    (message,) = (line for line in done.stderr.splitlines() if line.startswith("ImportError"))
    assert "flashsmith 0.0.1 is imported already, from elsewhere" in message
    assert f"this kernel is flashsmith {flashsmith.__version__}" in message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sinks_have_the_name_of_transformers(name: str) -> None:
    """transformers passes only what is in the signature."""
    added = inspect.signature(getattr(hub, name)).parameters.keys()
    assert added - inspect.signature(getattr(flashsmith.flash_attn, name)).parameters == {"s_aux"}
    with pytest.raises(TypeError, match="pass one of them"):
        getattr(hub, name)(sinks=1, s_aux=1)
