"""The lint in a build: what is refused, what is recorded, and what is reported without a tool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import support.tiny_build as tiny
from flashsmith import codegen
from flashsmith.cli import app
from flashsmith.configs import (
    KernelId,
    get_sm90_kernel_progression_configs,
    parse_kernel_name_into_instance,
)
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit import (
    KernelCache,
    Module,
    SourceTree,
    Target,
    build_kernels,
    disassembler,
    find_cuda_toolkit,
    find_cxx,
    why_not_linted,
)
from flashsmith.jit.disassembler import find_cuobjdump
from flashsmith.jit.kernel_compilers import NvccCompiler
from flashsmith.jit.lint import Lint, lint_machine_code
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.units import plan_kernels
from support.listings import DATA

SM_90A = Target.cuda("sm_90a")
INSTANCE = KernelId(get_sm90_kernel_progression_configs()[0])


@pytest.fixture
def nvcc(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHSMITH_CUDA_COMPILER", "nvcc")
    try:
        return find_cuda_toolkit().nvcc.path
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture
def cuobjdump() -> Path:
    try:
        return find_cuobjdump()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture
def no_cuobjdump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembler, "_tool_folders", lambda: iter([]))


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tiny.make_csrc(tmp_path / "csrc")


def build(csrc: Path, kernel: str, force: bool = False) -> Module:
    """Builds a module with a kernel of release.cu, under the name of a real kernel."""

    def generate(instances: Sequence[KernelId]) -> dict[str, str]:
        text = (DATA / "release.cu").read_text()
        start = text.index(f'extern "C" __global__ void {kernel}(')
        device_code = (
            text[: text.index('extern "C"')] + text[start : text.index("\n}\n", start) + 3]
        )
        files = tiny.generate(instances)
        return {
            name: body + device_code if name.endswith(".cu") else body
            for name, body in files.items()
        }

    sources = SourceTree(csrc, generate)
    (module,) = build_kernels([INSTANCE], SM_90A, jobs=1, sources=sources, force=force)
    return module


def manifests() -> list[dict[str, Any]]:
    """Returns the manifests of the kernels in the cache."""
    cache = KernelCache()
    return [each for entry in cache.entries(cache.kernels) if (each := cache.read(entry))]


@pytest.mark.parametrize("kernel", ["arrives_early", "arrives_in_loop"])
def test_an_early_arrival_is_refused(
    nvcc: Path, cuobjdump: Path, csrc: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BuildError) as caught:
        build(csrc, kernel)
    message = str(caught.value)
    for part in (
        f"{INSTANCE.name}: SYNCS.ARRIVE.TRANS64",
        "(sm_90a) is issued while loads from shared memory may be in flight: LDSM.16.M88.4 at 0x",
        "fence.proxy.async",
        "docs/troubleshooting.md",
    ):
        assert part in message
    (manifest,) = manifests()
    assert manifest["lint"]["early_releases"][0]["function"] == kernel
    assert manifest["lint"]["not_linted"] == []
    # The module stays, and is refused again without a second compilation or lint.
    monkeypatch.setattr(disassembler, "_tool_folders", lambda: pytest.fail("linted again"))
    with pytest.raises(BuildError) as again:
        build(csrc, kernel)
    assert str(again.value) == message
    assert manifests() == [manifest]


@pytest.mark.parametrize("kernel", ["arrives_after_use", "arrives_behind_fence"])
def test_an_arrival_after_the_load_has_arrived_is_built(
    nvcc: Path, cuobjdump: Path, csrc: Path, kernel: str
) -> None:
    assert why_not_linted([build(csrc, kernel)]) == {}
    (manifest,) = manifests()
    assert manifest["lint"] == {"early_releases": [], "not_linted": []}
    # A listing is twenty times as long as a module, so none is kept.
    assert not [path for path in KernelCache().root.rglob("*") if "sass" in path.name]


@pytest.mark.parametrize(
    "name",
    [
        # The first kernel has all of Q in registers, released by an arrival; the second has a part
        # of Q.
        "(BF16, 128, 128, 128, 2): wgmma+stages_2+q_regs_8+overlap+persistent+queue+tiles+lazy_8"
        "+stale+tma_store",
        "(FP16, 192, 128, 64, 2): wgmma+stages_2+q_regs_4+overlap+ping_pong+persistent+queue"
        "+lazy_8+tma_store causal",
    ],
)
def test_kernels_with_Q_in_registers_pass(
    nvcc: Path, cuobjdump: Path, tmp_path: Path, name: str
) -> None:
    instance = parse_kernel_name_into_instance(name)
    generated = codegen.generate([instance])
    compiler = NvccCompiler(find_cuda_toolkit(), find_cxx())
    (unit,) = plan_kernels([instance], generated, SM_90A, compiler, PACKAGE_SOURCES.csrc)
    source = tmp_path / unit.source_file
    source.write_text(unit.files[unit.source_file])
    cubin = tmp_path / unit.artifact
    subprocess.run([*unit.command, source, "-o", cubin], check=True)
    assert unit.is_linted
    text = disassembler.disassemble(cubin, "sm_90a")
    assert lint_machine_code(text, [unit.arch]) == Lint()
    assert "LDSM" in text


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_100a", "sm_103a", "sm_110a", "sm_120a"])
def test_other_architectures_are_decoded(
    nvcc: Path, cuobjdump: Path, tmp_path: Path, arch: str
) -> None:
    """The lint finds an early arrival, and none behind a use; on sm_8x ptxas adds a wait itself."""
    text = compile_and_disassemble(nvcc, tmp_path, arch)
    lint = lint_machine_code(text)
    assert lint.not_linted == ()
    early = set() if arch.startswith("sm_8") else {"arrives_early", "arrives_in_loop"}
    assert {found.function for found in lint.early_releases} == early


def compile_and_disassemble(nvcc: Path, folder: Path, arch: str) -> str:
    command = [nvcc, f"-arch={arch}", "-c", DATA / "release.cu", "-o", folder / "release.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{nvcc} does not compile for {arch}: {done.stderr}")
    return disassembler.disassemble(folder / "release.o", arch)


def test_without_a_disassembler_kernels_are_built_and_said_not_to_be_linted(
    nvcc: Path, csrc: Path, no_cuobjdump: None
) -> None:
    ((reason, count),) = why_not_linted([build(csrc, "arrives_early")]).items()
    assert count == 1
    assert "no cuobjdump with nvdisasm was found" in reason
    assert "pip install 'flashsmith[report]'" in reason
    assert all(each["lint"]["not_linted"] == [reason] for each in manifests())


def test_once_there_is_one_force_lints(
    nvcc: Path, cuobjdump: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(disassembler, "_tool_folders", lambda: iter([]))
        assert build(csrc, "arrives_early").lint.not_linted
    with pytest.raises(BuildError, match="may be in flight"):
        build(csrc, "arrives_early", force=True)


def test_a_disassembler_that_fails_is_named(
    nvcc: Path, csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools $x"
    tools.mkdir()
    for name in ("cuobjdump", "nvdisasm"):
        (tools / name).write_text(
            "#!/bin/sh\necho half a listing\necho 'no such arch' >&2\nexit 1\n"
        )
        (tools / name).chmod(0o755)
    monkeypatch.setattr(disassembler, "_tool_folders", lambda: iter([tools]))
    found = build(csrc, "arrives_early").lint.not_linted
    assert found == ("cuobjdump failed: no such arch",)


def test_the_emulator_has_no_machine_code(csrc: Path, no_cuobjdump: None) -> None:
    sources = SourceTree(csrc, tiny.generate)
    assert why_not_linted(build_kernels([INSTANCE], Target.emulator(), sources=sources)) == {}


# ---- what the command line reports ----


@pytest.mark.parametrize("reasons", [[], ["no cuobjdump was found; install it"]])
def test_build_says_in_one_line_what_was_not_linted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reasons: list[str]
) -> None:
    manifest = {
        "name": INSTANCE.name,
        "config": {"dtype": INSTANCE.config.dtype, "d_head": 128},
        "target": {"kind": "cuda", "archs": ["sm_90a"]},
        "dynamic_shared_bytes": 0,
        "resources": [],
        "lint": {"early_releases": [], "not_linted": reasons},
        "artifact": {"file": "kernel.cubin"},
    }
    modules = [Module(tmp_path, manifest), Module(tmp_path, manifest)]
    monkeypatch.setattr("flashsmith.cli.build.build_kernels", lambda *_, **__: modules)
    command = ["build", "-k", "prog", "--target", "cuda", "--arch", "sm_90a"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "not linted" in line]
    assert len(lines) == len(reasons)
    if reasons:
        assert "the machine code of 2 kernels was not linted: no cuobjdump was found" in lines[0]
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document["not_linted"] == dict.fromkeys(reasons, 2)


def test_doctor_says_whether_builds_lint(cuobjdump: Path) -> None:
    assert doctor_check() == {
        "name": "cuobjdump",
        "ok": True,
        "found": f"{cuobjdump}; builds lint their machine code",
        "advice": "",
    }


def test_doctor_says_how_to_get_a_disassembler(no_cuobjdump: None) -> None:
    check = doctor_check()
    assert not check["ok"]
    assert "pip install 'flashsmith[report]'" in check["found"]
    assert "built all the same, but not linted" in check["found"]


def doctor_check() -> dict[str, Any]:
    document = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    (check,) = (each for each in document["checks"] if each["name"] == "cuobjdump")
    return dict(check)
