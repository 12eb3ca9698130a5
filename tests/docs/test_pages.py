"""The pages of the documentation have their form: knobs, logs, decisions, lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import pytest

import flashsmith
from flashsmith import configs
from flashsmith.configs import CONFIG_CLASSES, FlashForwardKernelConfig
from flashsmith.configs.descriptions import descriptions
from flashsmith.jit import PACKAGE_SOURCES
from support.paths import ROOT
from support.scripts import load_script

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
KERNEL_PAGES = sorted((DOCS / "kernels").glob("*.md"))
LOGS = [page for page in sorted((DOCS / "log").glob("*.md")) if not page.stem[0].isdigit()]
# These pages say that their predictions were not written down.
UNPREDICTED = {"decode", "fp8"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_is_longer_than_150_columns(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if len(line) > 150] == []


@pytest.mark.parametrize("page", KERNEL_PAGES, ids=lambda page: page.stem)
def test_a_page_of_kernels_begins_with_drawings(page: Path) -> None:
    heading, _, text = page.read_text().partition("\n## ")[2].partition("\n")
    assert heading == "A tile, its shared memory, and what runs when"
    assert text.partition("\n## ")[0].count("\n```\n") >= 4


@pytest.mark.parametrize("page", KERNEL_PAGES, ids=lambda page: page.stem)
def test_no_cell_of_a_table_of_kernels_is_longer_than_120_columns(page: Path) -> None:
    rows = re.findall(r"^\|.*\|$", page.read_text(), re.MULTILINE)
    assert rows
    assert [cell for row in rows for cell in row.split("|") if len(cell) > 120] == []


@pytest.mark.parametrize("page", LOGS, ids=lambda page: page.stem)
def test_a_log_has_dated_entries(page: Path) -> None:
    """Each entry says what was predicted, what was measured and what came of it, in this order."""
    head, *entries = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    assert entries
    assert ("Predictions were not written down" in head) == (page.stem in UNPREDICTED)
    predicted = "" if page.stem in UNPREDICTED else r"^- Predicted.*"
    form = re.compile(
        rf"\d{{4}}-\d\d-\d\d: .+?{predicted}^- Measured.*^- (?:Kept|Dropped|Decided)",
        re.DOTALL | re.MULTILINE,
    )
    assert [entry for entry in entries if not form.match(entry)] == []
    dates = [entry[:10] for entry in entries]
    assert dates == sorted(dates)


def test_every_log_belongs_to_a_page_and_both_link_to_each_other() -> None:
    pages = {*KERNEL_PAGES, *(DOCS / f"{name}.md" for name in ("backward", "decode", "fp8"))}
    assert {page.stem for page in LOGS} == {page.stem for page in pages}
    for page in pages:
        folder = "../" if page.parent == DOCS / "kernels" else ""
        assert f"({folder}log/{page.name})" in page.read_text(), page
        back = page.relative_to(DOCS).as_posix()
        assert f"(../{back})" in (DOCS / "log" / page.name).read_text(), page
        assert "## The log" not in page.read_text(), page


def test_every_decision_has_its_date_and_the_newest_is_last() -> None:
    items = re.findall(r"^- (.*)", (DOCS / "decisions.md").read_text(), re.MULTILINE)
    assert [item for item in items if not re.match(r"\d{4}-\d\d-\d\d: \*\*", item)] == []
    dates = [item[:10] for item in items]
    assert dates == sorted(dates)


# ---- versions ----


def test_every_version_has_its_date_and_page_and_the_newest_is_first() -> None:
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert parts[0].startswith("[Unreleased]\n")
    headings = [re.match(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)\n", part) for part in parts[1:]]
    found = [heading.groups() for heading in headings if heading]
    assert len(found) == len(headings)
    assert found[0][0] == flashsmith.__version__
    assert found == sorted(found, key=lambda each: each[1], reverse=True)
    for (version, _), part in zip(found, parts[1:], strict=True):
        assert len(part.splitlines()) <= 60
        assert f"(docs/log/{version}.md)" in part
        assert (DOCS / "log" / f"{version}.md").is_file()


# ---- the interfaces ----


def test_the_page_of_the_architecture_counts_the_fields_of_configurations() -> None:
    text = (DOCS / "architecture.md").read_text()
    told = re.findall(r"`configs\.(\w+)` \((\d+) fields\)", text)
    assert len(told) == 2
    for name, count in told:
        assert len(fields(getattr(configs, name))) == int(count), name


# ---- the look-up ----


def test_each_step_of_the_look_up_names_what_there_is() -> None:
    page = (DOCS / "config-to-kernel.md").read_text()
    section = page.partition("## 5. Find and launch\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| .+ \| `([\w/.]+)` \| `([\w.]+)` \|$", section, re.MULTILINE)
    assert {"load_kernel", "from_fields", "KernelFunctions", "find_modules"} <= {
        name for _, name in steps
    }
    for file, name in steps:
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", (ROOT / file).read_text()), (
            file,
            name,
        )


@pytest.mark.parametrize(
    ("page", "functions"),
    [
        ("architecture.md", ["`load_kernel`"]),
        ("decisions.md", ["`find_kernel`", "`forward_kernels.find`"]),
    ],
)
def test_files_of_the_host_that_pages_name_are_there(page: str, functions: list[str]) -> None:
    text = (DOCS / page).read_text()
    assert all(function in text for function in functions)
    files = re.findall(r"`((?:csrc/)?host/[\w/]+\.(?:h|cpp))`", text)
    assert files
    csrc = PACKAGE_SOURCES.csrc
    assert [file for file in files if not (csrc / file.removeprefix("csrc/")).is_file()] == []


# ---- the knobs ----


@pytest.fixture(scope="module")
def knobs() -> ModuleType:
    return load_script("tools/docs/knobs.py")


def test_the_page_of_knobs_is_what_the_classes_say(knobs: ModuleType) -> None:
    assert (DOCS / "knobs.md").read_text() == knobs.page(), "python tools/docs/knobs.py writes it"


def test_every_knob_is_there_with_its_feature(knobs: ModuleType) -> None:
    text = (DOCS / "knobs.md").read_text()
    for kind in CONFIG_CLASSES:
        section = text.partition(f"## {knobs.title(kind)}\n")[2].partition("\n## ")[0]
        headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert ", ".join(headings).split(", ") == [field.name for field in fields(kind)]
        for feature in kind.feature_table:
            assert not feature.fields or f"`{feature.name}`, " in section, feature.name


def test_every_knob_of_sm80_has_its_evidence() -> None:
    text = (DOCS / "kernels" / "sm80-forward.md").read_text()
    section = text.partition("## The knobs, and how each shows")[2].partition("\n## ")[0]
    entries = re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(entries))
    assert named == [field.name for field in fields(FlashForwardKernelConfig)]


def test_a_field_without_a_description_is_named() -> None:
    @dataclass(frozen=True)
    class More(FlashForwardKernelConfig):
        """dtype: element type."""

    with pytest.raises(ValueError, match=r"More describes \['dtype'\]; its fields are \['dtype', "):
        descriptions(More)


def test_the_fields_are_described_in_one_place() -> None:
    for kind in CONFIG_CLASSES:
        header = (PACKAGE_SOURCES.csrc / "include" / kind.kernel_header).read_text()
        comment, struct = re.findall(
            rf"((?:^//[^\n]*\n)+)^struct {kind.__name__} {{\n(.*?)  constexpr",
            header,
            re.DOTALL | re.MULTILINE,
        )[0]
        assert "described in docs/knobs.md" in comment.replace("\n//", "")
        assert not re.search(r"; +//", struct)
