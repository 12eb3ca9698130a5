"""`flashsmith report`: the page, and the same facts as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.lab.report import Report, collect, document_of, read_results
from support.paths import RESULTS, ROOT
from support.report import LAST_SM90, PLAIN, PLAIN_SM90, SWIZZLED, sm80_report, sm90_report, text_of


def test_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect._Collector, "_cuda_modules", lambda *_: {})
    out = tmp_path / "deep" / "page.html"
    arguments = ["report", PLAIN.name, SWIZZLED.name, "--results", str(RESULTS), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "5.9 times as fast" in text_of(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["--arch", "sm_10"], "sm_10"),
        (["--results", "/nowhere"], "/nowhere"),
        (["--results", str(RESULTS), "--gpu", "B200"], "B200"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["report", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_json_has_the_facts_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collect._Collector, "_cuda_modules", lambda *_: {})
    arguments = ["report", PLAIN_SM90.name, LAST_SM90.name, "--results", str(RESULTS), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert not list(tmp_path.iterdir())  # no page
    document = json.loads(result.stdout)
    assert document["gpu"] == "NVIDIA H200"
    (group,) = document["groups"]
    assert (group["family"], group["dtype"], group["d_head"]) == ("sm90", "BF16", 128)
    plain, last = group["kernels"]
    assert [field["field"] for field in plain["fields"]][:3] == ["dtype", "d_head", "B_r"]
    assert plain["time"]["ms"] == 1.07338
    assert plain["time"]["tflops"] == 512.2
    assert last["counts"]["per_visit"]["wgmma"] == 32
    assert "cp_async" not in last["counts"]["launch"]
    assert last["busy_share"]["tensor cores"] == pytest.approx(
        last["busy_ms"]["tensor cores"] / last["time"]["ms"]
    )
    assert sum(part["bytes"] for part in last["shared_memory"]) == 196736
    assert {peer["name"] for peer in group["peers"]} >= {"FlashAttention-4", "cuDNN"}
    assert [each["family"] for each in group["faster"]] == ["sm90"]
    (step,) = group["steps"]
    assert "Q_steps_in_registers 0 to 8" in step["changes"]
    assert {row["seq_len"] for row in group["sweep"]["flashsmith sm90, best"]} >= {512, 16384}
    assert group["rates"]["matmul_tflops"] == pytest.approx(686, abs=0.5)


@pytest.mark.parametrize("report", [sm80_report, sm90_report])
def test_the_document_is_plain(report: Callable[[], Report]) -> None:
    document = document_of(report())
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_kernel_that_the_architecture_lacks_is_refused_before_anything_is_built() -> None:
    result = CliRunner().invoke(app, ["report", LAST_SM90.name, "--arch", "sm_80"])
    assert result.exit_code == 2
    assert "the instructions of the sm90 family exist on 9.0 alone" in " ".join(
        result.stderr.split()
    )


def test_a_wheel_brings_the_results(tmp_path: Path) -> None:
    """The wheel is built as `pip wheel` does, unpacked, and read from outside the checkout."""
    pytest.importorskip("hatchling")
    code = "import sys, hatchling.build as h; print(h.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        results = [each for each in archive.infolist() if "/results/" in each.filename]
        assert {Path(each.filename).suffix for each in results} == {".csv", ".json"}
        assert sum(each.compress_size for each in results) < 300_000
        archive.extractall(tmp_path / "site")
    read = (
        "from flashsmith.lab.report.results import find_results, read_results; "
        "folder = find_results();"
        "print(folder, len(read_results(folder).times))"
    )
    done = subprocess.run(
        [sys.executable, "-c", read],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    folder, times = done.stdout.split()
    assert Path(folder).is_relative_to(tmp_path / "site" / "flashsmith")
    assert int(times) == len(read_results(RESULTS).times)
