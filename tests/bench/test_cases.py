"""Cases, the program that runs the lists of cases in benchmarks/, and those lists."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import flashsmith
from flashsmith import settings
from flashsmith.configs import CAUSAL, KernelId
from flashsmith.jit import KernelResources, kernel_source_stamp
from flashsmith.lab.bench import program, resources
from flashsmith.lab.bench.cases import Case, chosen, workload_of
from flashsmith.lab.bench.columns import COLUMNS
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.program import Benchmark, Ratios, run_program
from flashsmith.lab.bench.provenance import kernels_note
from flashsmith.lab.bench.runner import candidate_of
from support.paths import ROOT
from support.scripts import load_script

LISTS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "run_program" in path.read_text()
]
GRADIENTS = Case(
    "backward", workload_of(64, 2, (8, 2), 4096, CAUSAL), ("flashsmith", "fa3", "fa2"), group="gqa"
)
COLUMNS_OF_ROWS = ("group", "heads_kv", "seq_len", "candidate", "in_turn_ms", "error")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.BACKGROUND_BUILD.name, "")  # the program sets it


def benchmark_of(*cases: Case, **more: object) -> Benchmark:
    return Benchmark("some", COLUMNS_OF_ROWS, lambda: cases, **more)  # type: ignore[arg-type]


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "some.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_case_in_words() -> None:
    assert str(GRADIENTS) == "backward: BF16 d 64 causal 2 x 8/2 x 4096, gqa"
    unlike = replace(GRADIENTS, lengths=(4096, 17), window=8, score="alibi", group="")
    assert str(unlike).endswith("x 4096, packed, window 8, alibi")


def test_cases_are_chosen_by_any_part_of_their_words() -> None:
    full = replace(GRADIENTS, workload=workload_of(128, 1, 2, (64, 256)), group="")
    cases = [GRADIENTS, full]
    assert chosen(cases, "") == cases
    assert chosen(cases, "Causal*gqa") == [GRADIENTS]
    assert chosen(cases, "d 128") == [full]
    with pytest.raises(ValueError, match="--cases is 'd 96', which no case has"):
        chosen(cases, "d 96")


def test_a_tiny_case_has_all_parts_of_the_case() -> None:
    assert str(GRADIENTS.tiny()) == "backward: BF16 d 64 causal 2 x 4/2 x 128, gqa"
    unequal = replace(
        GRADIENTS, workload=workload_of(64, 1, 2, (1024, 8192)), window=1024, group=""
    )
    assert str(unequal.tiny()) == "backward: BF16 d 64 full 1 x 2 x 128/256, window 16"
    packed = replace(GRADIENTS, lengths=(8192, 4096, 64, 33, 17), group="").tiny()
    assert packed.lengths == (17, 33, 64)
    assert str(packed) == "backward: BF16 d 64 causal 3 x 4/2 x 64, packed"
    long = replace(packed, lengths=(900, 8192, 4099, 64)).tiny()
    assert long.lengths == (64, 67, 68) and all(n % 64 for n in long.lengths[1:])


def benchmarks_of(name: str) -> list[Benchmark]:
    script = load_script(f"benchmarks/{name}.py")
    return [*getattr(script, "BENCHMARKS", [])] or [script.BENCHMARK]


@pytest.mark.parametrize("name", LISTS)
def test_every_list_of_cases_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for benchmark in benchmarks_of(name):
        assert set(benchmark.columns) <= set(COLUMNS)
        usual, cases = benchmark.chosen(None), benchmark.chosen("")
        assert usual and cases[: len(usual)] == usual
        assert len({str(case) for case in cases}) == len(cases), "--cases tells them apart"
        for case in cases:
            for candidate in case.candidates:
                assert candidate_of(BENCHES[case.operation], candidate)
        assert run_program(benchmark, "Some.", ["--list"]) == 0
        assert capsys.readouterr().out.splitlines() == [str(case) for case in usual]


def test_every_list_has_files_of_its_own() -> None:
    lists = [benchmark for name in LISTS for benchmark in benchmarks_of(name)]
    files = [b.name for b in lists] + [b.resources for b in lists if b.resources]
    assert len(set(files)) == len(files)


def test_a_program_checks_on_the_emulator_and_writes_rows_and_stamp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, full = tmp_path / "new", replace(GRADIENTS, workload=workload_of(64, 2, 8, 4096))
    words = ["--dry", "--out", str(out)]
    assert run_program(benchmark_of(GRADIENTS, GRADIENTS, full), "Some.", words) == 0
    rows = rows_of(out)
    assert [(row["heads_kv"], row["candidate"]) for row in rows] == [
        ("2", "flashsmith"),
        ("2", "flashsmith"),
        ("2", "fa2"),  # torch's gradients do not support GQA
    ]
    assert {row["in_turn_ms"] for row in rows} == {""}
    assert all(0 < float(row["error"]) < 0.02 for row in rows)
    stamp = json.loads((out / "some_environment.json").read_text())
    assert stamp["gpu"] == "none (emulator)" and set(stamp["peers"]) == {"fa2", "fa3"}
    assert kernels_note(out / "some.csv", kernel_source_stamp()) == ""
    printed = capsys.readouterr()
    assert printed.out.count("gqa 2 128 flashsmith") == 2  # tiny, the first two are one
    assert printed.err.count("left out: fa3: ") == 1  # once, not once a case


def test_the_command_line_chooses_candidates_and_adds_kernels(tmp_path: Path) -> None:
    kernel = "(BF16, 64, 128, 64, 4): backward+stages_1"
    words = ["--dry", "--out", str(tmp_path), "--candidate", "flashsmith", "--config", kernel]
    assert run_program(benchmark_of(GRADIENTS), "Some.", words) == 0
    assert [row["candidate"] for row in rows_of(tmp_path)] == ["flashsmith", kernel]


def test_a_wrong_result_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steeper = partial(flashsmith.attention, softmax_scale=1.0)
    monkeypatch.setattr("flashsmith.attention", steeper)
    words = ["--dry", "--out", str(tmp_path), "--candidate", "flashsmith"]
    assert run_program(benchmark_of(GRADIENTS), "Some.", words) == 1
    assert f"WRONG {GRADIENTS.tiny()}: flashsmith: " in capsys.readouterr().out
    assert float(rows_of(tmp_path)[0]["error"]) > 0.02


def test_a_program_needs_a_folder_and_cases(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], "--out is needed"),
        (["--cases", "fp4"], "which no case has"),
        (["--shard", "3/2"], "--shard: 3/2 is not I/N with 1 <= I <= N, as in 2/3"),
        (["--shard", "half"], "--shard: half is not I/N"),
        (["--config", "fa5"], "candidate 'fa5' is not known; supported: flashsmith, "),
    ):
        with pytest.raises(SystemExit):
            run_program(benchmark_of(GRADIENTS), "Some.", words)
        assert message in capsys.readouterr().err


def test_other_cases_are_measured_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = replace(GRADIENTS, group="table")
    benchmark = benchmark_of(GRADIENTS, more=lambda: [other])
    for words, expected in (([], GRADIENTS), (["--cases", "table"], other)):
        assert run_program(benchmark, "Some.", ["--list", *words]) == 0
        assert capsys.readouterr().out == f"{expected}\n"


def test_several_programs_share_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [replace(GRADIENTS, group=str(i)) for i in range(5)]
    for shard, expected in (("1/2", cases[::2]), ("2/2", cases[1::2]), ("5/5", cases[4:])):
        assert run_program(benchmark_of(*cases), "Some.", ["--list", "--shard", shard]) == 0
        assert capsys.readouterr().out.splitlines() == [*map(str, expected)]


def test_a_gpu_of_another_kind_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    benchmark = benchmark_of(GRADIENTS, needs=(9, 0))
    assert run_program(benchmark, "Some.", ["--out", str(tmp_path / "new")]) == 0
    assert "no GPU of compute capability 9.0" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_what_is_measured_is_kept_if_the_next_case_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = program.Runner.measure

    def fails(self: program.Runner, case: Case, regimes: list[str]) -> object:
        if case.group == "last":
            raise KeyboardInterrupt
        return measure(self, case, regimes)

    monkeypatch.setattr(program.Runner, "measure", fails)
    words = ["--dry", "--out", str(tmp_path), "--candidate", "flashsmith"]
    with pytest.raises(KeyboardInterrupt):
        run_program(benchmark_of(GRADIENTS, replace(GRADIENTS, group="last")), "Some.", words)
    assert [row["candidate"] for row in rows_of(tmp_path)] == ["flashsmith"]


def test_means_are_of_our_ratios_by_kind_candidate_and_regime() -> None:
    ratios = Ratios()
    for kind, candidate, in_turn, back_to_back in (
        ("gqa", "flashsmith", "2.000", "9.000"),
        ("gqa", "flashsmith", "0.500", ""),
        ("gqa", "fa2", "", ""),
        ("small", "flashsmith", "3.000", ""),
    ):
        row = {
            "in_turn_of_best_peer": in_turn,
            "back_to_back_of_best_peer": back_to_back,
            "ms": "7",
        }
        ratios.add(kind, candidate, row)
    ratios.add("", "of one peer", {"in_turn_of_fa3": "1.500"})
    assert list(ratios.lines()) == [
        "gqa, flashsmith, in turn: 1.000, least 0.500, 1 of 2 shapes below 1",
        "gqa, flashsmith, back to back: 9.000, least 9.000, 0 of 1 shapes below 1",
        "small, flashsmith, in turn: 3.000, least 3.000, 0 of 1 shapes below 1",
        "of one peer, in turn: 1.500, least 1.500, 0 of 1 shapes below 1",
    ]


def test_the_table_of_decode_has_what_fits() -> None:
    script = load_script("benchmarks/decode.py")
    shapes = list(script.table())
    assert {s.context for s in shapes} == {128, 512, 2048, 8192, 32768, 131072}
    assert {(s.heads, s.heads_kv, s.d_head) for s in shapes} == {
        *((32, 8, d_head) for d_head in (64, 128, 256)),
        *((heads, heads_kv, 128) for heads, heads_kv in ((64, 8), (32, 32), (8, 1))),
    }
    assert max(s.batch * s.context * s.heads_kv * s.d_head for s in shapes) <= 1 << 28
    assert script.Shape(256, 128) in shapes and script.Shape(256, 131072) not in shapes


def test_means_of_decode_are_by_cache_and_length() -> None:
    script = load_script("benchmarks/decode.py")
    found = [script.kinds(script.Shape(1, n).case("fp8", ())) for n in (2048, 4096)]
    assert found == [["fp8, all", "fp8, up to 2048"], ["fp8, all"]]


def test_kernels_that_cases_name_are_built_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[KernelId] = []

    figures = KernelResources("_Z1", "sm_90a", 96, 0, 0, 0, 0, 0)

    def build(ids: list[KernelId], target: object) -> list[SimpleNamespace]:
        built.extend(ids)
        return [SimpleNamespace(name="a", resources=[figures])]

    monkeypatch.setattr(resources, "build_kernels", build)
    monkeypatch.setattr(resources, "load_kernels", lambda instances, target: None)
    monkeypatch.setattr(resources, "target_of", lambda device: None)
    kernel = "(BF16, 64, 128, 64, 4): backward+stages_1"
    case = replace(GRADIENTS, candidates=("flashsmith", kernel))
    (row,) = resources.load_and_describe([case, case])
    assert row["kernel"] == "a" and row["registers"] == 96 and "function" not in row
    assert [str(each) for each in built] == [f"{kernel} causal"]
