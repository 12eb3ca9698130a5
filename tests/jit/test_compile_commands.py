"""compile_commands.json: an editor can compile every file of host and kernels with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import support.tiny_build as tiny
from flashsmith.cli import app
from flashsmith.errors import ToolchainError
from flashsmith.jit import SourceTree, Target, build_kernels, compile_commands, find_cuda_toolkit
from flashsmith.jit.compile_commands import Command
from support.tiny_build import EMULATOR, INSTANCES

CUDA = Target.cuda("sm_80", "sm_90a")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceTree:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return SourceTree(tiny.make_csrc(tmp_path / "csrc"), tiny.generate)


def test_every_command_compiles_its_file(sources: SourceTree) -> None:
    build_kernels(INSTANCES[:2], EMULATOR, sources=sources)
    commands = compile_commands(INSTANCES[:2], EMULATOR, sources=sources)
    for command in commands:
        assert command["arguments"][-1] == command["file"]
        arguments = [*command["arguments"], "-fsyntax-only"]
        subprocess.run(arguments, cwd=str(command["directory"]), check=True)
    files = [str(command["file"]) for command in commands]
    assert files[:2] == [
        str(sources.csrc / name) for name in ("host/tiny.cpp", "emulator/memory.cpp")
    ]
    assert [Path(file).stem for file in files[2:]] == [each.slug for each in INSTANCES[:2]]


def test_what_was_not_built_has_no_command(sources: SourceTree) -> None:
    host_files = ["tiny", "memory"]  # the host library is built for the commands
    assert names(compile_commands(INSTANCES[:2], EMULATOR, sources=sources)) == host_files
    build_kernels(INSTANCES[:1], EMULATOR, sources=sources)
    commands = compile_commands(INSTANCES[:2], EMULATOR, sources=sources)
    assert names(commands) == [*host_files, INSTANCES[0].slug]


def names(commands: list[Command]) -> list[str]:
    return [Path(str(command["file"])).stem for command in commands]


def test_kernels_for_nvcc_have_commands_for_clang(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "nvcc")
    try:
        toolkit = find_cuda_toolkit()
    except ToolchainError as error:
        pytest.skip(f"needs nvcc: {error}")
    build_kernels(INSTANCES[:1], CUDA, sources=sources)
    host, _, kernel = compile_commands(INSTANCES[:1], CUDA, sources=sources)
    assert host["file"] == str(sources.csrc / "host/tiny.cpp")
    assert kernel["arguments"] == [
        "clang++",
        "-x",
        "cuda",
        f"--cuda-path={toolkit.root}",
        "--cuda-gpu-arch=sm_90a",
        "-std=c++20",
        f"-I{sources.csrc / 'include'}",
        kernel["file"],
    ]


KERNEL = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"


def test_build_writes_them_for_the_emulator_unless_a_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "compile_commands.json").write_text("from before")
    args = ["build", "-k", KERNEL, "--compile-commands", str(tmp_path)]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    assert f"compile_commands.json: the commands of {len(commands)} files" in result.stderr
    assert all("-DFLASHSMITH_EMULATOR" in command["arguments"] for command in commands)
    for command in commands:
        if Path(command["file"]).name in ("exports.cpp", "block.cpp") or ".cu" in command["file"]:
            arguments = [*command["arguments"], "-fsyntax-only"]
            subprocess.run(arguments, cwd=command["directory"], check=True)


def test_a_folder_that_is_not_there_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    args = ["build", "-k", KERNEL, "--compile-commands", str(tmp_path / "nowhere")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert "--compile-commands" in result.stderr
    assert "cannot be written" in result.stderr
    assert "compilers at a time" not in result.stderr


def test_a_named_architecture_is_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLASHSMITH_NVCC", "/nowhere/nvcc")
    args = ["build", "-k", KERNEL, "--arch", "sm_80", "--compile-commands", str(tmp_path)]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 1
    assert "FLASHSMITH_NVCC is /nowhere/nvcc" in result.stderr
    assert not (tmp_path / "cache").exists()  # it is said before the host library is compiled
