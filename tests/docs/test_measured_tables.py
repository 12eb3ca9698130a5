"""Numbers in README and docs are those of the CSV files that were committed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType

import pytest

from flashsmith.bench import provenance
from flashsmith.bench.panels import OURS, panels
from flashsmith.bench.ratios import ratios
from flashsmith.bench.results import TimeRow, read_csv, to_csv
from flashsmith.configs import DType, Workload
from flashsmith.configs.sm80 import forward as sm80
from flashsmith.configs.sm90 import forward as sm90
from flashsmith.jit import kernel_source_stamp, toolchain
from flashsmith.problem import Problem
from flashsmith.selection.tables import Table, shipped_table_path
from support import sm80_kernels, sm90_kernels
from support.bench import FITTING, time_row
from support.docs_tools import docs_tool
from support.kernels import both_variants
from support.paths import RESULTS, ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return docs_tool("measured_tables")


def test_committed_pages_say_what_was_measured(tool: ModuleType) -> None:
    assert {"README.md", "fp8.md", "score-mod.md"} <= {page.name for page in tool.PAGES}
    for page in tool.PAGES:
        text = page.read_text()
        assert text.count("<!-- measured: ") == text.count("<!-- end measured -->"), page
        assert tool.rewrite(text) == text, f"python {tool.__file__} writes {page} anew"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_is_marked_once_kernels_change(
    page: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, others = page.read_text(), dict.fromkeys(kernel_source_stamp(), "other")
    monkeypatch.setattr(provenance, "kernel_source_stamp", lambda: others)
    tables = [found[0] for found in tool._BLOCK.finditer(tool.rewrite(text))]
    assert len(tables) == text.count("<!-- measured: ")
    assert [table for table in tables if not re.search(r"^\*Measured 2", table, re.M)] == []
    assert [table for table in tables if "on today's kernels" in table] == []


def marked(name: str, kind: str = "ratios", table: str = "old") -> str:
    return f"before\n<!-- measured: {kind} {name} -->\n{table}\n<!-- end measured -->\nafter\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with two runs: ours 1.25 times, and 2 times as fast as the best peer."""
    stamp = json.dumps(kernel_source_stamp() | {"date": "2026-01-01"})
    for name, ratio in (("first", 1.25), ("second", 2.0)):
        rows = [time_row("fa2", 1.0), time_row(FITTING, 1 / ratio, ratio_to_best_peer=ratio)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "forward.csv").write_text(to_csv(TimeRow, rows))
        (tmp_path / name / "environment.json").write_text(stamp)
    return tmp_path


def test_a_table_is_made_from_the_file_that_its_mark_names(tool: ModuleType, results: Path) -> None:
    text = tool.rewrite(marked("first/forward.csv"), results)
    assert "| d 64, full | 1.25 | **1.250** |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- measured: ratios first/forward.csv -->\n\n| ratio to ")
    assert text.endswith("|\n\n<!-- end measured -->\nafter\n")
    assert tool.rewrite(text, results) == text
    sentence = tool.rewrite(marked("first/forward.csv", "summary"), results)
    assert "Geometric mean of 1 shapes: **1.250**; least: 1.250 (FP16 d 64 full" in sentence


def test_a_table_says_when_its_kernels_are_others(tool: ModuleType, results: Path) -> None:
    (results / "first" / "environment.json").unlink()
    text = tool.rewrite(marked("first/forward.csv"), results)
    assert " by a run that did not record its sm80 forward kernels.*\n\n<!-- end" in text
    other = {"date": "2026-01-02", "kernels_sm80": "0"}
    (results / "first" / "environment.json").write_text(json.dumps(other))
    note = "*Measured 2026-01-02 on other sm80 forward kernels than today's.*"
    assert f"|\n\n{note}\n\n<!-- end" in tool.rewrite(marked("first/forward.csv"), results)
    assert note in tool.rewrite(marked("first/forward.csv", "kernels"), results)
    named = marked("first/forward.csv", "kernels_sm90_decode+kernels_sm80_decode")
    assert "did not record its sm90 decode and sm80 decode kernels" in tool.rewrite(named, results)


def test_another_run_is_taken_by_its_folder(tool: ModuleType, results: Path) -> None:
    both = marked("first/forward.csv") + "between\n" + marked("first/forward.csv", "rates")
    text = tool.rewrite(both, results, Path("second"))
    assert re.findall(r"measured: (\w+) (\S+)", text) == [
        ("ratios", "second/forward.csv"),
        ("rates", "second/forward.csv"),
    ]
    assert "| d 64, full | 2.00 | **2.000** |" in text
    assert "| 64 full | best peer | 0 FA2 |" in text
    assert "between" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (marked("first/forward.csv", "kernels_sm70"), "supported: kernels_sm80, "),
        (marked("first/forward.csv", "prices"), "'prices' is not known; supported: ratios"),
        (marked("third/forward.csv"), "third/forward.csv, which is no file"),
        (marked("peers.csv"), "peers.csv has no row with a ratio"),
    ],
)
def test_a_mark_that_cannot_be_served_is_named(
    text: str, message: str, tool: ModuleType, results: Path
) -> None:
    (results / "peers.csv").write_text(to_csv(TimeRow, [time_row("fa2", 1.0)]))
    with pytest.raises(ValueError, match=message):
        tool.rewrite(text, results)


def test_the_best_kernels_of_a_sweep_are_in_percent_of_fa2(
    tool: ModuleType, tmp_path: Path
) -> None:
    columns = "kernel,d_head,mask,seq_len,percent_of_fa2"
    a, b = (f'"(FP16, 64, {rows}, 64, 4): async+load_0_0_0_tiles"' for rows in (64, 128))
    rows = ["FA2,64,full,512,100.0", f"{a},64,full,512,50.0", f"{b},64,full,512,80.0"]
    rows += [f"{a},64,full,1024,120.0", f"{a},128,causal,1024,99.0", "FA2,128,causal,1024,100.0"]
    (tmp_path / "tuning.csv").write_text("\n".join([columns, *rows]))
    text = tool.rewrite(marked("tuning.csv", "best"), tmp_path)
    assert "| d 64, full | 80.0 | 120.0 | **96.0** |" in text


# ---- numbers in prose and in tables with ideas ----


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def our_ratios(path: Path) -> list[float]:
    """Our rate over that of the best peer, of every shape."""
    found = ratios(read_csv(TimeRow, path)).values()
    return [row.ratio_to_best_peer or 0 for by_length in found for row in by_length.values()]


def said_of_regimes() -> list[str]:
    folder = RESULTS.parent / "2026-11-22" / "two-regimes-bf16"
    in_turn = our_ratios(folder / "forward.csv")
    back_to_back = our_ratios(folder / "forward_back_to_back.csv")
    assert min(in_turn) > 1
    return [
        f"by {geometric_mean(in_turn) - 1:.1%} as geometric mean of {len(in_turn)} shapes for "
        f"launches in turn, on all of them; by "
        f"{geometric_mean(back_to_back) - 1:.1%} for launches back to back, on "
        f"{sum(ratio > 1 for ratio in back_to_back)}.",
    ]


def said_of_fa4() -> list[str]:
    found = panels(read_csv(TimeRow, RESULTS / "sm90-bf16" / "forward.csv"))
    pairs = [
        (by_name["fa4"].ms, by_name[OURS].ms)
        for by_length in found.values()
        for by_name in by_length.values()
    ]
    assert all(theirs > ours for theirs, ours in pairs)  # type: ignore[operator]
    return [f"was slower than flashsmith on all {len(pairs)} shapes there"]


def said_of_sm80() -> list[str]:
    *steps, fa2 = (row["percent_of_fa2"] for row in rows_of(RESULTS / "progression.csv"))
    assert fa2 == "100.0"
    return [f"they reached {', '.join(steps)}% of FlashAttention-2."]


FP8 = RESULTS.parent / "2026-11-23" / "fp8" / "fp8_forward.csv"


def of_cudnn_in_8_bits(is_ours: Callable[[str], bool], least_keys: int) -> tuple[str, str]:
    """Our speed over cuDNN's at d 128, from the least to the most, and the most of its error."""
    by_shape: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows_of(FP8):
        if row["d_head"] == "128" and int(row["seq_len_k"]) >= least_keys:
            by_shape.setdefault((row["mask"], row["seq_len_k"]), {})[row["kernel"]] = row
    speeds, errors = [], []
    for by_name in by_shape.values():
        theirs = by_name["cuDNN"]
        (ours,) = (row for name, row in by_name.items() if is_ours(name))
        speeds.append(float(theirs["ms"]) / float(ours["ms"]))
        if theirs["rmse"]:
            errors.append(float(ours["rmse"]) / float(theirs["rmse"]))
    return f"{min(speeds):.2f} to {max(speeds):.2f}", f"{max(errors):.1%}"


def is_of_scores(name: str) -> bool:
    return "128, 192, 80, 3" in name and "lazy_8" in name and name.endswith("fp8_scores")


def is_of_values(name: str) -> bool:
    return "128, 128, 128, 2" in name and name.endswith("fp8_values+two_level+long_turns")


def said_of_fp8() -> list[str]:
    speed, error = of_cudnn_in_8_bits(is_of_scores, 4096)
    with_values, error_with_values = of_cudnn_in_8_bits(is_of_values, 4096)
    return [
        f"at {speed} of the speed of cuDNN's 8 bits from 4k keys on, with at most {error} of its "
        f"error; with values of 8 bits at {with_values}, with at most {error_with_values}",
    ]


def test_the_page_of_8_bits_says_what_readme_says() -> None:
    text = " ".join((ROOT / "docs" / "fp8.md").read_text().split())
    for is_ours, keys in (
        (is_of_scores, "with at most {} of its error; with v"),
        (is_of_values, "with at most {} of its error, which"),
    ):
        speed, error = of_cudnn_in_8_bits(is_ours, 4096)
        assert f"from 4k keys on at {speed}, {keys.format(error)}" in text


# Fractions in words that are no results but arithmetic, or what something is made of.
NO_RESULTS = {
    "disassembler takes about a fifth of the compiler's time",
    "take half the time of those of 16 bits",  # of the tensor cores
    "twice the error of the same computation",  # a tolerance
    "more queries than a quarter of the keys",
    "let a third block in",
    "rounding of float32 is an eighth and more",
    "a tenth, a half or nine tenths of the weights",
    "runs a fifteenth of `--count 300`",
    "need kernels of their own, an eighth product",
    "a quarter of the scores that are computed",
}
_FRACTION = (
    r"(?:an?|one|two|three|four|five|nine)[ -](?:third|quarter|tenth|"
    r"(?:fif|six|seven|eigh|nin|fifteen|twentie|hundred|thousand)th)s?"
)
_OF_RESULTS = (
    r"(?:half|twice|double) (?:of )?(?:the|its|their|our) (?:error|time|speed|memory|cost|rate)"
)
_WORDS = re.compile(rf".{{0,40}}\b(?:{_FRACTION}|{_OF_RESULTS})\b.{{0,40}}")
NOT_OF_KERNELS = {
    "benchmarks/results/h200/2026-11-22/flash_attn_tests.csv",  # which cases passed, no time
}
_CSV = re.compile(r"benchmarks/results/[\w./-]+\.csv")
# Entries of a log are of their date, and say what was seen then.
_LOG_ENTRY = re.compile(r"^### \d{4}-\d\d-\d\d.*?(?=^#|\Z)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: page.stem,
)
def test_no_result_is_told_in_words(page: Path) -> None:
    """A fraction of something measured stands in digits, which are compared with a CSV file."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = " ".join(_LOG_ENTRY.sub("", text).split())
    for phrase in NO_RESULTS:
        text = text.replace(phrase, "")
    assert _WORDS.findall(text) == []


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: page.stem,
)
def test_every_result_that_is_quoted_says_of_which_kernels_it_is(page: Path) -> None:
    text = _LOG_ENTRY.sub("", page.read_text())
    marks = {path for _, path in re.findall(r"<!-- measured: (\S+) (\S+) -->", text)}
    quoted = set(_CSV.findall(text)) - NOT_OF_KERNELS
    assert quoted - marks == set()


def test_the_cost_of_a_call_is_measured() -> None:
    page = (ROOT / "docs" / "kernels" / "sm80-forward.md").read_text()
    text = " ".join(page.partition("## The host's share")[2].partition("\n<!--")[0].split())
    rows = rows_of(RESULTS.parent / "2026-11-22" / "call_overhead.csv")
    median, least = ({row["call"]: row[name] for row in rows} for name in ("us", "least_us"))
    add, into, new, ours = (
        ("torch.add",),
        ("forward sm80 into o", "forward sm90 into o"),
        ("forward sm80", "forward sm90"),
        ("attention", "attention with lse"),
    )
    for phrase, calls in (
        ("torch.add {} us", add),
        ("into a given o {} us for this family and {} us for the sm90 family", into),
        ("with a new o {} and {} us", new),
        ("`attention` {} us, with log-sum-exp {} us", ours),
    ):
        assert phrase.format(*(median[call] for call in calls)) in text
    figures = (least[call] for call in (*add, *into, *new, *ours))
    assert "{}, {} and {}, {} and {}, {} and {} us".format(*figures) in text


def test_what_a_copy_of_pages_costs_is_measured() -> None:
    text = " ".join((ROOT / "docs" / "decode.md").read_text().split())
    shares: dict[str, list[float]] = {}
    for row in rows_of(RESULTS.parent / "2026-11-23" / "pages.csv"):
        plain = float(row["no_pages_us"])
        shares.setdefault(row["queries"], []).append(float(row["copied_us"]) / plain - 1)
    few, many = (f"{min(s):.0%} to {max(s):.0%}" for s in (shares["512"], shares["2048"]))
    few, many = (words.replace("% to", " to") for words in (few, many))
    assert f"{few} to the attention's time for chunks of 512 queries on an H200, {many} for" in text


def test_what_falls_short_of_flex_attention_is_said() -> None:
    """A forward with a bias, and at d 128 the gradients of three functions; nothing else."""
    text = " ".join((ROOT / "docs" / "score-mod.md").read_text().split())
    assert "a forward with a bias, given as such or read by a function" in text
    assert (
        "at d 128 so are the gradients of ALiBi, of a factor for every other key and of a bias"
        in text
    )
    said = {("score", d, f"{how}bias") for d in ("d64", "d128") for how in ("", "score_mod: ")}
    names = ("alibi", "a factor", "bias")
    said |= {("score_gradients", "d128", f"score_mod: {name}") for name in names}
    rows = rows_of(RESULTS.parent / "2026-11-23" / "scores" / "variants.csv")
    slower = {
        (row["group"], row["case"].split()[0], row["case"].split(" ", 3)[3])
        for row in rows
        if row["of_best_peer"] and float(row["of_best_peer"]) < 1
    }
    assert slower == said


def test_what_small_tiles_gain_is_in_the_table() -> None:
    text = " ".join((ROOT / "docs" / "tuning.md").read_text().split())
    entries = Table.read(shipped_table_path("NVIDIA H200")).entries.values()
    problem = Problem.square(DType.BF16, 64, batch=1, heads=16, seq_len=1024)
    (entry,) = (entry for entry in entries if entry.workload == Workload(problem))
    one, most = (
        1e3 * min(row.ms for row in entry.ranked if row.config.B_r == rows) for rows in (64, 256)
    )
    assert f"one warpgroup takes {one:.1f} us there, the best of 256 rows {most:.1f} us" in text


def test_the_table_of_decode_in_a_graph_is_measured() -> None:
    page = (ROOT / "docs" / "decode.md").read_text()
    table = page.partition("| batch x keys, queries | flashsmith | FlashAttention-3 |\n")[2]
    lines = table.partition("\n\n")[0].splitlines()[1:]
    found: dict[str, dict[str, float]] = {}
    for row in rows_of(RESULTS.parent / "2026-11-23" / "decode_graph.csv"):
        keys = int(row["context"])
        label = f"{row['batch']} x {keys // 1024}k" if keys > 1000 else f"{row['batch']} x {keys}"
        label += "" if row["queries"] == "1" else f", {row['queries']} queries"
        found.setdefault(label, {})[row["candidate"]] = float(row["in_graph_us"])
    assert len(lines) >= 9
    for line in lines:
        label, ours, theirs = (cell.strip() for cell in line.strip("|").split("|"))
        assert is_rounded(ours, found[label]["flashsmith"]), line
        assert is_rounded(theirs, found[label]["fa3"]), line


def is_rounded(cell: str, measured: float) -> bool:
    """Whether a cell is the figure to as many places as it has."""
    places = len(cell.partition(".")[2])
    return abs(float(cell) - measured) <= 0.5001 * 10**-places


def test_rates_in_8_bits_are_measured() -> None:
    page = (ROOT / "docs" / "fp8.md").read_text()
    table = page.partition("| d_head 128 | 4 x 2048")[2].partition("\n\n")[0]
    rates: dict[str, list[float]] = {}
    for row in rows_of(FP8):
        if row["d_head"] == "128":
            rates.setdefault(row["kernel"], []).append(float(row["tflops"]))
    labels: dict[str, Callable[[str], bool]] = {
        "BF16": lambda name: name == "flashsmith BF16",
        "q, k in 8 bits: 192 x 80": is_of_scores,
        "q, k, v in 8 bits: 128 x 128, `two_level`, `long_turns`": is_of_values,
        "cuDNN (o in 8 bits, too)": lambda name: name == "cuDNN",
        "FlashAttention-3": lambda name: name == "FlashAttention-3",
    }
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
    for label, is_meant in labels.items():
        (measured,) = (figures for name, figures in rates.items() if is_meant(name))
        cells = [cell.strip(" *") for cell in lines[label].split("|")[2:10]]
        assert all(map(is_rounded, cells, measured)), (label, measured)
        assert len(cells) == len(measured) == 8


def said_of_tests() -> list[str]:
    of_sm80 = len(both_variants(sm80_kernels.SYNCHRONISED))
    of_sm90 = len(both_variants(sm90_kernels.SYNCHRONISED))
    return [f"all sites of {of_sm80} sm80 kernels and of {of_sm90} sm90 kernels"]


def may_be_said_of_versions() -> list[str]:
    project = (ROOT / "pyproject.toml").read_text()
    python, licence = (
        re.search(rf'^{name} = "(?:>=)?([^"]+)"', project, re.MULTILINE)
        for name in ("requires-python", "license")
    )
    assert python is not None
    assert licence is not None
    return [
        f"Python {python[1]} or newer",
        f"nvcc {version(toolchain.OLDEST_CUDA)} or newer",
        f"compute capability {version(sm90.COMPUTE_CAPABILITY)}",
        f"{version(sm80.MIN_COMPUTE_CAPABILITY)} and newer",
        f"({licence[1]})",
    ]


def version(parts: tuple[int, int]) -> str:
    return ".".join(map(str, parts))


def test_numbers_in_the_prose_of_readme_are_measured() -> None:
    """A number with a point or a percent sign, or of shapes or kernels, is one of these."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"<!-- measured.*?<!-- end measured -->|```.*?```", "", text, flags=re.DOTALL)
    text = " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())
    measured = [*said_of_regimes(), *said_of_fa4(), *said_of_sm80(), *said_of_fp8()]
    measured += said_of_tests()
    assert [phrase for phrase in measured if phrase not in text] == []
    for phrase in (*measured, *may_be_said_of_versions()):
        text = text.replace(phrase, "")
    left = re.findall(r".{0,20}\b(?:\d+\.\d+|\d+%|\d+ (?:of|shapes|kernels|sm90)).{0,20}", text)
    assert left == []


def test_steps_of_the_progressions_are_measured() -> None:
    page = (ROOT / "docs" / "kernels" / "sm80-forward.md").read_text()
    for row in rows_of(RESULTS / "progression.csv"):
        percent = row["percent_of_fa2"].replace("100.0", "100")
        assert f"| {float(row['ms']):.3f} | {row['tflops']} | {percent} |" in page
    page = (ROOT / "docs" / "kernels" / "sm90-forward.md").read_text()
    rows = rows_of(RESULTS / "sm90-bf16" / "sm90_progression.csv")
    for full in (row for row in rows if row["mask"] == "full"):
        (causal,) = (
            row for row in rows if row["kernel"] == full["kernel"] and row["mask"] == "causal"
        )
        figures = [
            row[name]
            for row in (full, causal)
            for name in ("tflops", "percent_of_cublas", "joules_per_tflop")
        ]
        without_tiles = f"({float(figures[0]):.0f} full, {float(figures[3]):.0f} causal)"
        assert f"| {' | '.join(figures)} |" in page or without_tiles in page, full["kernel"]
