"""The kernels, workloads and device that the shared options of the commands stand for."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import flashsmith
from flashsmith import settings
from flashsmith.cli import app
from flashsmith.cli.options import make_request, parse_peers
from flashsmith.configs import CAUSAL, FULL, DType
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.commands.request import Grid

PACKAGE = Path(flashsmith.__file__).parent
GRID = Grid((64, 128), tokens=256, hidden=128)
PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.KERNELS.name, raising=False)


def test_kernels_are_as_named_else_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_request().words == ()
    monkeypatch.setenv(settings.KERNELS.name, "prog")
    assert make_request().words == ("prog",)
    assert make_request(kernels=[PLAIN, "tune"]).words == (PLAIN, "tune")


def test_kernels_are_those_of_every_dtype_d_head_and_mask() -> None:
    request = make_request(kernels=["prog"], dtypes="fp16,bf16", d_heads="64,96", masks="full")
    kinds = {(each.config.dtype, each.config.d_head) for each in request.instances()}
    assert kinds == {(dtype, d_head) for dtype in DType for d_head in (64, 96)}
    both = make_request(kernels=[PLAIN], masks="causal,full,causal").instances()
    assert [each.variant for each in both] == [CAUSAL, FULL]
    assert {each.name for each in make_request().instances("prog")} == {
        each.name for each in make_request(kernels=["prog"]).instances()
    }


def test_what_is_not_asked_for_is_left_in() -> None:
    assert make_request().takes(DType.BF16, 256)
    narrow = make_request(dtype="fp16", d_heads="64,96")
    assert narrow.takes(DType.FP16, 96)
    assert not narrow.takes(DType.BF16, 96)
    assert not narrow.takes(DType.FP16, 128)


def test_workloads_have_the_sizes_of_the_options_and_else_of_the_command() -> None:
    request = make_request(dtypes="fp16", d_heads="64", masks="full,causal")
    sizes = [str(workload) for workload in request.workloads(GRID)]
    assert sizes == [
        f"FP16 d 64 {mask} {batch} x 2 x {seq_len}"
        for mask in ("full", "causal")
        for batch, seq_len in ((4, 64), (2, 128))
    ]
    own = make_request(dtypes="fp16", d_heads="64", seq_lens="32", batch=3, heads=5)
    assert [str(workload) for workload in own.workloads(GRID)] == ["FP16 d 64 full 3 x 5 x 32"]


def test_peers_are_those_here_or_none_or_as_named() -> None:
    assert parse_peers("available") is None
    assert parse_peers("none") == parse_peers("") == []
    assert parse_peers("FA2, cudnn") == ["fa2", "cudnn"]
    assert set(parse_peers(",".join(PEERS)) or []) == set(PEERS)


def test_one_option_has_one_spelling_in_all_commands() -> None:
    spellings: dict[str, set[str]] = defaultdict(set)
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                spellings[parameter.name].add(parameter.opts[0])
    assert {name: spelled for name, spelled in spellings.items() if len(spelled) > 1} == {}
    assert "--out" in spellings["out"]


@pytest.mark.parametrize(
    ("command", "old"), [("run", "--output"), ("tune", "--fresh"), ("profile", "--runs")]
)
def test_an_option_has_no_second_name(command: str, old: str) -> None:
    result = CliRunner().invoke(app, [command, old, "1"])
    assert result.exit_code == 2
    assert f"No such option: {old}" in result.stderr


def imports_of(path: Path) -> set[str]:
    """Returns the full names, such as `flashsmith.runtime.load_kernels`, that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "lab").glob("*.py")), ids=lambda path: path.stem)
def test_the_laboratory_prints_nothing(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & {"typer", "rich"}
    calls = {
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    }
    assert not any(isinstance(func, ast.Name) and func.id == "print" for func in calls)


COMMANDS = [path for path in sorted((PACKAGE / "cli").glob("*.py")) if path.stem != "doctor"]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_the_command_line_runs_no_kernel(path: Path) -> None:
    """The command line needs words alone. The doctor may look whether torch is installed."""
    parts = ("runtime.load", "runtime.find", "runtime.emulation", "ops", "reference")
    running = ("torch", *(f"flashsmith.{part}" for part in parts))
    assert [name for name in imports_of(path) if name.startswith(running)] == []
