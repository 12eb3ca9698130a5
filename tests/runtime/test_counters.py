"""Tables of the emulator's counters: the kernels at hand, explained and ranked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.configs import get_sm90_autotuning_kernel_configs
from flashsmith.lab.bench.results import CountRow, columns_of
from flashsmith.lab.tuning.ranking import counting_arch, memory_work
from flashsmith.runtime.counters import COUNTERS, IN_TABLES, explain_headings, table_of
from support.paths import ROOT
from support.report import PLAIN, SWIZZLED
from support.sm90_kernels import LAST, PROGRESSION

SM90 = [PROGRESSION[0].short_form(), LAST.short_form()]
SHAPE = ("--dtype", "bf16", "--tokens", "128", "--hidden", "128")


def invoke(*args: object) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def headings_of(table: str) -> list[str]:
    """Returns the column headings of the first Markdown table."""
    first = next(line for line in table.splitlines() if line.startswith("|"))
    return [cell.strip() for cell in first.strip("|").split("|")]


def test_every_counter_is_explained() -> None:
    text = (ROOT / "src/flashsmith/csrc/emulator/launch.h").read_text()
    struct = text[text.index("struct Counters {") : text.index("void add(")]
    declared = set(re.findall(r"(\w+) = 0", struct))
    assert set(COUNTERS) - {"bank_conflicts"} == declared
    headings = [counter.heading for counter in COUNTERS.values()]
    assert len(headings) == len(set(headings))
    assert set(IN_TABLES) <= set(COUNTERS)


def test_what_is_zero_everywhere_is_left_out() -> None:
    headings, cells = table_of([{"mma": 4, "wgmma": 0, "ldmatrix": 0}, {"mma": 0, "ldmatrix": 2}])
    assert headings == ["mma", "ldmatrix"]
    assert cells == [[4, 0], [0, 2]]
    assert table_of([{}, {}]) == ([], [[], []])


def test_conflicts_are_what_goes_beyond_the_ideal() -> None:
    headings, cells = table_of([{"shared_wavefronts": 10, "shared_wavefronts_ideal": 4}])
    assert dict(zip(headings, cells[0], strict=True)) == {
        "smem wavefronts": 10, "bank conflicts": 6,
    }  # fmt: skip


def test_headings_are_explained_in_one_line() -> None:
    line = explain_headings(["wgmma", "kernel", "TMA load B"])
    assert line.startswith("wgmma: matrix products of a warpgroup")
    assert "; TMA load B: bytes of" in line
    assert "kernel" not in line
    assert "\n" not in line


def test_run_shows_the_counts_of_the_family() -> None:
    names = [word for name in SM90 for word in ("-k", name)]
    out, err = invoke("run", *names, "--device", "cpu", "--seq-len", 128, "--heads", 1)
    headings = headings_of(out)
    assert {"wgmma", "wgmma smem B", "TMA load B", "TMA store B", "mbarrier waits"} <= set(headings)
    assert not {"mma", "cp.async", "bank conflicts"} & set(headings)
    (said,) = (line for line in err.splitlines() if line.startswith("counted: "))
    for heading in headings[4:]:
        assert f"{heading}: " in said
    out, _ = invoke("run", "-k", SWIZZLED.name, "--device", "cpu", "--seq-len", 64, "--heads", 1)
    assert {"mma", "ldmatrix", "cp.async"} <= set(headings_of(out))
    assert not {"wgmma", "TMA load B"} & set(headings_of(out))


def test_bench_counts_both_families(tmp_path: Path) -> None:
    out, err = invoke("bench", "--emulator-counts", "-k", SM90[1], *SHAPE, "--out", tmp_path)
    assert "wgmma" in headings_of(out)
    assert "mma" not in headings_of(out)
    assert "wgmma: matrix products of a warpgroup" in err
    markdown = (tmp_path / "counts.md").read_text()
    assert "| wgmma |" in markdown
    assert "wgmma: matrix products of a warpgroup" in markdown
    header, row, *_ = (tmp_path / "counts.csv").read_text().splitlines()
    assert header == ",".join(columns_of(CountRow))
    # Full attention at 128 is one visit: two warpgroups have 8 steps of Q K^T and 8 of P V.
    wgmma = header.split(",").index("wgmma")
    assert re.sub(r'".*?"', "", row).split(",")[wgmma] == "32"


def test_sm90_kernels_are_ranked_without_a_gpu() -> None:
    names = [word for name in SM90 for word in ("-k", name)]
    command = ["tune", "--emulator-counts", *names, *SHAPE, "--d-head", "128"]
    out, err = invoke(*command)
    assert "wgmma smem B" in headings_of(out)
    assert "ranked by bytes of shared memory" in err
    rows = json.loads(invoke(*command, "--json")[0])["rows"]
    assert {row["kernel"] for row in rows} >= set(SM90)
    for mask in ("full", "causal"):
        work = [memory_work(row) for row in rows if row["mask"] == mask]
        assert len(work) >= len(SM90)
        assert work == sorted(work)
    assert all(row["wgmma"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"shared_wavefronts": 1}, {"shared_wavefronts": 2}),
        ({"shared_wavefronts": 3}, {"wgmma_shared_bytes": 4 * 128}),
        ({"wgmma_shared_bytes": 256}, {"wgmma_shared_bytes": 128, "tma_load_bytes": 256}),
        ({"global_load_sectors": 1}, {"global_load_sectors": 1, "global_store_sectors": 1}),
        ({"ldmatrix": 1, "shared_wavefronts": 4}, {"ldmatrix": 2, "shared_wavefronts": 4}),
        ({"mbarrier_waits": 9}, {"global_load_sectors": 1}),
    ],
)
def test_less_memory_work_ranks_first(less: dict[str, int], more: dict[str, int]) -> None:
    assert memory_work(less) < memory_work(more)


def test_kernels_are_counted_for_an_architecture_that_has_them() -> None:
    assert counting_arch([PLAIN.config]) == "sm_80"
    assert counting_arch(get_sm90_autotuning_kernel_configs()) == "sm_90a"
    assert counting_arch([PLAIN.config, LAST]) == "sm_90a"
    assert counting_arch([]) == "sm_80"
