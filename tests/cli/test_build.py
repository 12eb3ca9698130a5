"""`flashsmith build` and `flashsmith cache`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.errors import ToolchainError
from flashsmith.jit import KernelCache
from flashsmith.jit.locks import FileLock
from flashsmith.lab.commands import build as lab_build
from flashsmith.lab.commands.driver import Gpu
from support.cli import (
    FITTING,
    PLAIN,
    invoke,
    invoke_json,
    refused,
)


def test_build_reports_the_cache_and_the_kernels() -> None:
    args = ("build", "--target", "emulator", "-k", PLAIN, "-k", FITTING)
    built = invoke_json(*args)
    modules = {row["module"] for row in built["kernels"]}
    assert all(Path(module).is_file() for module in modules) and len(modules) == 2
    assert (built["target"], built["archs"]) == ("emulator", [])
    assert {row["kernel"] for row in built["kernels"]} == {PLAIN, FITTING}
    listed = invoke_json("configs", "--built", PLAIN)["kernels"]
    assert modules & {row["module"] for row in listed}
    assert {row["kernel"].removesuffix(" causal") for row in listed} == {PLAIN}
    assert PLAIN not in {
        row["kernel"] for row in invoke_json("configs", "--built", "--d-head", "128")["kernels"]
    }
    again = invoke(*args)
    assert f"| {PLAIN} " in again.stdout
    assert built["cache"] in again.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")
def test_build_for_a_gpu_reports_what_ptxas_says() -> None:
    built = invoke_json("build", "--arch", "8.0", "-k", FITTING)
    (row,) = built["kernels"]
    assert (built["target"], built["archs"], row["arch"]) == ("cuda", ["sm_80"], "sm_80")
    assert 32 < row["registers"] <= 255
    assert row["spilled_bytes"] == 0
    assert row["shared_bytes"] == parse_kernel_name_into_config(FITTING).shared_memory_bytes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "tpu"), "target is 'tpu'; supported are 'cuda' and 'emulator'"),
        (("--arch", "sm_75"), "need compute capability 8.0"),
        (("--arch", "sm90"), "arch is 'sm90'; write it like 'sm_80'"),
        (("--target", "emulator", "--arch", "sm_80"), "the emulator has none"),
        (("--kernels", "nothing"), "kernels key 'nothing'"),
        (("--mask", "full,sliding"), "variant 'sliding' is not known; supported: full, causal"),
        (("--target", "emulator", "-k", PLAIN.replace("64, 4)", "64, 8)")), "cannot be built"),
    ],
)
def test_build_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("build", *args)


def test_build_without_a_compiler_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    args = ("build", "--target", "emulator", "--force", "-k", PLAIN)
    assert "install g++" in refused(*args, code=1)


def test_target_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_nvcc() -> None:
        raise ToolchainError("none")

    def found(*capabilities: tuple[int, int]) -> Callable[[], tuple[list[Gpu], str]]:
        return lambda: ([Gpu("GPU", pair, "1 MiB", "1") for pair in capabilities], "")

    monkeypatch.setattr(lab_build, "find_gpus", found((9, 0), (7, 5), (8, 6), (9, 0)))
    assert lab_build.choose_target("cuda", [], [], print).archs == ("sm_86", "sm_90a")
    monkeypatch.setattr(lab_build, "find_gpus", found((7, 5)))
    assert lab_build.choose_target("cuda", [], [], print).archs == ("sm_80", "sm_90a")
    monkeypatch.setenv("FLASHSMITH_ARCH", "sm_89")
    assert lab_build.choose_target("cuda", [], [], print).archs == ("sm_89",)
    assert lab_build.choose_target(None, ["sm_90a,8.0"], [], print).archs == ("sm_80", "sm_90a")
    monkeypatch.setattr(lab_build, "find_cuda_toolkit", no_nvcc)
    assert lab_build.choose_target(None, [], [], print).kind == "emulator"


def test_cache_is_cleared_only_when_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(root))
    assert invoke_json("cache", "path") == {"path": str(root)}
    assert invoke_json("cache", "clear")["entries"] == 0
    module = root / "kernels" / "some"
    module.mkdir(parents=True)
    (module / "kernel.so").write_bytes(b"x" * 1000)
    mine = root / "notes.txt"
    mine.write_text("not the cache's")
    assert "--yes" in refused("cache", "clear")
    assert module.exists()
    cleared = invoke_json("cache", "clear", "--yes")
    assert (cleared["entries"], cleared["freed_bytes"]) == (1, 1000)
    assert not module.exists()
    assert mine.exists()


def test_clearing_takes_what_no_kernel_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything goes except a lock that is held: if its file went, another process could take the
    same lock."""
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    KernelCache().create()
    mods, locks = tmp_path / "cache" / "mods", tmp_path / "cache" / "locks"
    mods.mkdir()
    (mods / "0123456789ab.txt").write_text("buffers\n")
    for name in ("free", "held"):
        (locks / f"{name}.lock").touch()
    with FileLock(locks / "held.lock"):
        invoke_json("cache", "clear", "--yes")
    assert list(mods.iterdir()) == []
    assert [path.name for path in locks.iterdir()] == ["held.lock"]
    invoke_json("cache", "clear", "--yes")
    assert list(locks.iterdir()) == []
