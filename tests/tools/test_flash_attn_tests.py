"""tools.flash_attn_tests, on a file that resembles FlashAttention's tests."""

from __future__ import annotations

import ast
import csv
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.flash_attn_tests import __main__ as command
from tools.flash_attn_tests.absent import Absent
from tools.flash_attn_tests.cases import Grid, runnable
from tools.flash_attn_tests.kernels import kernels_of, kind_of
from tools.flash_attn_tests.results import read_outcomes
from tools.flash_attn_tests.rewrite import rewrite
from tools.flash_attn_tests.sample import Limits, draw, shuffled, write_cases

import flashsmith
from flashsmith.configs import (
    FULL,
    BackwardKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelId,
    get_kernel_progression_configs,
)
from flashsmith.errors import BuildError
from flashsmith.reference import reference_gradients
from support.paths import ROOT

FILE = """\
import pytest
import torch
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import _flash_attn_forward, _tile_of
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.models.gpt import build

is_hopper = torch.cuda.get_device_capability("cuda") == (9, 0)
assert is_hopper


def normalize_flash_attn_S(attn_unnorm, q):
    return attn_unnorm * 0


def plain(q, k, v, causal, weights=None):
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    if causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, float("-inf"))
    p = scores.softmax(-1) if weights is None else weights.float()
    return torch.einsum("bhqk,bkhd->bqhd", p, v.float())


@pytest.mark.parametrize("dtype", [torch.float16])
@pytest.mark.parametrize("dropout_p", [0.0, 0.25])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(5, 5), (500, 7)])
def test_output(seqlen_q, seqlen_k, causal, dropout_p, dtype):
    q, k, v = (
        torch.randn(1, n, 1, 64, device="cuda", dtype=dtype, requires_grad=True)
        for n in (seqlen_q, seqlen_k, seqlen_k)
    )
    out, _, S_dmask = flash_attn_func(
        q, k, v, dropout_p, causal=causal, return_attn_probs=True
    )
    kept = None
    if dropout_p > 0:
        kept = normalize_flash_attn_S(S_dmask, q).clamp(min=0) / (1 - dropout_p)
    expected = plain(q, k, v, causal, kept)
    g = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), g)
    assert (out - expected).abs().max() < 0.01
    if dropout_p == 0:
        assert dq.abs().max() > 0
    else:
        print("dropped")


@pytest.mark.parametrize("seqlen", [5])
def test_wrong(seqlen):
    q = torch.randn(1, seqlen, 1, 64, device="cuda", dtype=torch.float16)
    out = flash_attn_func(q, q, q)
    assert (out == 0).all()


@pytest.mark.parametrize("rows", [5, 6])
def test_cache(rows):
    lengths = torch.tensor([rows - 1], dtype=torch.int32, device="cuda")
    q, new = torch.randn(2, 1, 1, 1, 64, device="cuda", dtype=torch.float16)
    cache = torch.randn(1, rows, 1, 64, device="cuda", dtype=torch.float16)
    angles = torch.rand(rows, 8, device="cuda")
    cos, sin = angles.cos().half(), angles.sin().half()
    turned = [apply_rotary_emb(t, cos, sin, seqlen_offsets=lengths) for t in (q, new)]
    k = torch.cat((cache[:, :-1], turned[1]), 1)
    v = torch.cat((cache[:, :-1], new), 1)
    out = flash_attn_with_kvcache(
        q, cache, cache.clone(), new, new, cos, sin, lengths, rotary_interleaved=False
    )
    assert (out - plain(turned[0], k, v, False)).abs().max() < 0.01
    assert (cache - k).abs().max() < 0.01


def test_words():
    with pytest.raises(RuntimeError, match="not as flashsmith says it"):
        flash_attn_func(None, None, None)


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients(sign):
    q = torch.randn(1, 5, 1, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    flash_attn_func(q, q, q).sum().backward()
    assert sign * q.grad.abs().max() > 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test_of_theirs.py"
    path.write_text(FILE)
    return path


def run(file: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.flash_attn_tests", str(file), "--device", "cpu",
         "--out", str(file.parent / "out"), *options],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment,
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def source_of(tree: ast.Module, name: str) -> str:
    (node,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return ast.unparse(node)


def test_all_assertions_run_and_are_counted(file: Path) -> None:
    done = run(file, "--at-most", "seqlen=100", "--jobs", "2")
    assert done.returncode == 1, done.stderr
    assert "bringing up nodes" in done.stdout
    assert "9 cases need 9 kernels\n" in done.stdout
    kernels = (file.parent / "out" / "kernels.txt").read_text().splitlines()
    assert len([name for name in kernels if "backward" in name]) == 4 == len(kernels) - 5
    assert "7 of 9 cases passed\n" in done.stdout
    with (file.parent / "out" / "results.csv").open(newline="") as table:
        rows = {row.pop("test"): tuple(row.values()) for row in csv.DictReader(table)}
    reasons = "4 with seqlen over 100"
    assert rows == {
        "test_output": ("8", "4", "4", "0", "0", "2", reasons),
        "test_wrong": ("1", "1", "0", "1", "0", "1", ""),
        "test_cache": ("2", "2", "2", "0", "0", "2", ""),
        "test_words": ("1", "0", "0", "0", "0", "0", "1 about FlashAttention's own errors"),
        "test_gradients": ("2", "2", "1", "1", "0", "1", ""),
    }  # fmt: skip


def test_what_would_run_can_be_had_alone(file: Path) -> None:
    done = run(file, "--prepare", "--tests", "wr.ng")
    assert done.returncode == 0 and done.stdout == "1 cases need 1 kernels\n", done.stderr
    out = file.parent / "out"
    assert {path.name for path in out.iterdir()} == {"kernels.txt", "test_flash_attn.py"}
    text = (out / "test_flash_attn.py").read_text()
    assert "def test_wrong" in text and "def test_output" not in text


def test_results_of_an_earlier_run_are_not_taken(file: Path) -> None:
    outcomes = file.parent / "out" / "junit.xml"
    outcomes.parent.mkdir()
    outcomes.write_text('<testsuites><testcase name="test_wrong[5]"/></testsuites>')
    done = run(file, "--tests", "wrong", PYTEST_ADDOPTS="--no-such-option")
    assert done.returncode == 1 and "error: pytest wrote no results" in done.stderr


def test_a_package_that_the_file_needs_is_named(file: Path) -> None:
    file.write_text("import not_installed_anywhere\n")
    done = run(file)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "package that is not installed: No module named 'not_installed_anywhere'" in done.stderr


def test_bounds_that_are_none_are_refused(file: Path) -> None:
    done = run(file, "--at-most", "d")
    assert done.returncode == 2 and "d is not name=number,name=number" in done.stderr


def test_names_that_are_absent_raise_where_they_are_used() -> None:
    tree, _ = rewrite(FILE, "cuda")
    text = ast.unparse(tree)
    assert "_tile_of = Absent('flash_attn.flash_attn_interface._tile_of')" in text
    assert "build = Absent('flash_attn.models.gpt.build')" in text
    assert "from flash_attn.flash_attn_interface import _flash_attn_forward\n" in text
    assert "from flash_attn.models" not in text
    assert not Absent("flash_attn.flag")
    with pytest.raises(NotImplementedError, match=r"flashsmith has no flash_attn\.f"):
        Absent("flash_attn.f")(1, x=2)


def test_the_cpu_stands_for_the_gpu() -> None:
    text = ast.unparse(rewrite(FILE, "cpu")[0])
    assert "cuda" not in text and "is_hopper = (9, 0) == (9, 0)" in text
    text = ast.unparse(rewrite(FILE, "cuda")[0])
    assert "torch.cuda.set_device(" in text and "device='cuda'" in text
    assert "torch.cuda.get_device_capability('cuda')" in text


def test_imports_of_the_future_stay_first() -> None:
    tree, _ = rewrite("'''Doc.'''\nfrom __future__ import annotations\nimport math\n", "cpu")
    compile(tree, "file", "exec")


@pytest.mark.parametrize("b", [None, 16])
@pytest.mark.parametrize("d, seqlen_q", [(32, 5), (64, 50)])
def _parametrized(d: int, seqlen_q: int, b: int | None) -> None: ...


def test_cases_are_every_value_with_every_other() -> None:
    grid = Grid.of(_parametrized)
    assert len(grid) == 4 and len(Grid.of(len)) == 1
    found = {(case["d"], case["seqlen_q"], case["b"]) for case in grid}
    assert found == {(32, 5, None), (32, 5, 16), (64, 50, None), (64, 50, 16)}


@pytest.mark.parametrize(
    ("axis", "at_most", "reasons"),
    [
        (("dropout_p", (0.0, 0.1)), {}, {}),
        (("seqlen_k", (3, 4, 5)), {"seqlen": 3}, {"with seqlen over 3": 2}),
        (("d", (64, 96)), {"d": 64}, {"with d over 64": 1}),
        (("deterministic", (False, True)), {"d": 0}, {}),
    ],
)
def test_cases_that_may_not_run_have_a_reason(
    axis: tuple[str, tuple[Any, ...]], at_most: dict[str, int], reasons: dict[str, int]
) -> None:
    name, values = axis
    grid = Grid((((name,), tuple((value,) for value in values)),))
    numbers, found = runnable(grid, at_most)
    assert found == Counter(reasons)
    assert len(numbers) == len(values) - found.total() and 0 in numbers


def cases(*kernels: int) -> Iterator[dict[str, Any]]:
    return iter([{"kernel": kernel} for kernel in kernels])


def drawn(candidates: dict[str, Any], limits: Limits) -> dict[str, list[int]]:
    def needed(name: str, case: dict[str, Any]) -> Any:
        return {case["kernel"], *case.get("others", ())}

    sample = draw(candidates, limits, lambda name, case: case["kernel"] // 10, needed)
    assert len(sample.kernels) <= limits.kernels
    return {name: [case["kernel"] for case in taken] for name, taken in sample.cases.items()}


def test_tests_take_their_cases_in_turn_until_there_are_kernels_enough() -> None:
    candidates = {"a": cases(1, 2, 3, 11, 1), "b": cases(11, 3, 2, 1)}
    assert drawn(candidates, Limits(9, 3)) == {"a": [1, 2, 11, 1], "b": [11, 2, 1]}


def test_all_kernels_of_a_case_count() -> None:
    cases = [{"kernel": 1, "others": [2]}, {"kernel": 3, "others": [4]}, {"kernel": 2}]
    assert drawn({"a": iter(cases)}, Limits(9, 3)) == {"a": [1, 2]}


def test_no_test_has_more_cases_than_asked_for() -> None:
    assert drawn({"a": cases(1, 1, 1), "b": cases(2)}, Limits(2, 9)) == {"a": [1, 1], "b": [2]}


def test_cases_of_a_new_kind_are_passed_over_without_asking() -> None:
    asked = []

    def needed(name: str, case: dict[str, Any]) -> Any:
        asked.append(case["kernel"])
        return {case["kernel"]}

    draw({"a": cases(1, 55, 2, 1)}, Limits(9, 1), lambda name, case: case["kernel"] // 10, needed)
    assert asked == [1, 2, 1]


def test_the_order_depends_on_the_seed_alone() -> None:
    grid = Grid(((("x",), tuple((x,) for x in range(50))),))
    first, again, other = ([c["x"] for c in shuffled(grid, range(50), s)] for s in ("1", "1", "2"))
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(50))


def test_the_kernels_of_a_case_are_those_of_its_calls_forward_and_backward() -> None:
    after = []

    def test(d: int, causal: bool, grad: bool) -> None:
        q = torch.randn(1, 3, 1, d, dtype=torch.float16, requires_grad=grad)
        for _ in range(2):
            o = flashsmith.attention(q, q, q, causal=causal)
        if grad:
            o.sum().backward()
        after.append("launched")

    forward, backward = sorted(
        kernels_of(test, {"d": 64, "causal": True, "grad": True}), key=lambda k: "back" in k.name
    )
    assert isinstance(forward.config, ForwardKernelConfig) and forward.config.d_head == 64
    assert isinstance(backward.config, BackwardKernelConfig) and backward.config.d_head == 64
    assert forward.variant == backward.variant and forward.variant.causal
    assert kernels_of(test, {"d": 64, "causal": True, "grad": False}) == {forward}
    assert len(after) == 2
    assert kernels_of(test, {"d": 7, "causal": True, "grad": False}) == set()  # refused
    assert kernels_of(lambda: pytest.skip("not here"), {}) == set()


def test_few_queries_over_many_keys_are_noted_with_their_kernel() -> None:
    def test() -> None:
        q, k = (torch.randn(1, n, 2, 64, dtype=torch.float16) for n in (2, 600))
        flashsmith.attention(q, k, k)

    (kernel,) = kernels_of(test, {})
    assert isinstance(kernel.config, DecodeKernelConfig)


def test_calls_have_kernels_again_after_fallbacks() -> None:
    q = torch.randn(1, 3, 1, 64, dtype=torch.float16, requires_grad=True)
    found = []

    def attend() -> None:
        o = flashsmith.attention(q, q, q)
        found.append((o, *torch.autograd.grad(o, q, torch.ones_like(o))))

    assert kernels_of(attend, {})
    attend()
    _, (_, of_all_three) = found
    rows = q.detach()
    expected = reference_gradients(rows, rows, rows, torch.ones_like(rows))
    torch.testing.assert_close(
        of_all_three.double(), expected.q + expected.k + expected.v, atol=0.01, rtol=0.01
    )


def test_heads_that_share_kernels_are_of_a_kind() -> None:
    def kind(d: int, name: str = "test_output", **case: Any) -> Any:
        return kind_of(name, {"d": d, "causal": True} | case)

    assert kind(32) == kind(40) == kind(59) != kind(64)
    assert kind(96) != kind(80) and kind(300) != kind(256)
    assert kind(64) != kind(64, "test_varlen_output") and kind(64) != kind(64, causal=False)
    assert kind(64) == kind(64, deterministic=True) and kind(64) != kind(64, dropout_p=0.2)


def test_a_kernel_that_cannot_be_built_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise BuildError("it spills")

    monkeypatch.setattr(command, "load_kernels", fail)
    command.build([KernelId(get_kernel_progression_configs()[0], FULL)], "cpu")
    assert capsys.readouterr().out == "not all kernels could be built: it spills\n"


def test_the_file_that_runs_has_the_drawn_cases_alone() -> None:
    tree, _ = rewrite(FILE, "cpu")
    case = {"seqlen_q": 5, "seqlen_k": 5, "causal": False, "dropout_p": 0.0, "dtype": torch.float16}
    tree = ast.parse(write_cases(tree, {"test_output": [case], "test_wrong": []}))
    source = source_of(tree, "test_output")
    assert source.startswith(
        "@pytest.mark.parametrize(['seqlen_q', 'seqlen_k', 'causal', 'dropout_p', 'dtype'], "
        "[(5, 5, False, 0.0, torch.float16)])\n"
    )
    assert "test_wrong" not in ast.unparse(tree) and "def plain" in ast.unparse(tree)


def test_outcomes_are_those_of_pytest(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_a[1]"/><testcase name="test_a[2]"><failure/></testcase>'
        '<testcase name="test_a[3]"><skipped/></testcase>'
        '<testcase name="test_b"><error/></testcase>'
        '<testcase name="test_c"><system-out/></testcase>'
        "</testsuite></testsuites>"
    )
    passed, skipped = read_outcomes(path)
    assert passed == Counter(test_a=1, test_c=1) and skipped == Counter(test_a=1)
