"""Numbers in prose, and in tables that list ideas, are those of the committed CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

import pytest

from flashsmith import flash_attn
from flashsmith.configs import DType, Workload
from flashsmith.configs.sm80 import forward as sm80
from flashsmith.configs.sm90 import forward as sm90
from flashsmith.jit import toolchain
from flashsmith.lab.bench.panels import OURS, panels
from flashsmith.lab.bench.ratios import ratios
from flashsmith.lab.bench.results import TimeRow, read_csv
from flashsmith.problem import Problem
from flashsmith.selection.tables import Table, shipped_table_path
from support import sm80_kernels, sm90_kernels
from support.kernels import both_variants
from support.paths import RESULTS, ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def our_ratios(path: Path) -> list[float]:
    """Returns the ratio of our rate to the best peer's for every shape."""
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
    *steps, fa2 = (row["percent_of_fa2"] for row in rows_of(SM80 / "progression.csv"))
    assert fa2 == "100.0"
    return [f"they reached {', '.join(steps)}% of FlashAttention-2."]


SM80 = RESULTS.parent / "2026-11-26" / "sm80-fp16"
FP8 = RESULTS.parent / "2026-12-01" / "fp8" / "fp8_forward.csv"


def of_cudnn_in_8_bits(is_ours: Callable[[str], bool], min_keys: int) -> tuple[str, str]:
    """Returns the range of our speed over cuDNN's at d 128, and the largest ratio of our error to
    cuDNN's."""
    by_shape: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows_of(FP8):
        if row["d_head"] == "128" and int(row["seq_len_k"]) >= min_keys:
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
    return "128, 128, 128, 2" in name and name.endswith("fp8_values+two_level+ping_pong_until_exp")


def said_of_fp8() -> list[str]:
    speed, error = of_cudnn_in_8_bits(is_of_scores, 4096)
    with_values, error_with_values = of_cudnn_in_8_bits(is_of_values, 4096)
    return [
        f"at {speed} of the speed of cuDNN's 8 bits from 4k keys on, with at most {error} of its "
        f"error; with values of 8 bits at {with_values}, with at most {error_with_values}",
    ]


def test_the_page_of_8_bits_says_what_the_page_of_performance_says() -> None:
    text = " ".join((ROOT / "docs" / "fp8.md").read_text().split())
    for is_ours, keys in (
        (is_of_scores, "with at most {} of its error; with v"),
        (is_of_values, "with at most {} of its error, which"),
    ):
        speed, error = of_cudnn_in_8_bits(is_ours, 4096)
        assert f"from 4k keys on at {speed}, {keys.format(error)}" in text


# These fractions in words are no results, but arithmetic or descriptions of parts.
NO_RESULTS = {
    "disassembler takes about a fifth of the compiler's time",
    "take half the time of 16-bit products",  # on the tensor cores
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
    "benchmarks/results/wheels/2026-11-28.csv",  # sizes
    "benchmarks/results/h200/2026-11-22/flash_attn_tests.csv",  # which cases passed, without times
}
_CSV = re.compile(r"benchmarks/results/[\w./-]+\.csv")
# An entry of a log reports what was seen at its date.
_LOG_ENTRY = re.compile(r"^##+ \d{4}-\d\d-\d\d.*?(?=^#|\Z)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: page.stem,
)
def test_no_result_is_told_in_words(page: Path) -> None:
    """A measured fraction is written in digits, which can be compared with a CSV file."""
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
    rows = rows_of(RESULTS.parent / "2026-11-26" / "call_overhead.csv")
    median, minimum = ({row["call"]: row[name] for row in rows} for name in ("us", "min_us"))
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
    figures = (minimum[call] for call in (*add, *into, *new, *ours))
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
    """The page says that a forward with a bias and, at d 128, three gradients are slower."""
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
    one, maximum = (
        1e3 * min(row.ms for row in entry.ranked if row.config.B_r == rows) for rows in (64, 256)
    )
    assert f"one warpgroup takes {one:.1f} us there, the best of 256 rows {maximum:.1f} us" in text


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
    """Returns whether a cell is the measured value, rounded to the places that the cell has."""
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
        "FP8 q, k: 192 x 80": is_of_scores,
        "FP8 q, k, v: 128 x 128, `two_level`, until exp": is_of_values,
        "cuDNN (o in 8 bits, too)": lambda name: name == "cuDNN",
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
        f"FlashAttention {flash_attn.__version__}",
        "4.0.0b36",  # the version of the peers in the table of features
        "PyTorch 2.13",
    ]


def version(parts: tuple[int, int]) -> str:
    return ".".join(map(str, parts))


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_numbers_in_the_prose_of_front_pages_are_measured(page: str) -> None:
    """Numbers with a point or a percent sign, and numbers of shapes or kernels, must be in this
    list."""
    text = (ROOT / page).read_text()
    text = re.sub(r"<!-- measured.*?<!-- end measured -->|```.*?```", "", text, flags=re.DOTALL)
    text = " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())
    measured = {
        "README.md": [*said_of_regimes(), *said_of_tests()],
        "docs/performance.md": [
            *said_of_regimes(),
            *said_of_fa4(),
            *said_of_sm80(),
            *said_of_fp8(),
        ],
    }[page]
    assert [phrase for phrase in measured if phrase not in text] == []
    for phrase in (*measured, *may_be_said_of_versions()):
        text = text.replace(phrase, "")
    left = re.findall(r".{0,20}\b(?:\d+\.\d+|\d+%|\d+ (?:of|shapes|kernels|sm90)).{0,20}", text)
    assert left == []


def test_steps_of_the_progressions_are_measured() -> None:
    page = (ROOT / "docs" / "kernels" / "sm80-forward.md").read_text()
    for row in rows_of(SM80 / "progression.csv"):
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
