"""Soaking: kernels share cases and take turns, and the command's messages."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flashsmith import settings
from flashsmith.cli import app
from flashsmith.configs import (
    CAUSAL,
    VARIANTS,
    DType,
    KernelId,
    Variant,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_autotuning_kernel_configs,
    parse_kernel_name_into_config,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.lab.commands import soak as lab_soak
from flashsmith.lab.soak import (
    EMULATOR,
    Meaning,
    SoakCase,
    SoakPlan,
    Values,
    Verdict,
    session,
    soak,
    soaked_kernels,
    table_configs,
    that_run_on,
    tile_boundary_cases,
)
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.lab.soak.session import groups_of, in_turn
from flashsmith.problem import Problem

SM80 = get_kernel_progression_configs()[-1]
PLAIN = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1")
RISE = Values("rise", 96, 7.92)
CASE = SoakCase(
    Problem(DType.BF16, 128, 4, 18, 3, 500, 300), Meaning(causal=True), 0.5, "packed", RISE, 5
)


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.KERNELS.name, raising=False)


# ---- a session ----


def test_groups_take_turns() -> None:
    sources = [iter("abc"), iter("xy"), iter("")]
    assert list(in_turn(sources)) == ["a", "x", "b", "y", "c"]  # type: ignore[arg-type]
    groups = groups_of([KernelId(cfg) for cfg in FORWARD.heuristic_configs()])
    assert len(groups) == 10
    assert all(len({(k.config.dtype, k.config.d_head) for k in group}) == 1 for group in groups)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SoakCase, KernelId]]:
    """Returns the list of the checks, which are replaced here; causal kernels are wrong."""
    seen: list[tuple[SoakCase, KernelId]] = []

    def check(instance: KernelId, prepared: SoakCase, **_: Any) -> Verdict:
        seen.append((prepared, instance))
        failure = "NaN" if instance.variant == CAUSAL else ""
        return Verdict(instance, prepared, failure, ratios={"o": 0.5}, reruns=2)

    monkeypatch.setattr(session, "check", check)
    monkeypatch.setattr(session, "prepare_for", lambda config, case, device: case)
    return seen


def test_kernels_share_cases_and_tile_boundaries_come_first(
    checked: list[tuple[SoakCase, KernelId]],
) -> None:
    configs = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[:6]
    kernels = [KernelId(cfg, variant) for cfg in configs for variant in VARIANTS]
    tallies = soak(kernels, SoakPlan(random_cases=5), "cpu")
    assert set(tallies) == set(kernels)
    assert all(type(t.failures) is list and t.cases > 30 for t in tallies.values())
    assert {len(t.failures) == t.cases for i, t in tallies.items() if i.variant == CAUSAL} == {True}
    tile_boundaries = {
        c for cfg in configs for v in VARIANTS for c in tile_boundary_cases(cfg, v, EMULATOR)
    }
    order = [case in tile_boundaries for case, _ in checked]
    assert order == sorted(order, reverse=True)
    runs = [case for case, _ in checked if case in tile_boundaries]
    assert len(set(runs)) == len(tile_boundaries) < len(runs)


def test_every_second_configuration_or_so_has_each_mixed_variant(
    checked: list[tuple[SoakCase, KernelId]],
) -> None:
    """Every configuration also has full and causal."""
    configs = FORWARD.heuristic_configs()
    kernels = soaked_kernels(configs)
    assert {KernelId(cfg, variant) for cfg in configs for variant in VARIANTS} < set(kernels)
    mixed = [kernel.variant for kernel in kernels if kernel.variant not in VARIANTS]
    assert set(mixed) == set(MIXED_VARIANTS) and len(mixed) > 0.8 * len(configs)
    assert all(kernel.config.adapted_to(kernel.variant) == kernel.config for kernel in kernels)
    soak(kernels, SoakPlan(tile_boundaries=False, random_cases=40), "cpu")
    assert all(case.kernel(kernel.config) == kernel for case, kernel in checked)
    assert {kernel.variant for _, kernel in checked} == {*VARIANTS, *MIXED_VARIANTS}


def test_the_variants_have_each_two_features_both_ways() -> None:
    """A bias with lengths, and pages, are missing: GPU tests draw them."""
    names = [field.name for field in fields(Variant) if field.type == "bool"]
    names.remove("paged")
    for a, b in combinations(names, 2):
        found = {(getattr(v, a), getattr(v, b)) for v in (*VARIANTS, *MIXED_VARIANTS)}
        never = {(True, True)} if {a, b} == {"bias", "varlen"} else set()
        assert found == set(product((False, True), repeat=2)) - never, (a, b)


def test_time_limit_leaves_the_kernels_alike(
    checked: list[tuple[SoakCase, KernelId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check moves the clock on by a second."""
    monkeypatch.setattr(session.time, "monotonic", lambda: float(len(checked)))
    tallies = soak(
        soaked_kernels(FORWARD.heuristic_configs()),
        SoakPlan(random_cases=None, seconds=1000),
        "cpu",
    )
    counts = [tally.cases for tally in tallies.values()]
    assert sum(counts) == 1001
    assert min(counts) >= 5


def test_each_kernel_has_its_min_cases_after_the_time(
    checked: list[tuple[SoakCase, KernelId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel gets more late cases than its neighbours needed."""
    monkeypatch.setattr(session.time, "monotonic", lambda: float(len(checked)))
    plan = SoakPlan(random_cases=None, seconds=300, min_cases=6)
    tallies = soak(soaked_kernels(FORWARD.heuristic_configs()), plan, "cpu")
    assert min(tally.cases for tally in tallies.values()) == 6
    late = Counter(kernel for _, kernel in checked[301:])
    assert late and max(tallies[kernel].cases for kernel in late) == 6


def test_tables_and_heuristics_name_their_kernels() -> None:
    heuristic, table = FORWARD.heuristic_configs(), table_configs()
    assert len(heuristic) == len(set(heuristic))
    assert {(cfg.family, cfg.dtype, cfg.d_head) for cfg in heuristic} == {
        (family.name, dtype, d_head)
        for family in FORWARD.families
        for dtype, d_head in product(DType, family.d_heads)
    }
    blocks = {cfg.B_r for cfg in heuristic if cfg.family == "sm80" and cfg.d_head == 128}
    assert blocks == {64, 128}  # for few keys, and for more
    assert len(table) == len(set(table)) > 30
    assert that_run_on([*heuristic, *heuristic], "cpu") == heuristic
    with pytest.raises(ValueError, match="no table for NVIDIA Unheard-of"):
        table_configs("NVIDIA Unheard-of")


# ---- the command ----


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["soak", *map(str, args), "--device", "cpu"])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_command_takes_its_former_flag() -> None:
    former = "seams"
    args = ("-k", PLAIN, "--cases", 1, "--seed", 1, "--json")
    today = invoke(*args, "--no-tile-boundaries")
    result = invoke(*args, f"--no-{former}")
    assert result.stdout == today.stdout
    assert f"--{former}/--no-{former} is called --tile-boundaries/" in result.stderr
    assert "is called" not in today.stderr


def test_command_runs_a_case_and_random_ones(tmp_path: Path) -> None:
    case = "dtype=FP16 d_head=64 batch=1 heads=2 heads_kv=1 seq_len_q=20 seq_len_k=30 seed=4"
    result = invoke("-k", PLAIN, "--case", case)
    assert f"{PLAIN} is right on {case}" in result.stderr
    out = tmp_path / "soak.csv"
    result = invoke(
        "-k", PLAIN, "--no-tile-boundaries", "--cases", 6, "--seed", 1, "--out", out, "--json"
    )
    rows = json.loads(result.stdout)
    mixed = MIXED_VARIANTS[0].name
    assert [row["variant"] for row in rows] == ["full", "causal", mixed]
    assert {row["verdict"] for row in rows} <= {"ok", "not run"}
    assert sum(row["cases"] for row in rows) == 6
    assert "6 problems" in result.stderr and "0 of 3 kernels were wrong" in result.stderr
    with out.open() as file:
        kept = list(csv.DictReader(file))
    assert [row["kernel"] for row in kept] == [str(PLAIN)] * 3
    assert kept[0]["gpu"] == "none (emulator)" and len(kept[0]["sources"]) == 16


@pytest.fixture
def without_kernels(
    checked: list[tuple[SoakCase, KernelId]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(lab_soak, "load_kernels", lambda *_: None)
    yield


@pytest.mark.usefixtures("without_kernels")
def test_command_prints_what_reproduces_a_failure() -> None:
    result = invoke("-k", PLAIN, "--cases", 0, code=1)
    (line, *_) = [text for text in result.stderr.splitlines() if "flashsmith soak" in text]
    assert line.strip().startswith(f'flashsmith soak --kernels "{PLAIN}" --case "dtype=FP16')
    assert "1 of 3 kernels were wrong" in result.stderr
    assert "| wrong" in result.stdout
    case = SoakCase.parse(line.split('--case "')[1].rstrip('"'))
    assert case in tile_boundary_cases(PLAIN, CAUSAL, EMULATOR)


FORMER_WORD = "rule"


@pytest.mark.usefixtures("without_kernels")
def test_command_chooses_kernels_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels(*args: object) -> set[str]:
        result = invoke(*args, "--cases", 0, "--json", code=1)
        rows = json.loads(result.stdout)
        return {row["kernel"] for row in rows if row["variant"] in ("full", "causal")}

    heuristic, table = (
        {str(c) for c in configs} for configs in (FORWARD.heuristic_configs(), table_configs())
    )
    assert kernels("-k", "heuristic") == heuristic
    with pytest.warns(DeprecationWarning, match="is called 'heuristic' now"):
        assert kernels("-k", FORMER_WORD) == heuristic
    assert kernels() == table | heuristic
    assert kernels("-k", "prog", "-k", "heuristic") == heuristic | {
        str(c) for c in get_kernel_progression_configs()
    }
    assert kernels("-k", "heuristic", "--dtype", "bf16", "--d-head", 96) == {
        name for name in heuristic if name.startswith("(BF16, 96")
    }
    monkeypatch.setenv(settings.KERNELS.name, "prog")
    assert kernels() == {str(c) for c in get_kernel_progression_configs()}


@pytest.mark.usefixtures("without_kernels")
def test_interrupted_command_sums_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[SoakCase] = []

    def prepare(config: object, case: SoakCase, device: str) -> SoakCase:
        found.append(case)
        if len(found) == 4:
            raise KeyboardInterrupt
        return case

    monkeypatch.setattr(session, "prepare_for", prepare)
    result = invoke("-k", PLAIN, code=1)  # endless
    assert "interrupted" in result.stderr
    assert "3 problems" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--case", str(CASE)), "--case is for one kernel; name it with --kernels"),
        (("-k", str(PLAIN), "--case", "x", "--seed", "3"), "--case says all; leave out --seed"),
        (("-k", str(PLAIN), "--case", "x=1"), "'x' is no field"),
        (("-k", "nothing"), "kernels key 'nothing' is not known"),
        (("-k", "heuristic", "--d-head", "80"), "--d-head is 80"),
        (("--cases", "-1"), "--cases"),
    ],
)
@pytest.mark.usefixtures("without_kernels")
def test_command_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in invoke(*args, code=2).stderr


@pytest.mark.usefixtures("without_kernels")
def test_command_soaks_the_backward_of_every_family() -> None:
    def kernels(*args: object) -> set[str]:
        rows = json.loads(invoke(*args, "--cases", 0, "--json", code=1).stdout)
        return {row["kernel"] for row in rows if row["variant"] in ("full", "causal")}

    backward = {str(config) for config in get_kernel_configs("backward")}
    assert kernels("-k", "backward") == backward
    of_256 = {name for name in backward if name.startswith(("(FP16, 256", "(BF16, 256"))}
    assert kernels("-k", "backward", "--d-head", 256) == of_256 != set()
    name = "(FP16, 64, 64, 64, 4): backward+stages_1"
    assert kernels("-k", name) == {name}
