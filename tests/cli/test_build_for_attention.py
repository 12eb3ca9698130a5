"""`flashsmith build --for-attention`: afterwards attention() needs no compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import flashsmith
from flashsmith import settings
from flashsmith.cli import app
from flashsmith.cli import build as build_command
from flashsmith.configs import (
    CAUSAL,
    FULL,
    VARIANTS,
    DType,
    FlashDecodeKernelConfig,
    KernelId,
    Sm90DecodeKernelConfig,
    Sm90ForwardKernelConfig,
    Workload,
    get_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import D_HEADS, TuningKey
from flashsmith.errors import KernelNotFoundError
from flashsmith.jit import Module, Target, kernel_source_stamp
from flashsmith.lab.commands import build as lab_build
from flashsmith.lab.commands.driver import Gpu
from flashsmith.ops.choices import Choices
from flashsmith.problem import FILL_BUCKETS, LENGTH_BUCKETS, Bucket, Problem
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.selection.choose import choose, forget_tables
from flashsmith.selection.served import gpus_with_tables, served_instances
from flashsmith.selection.tables import Table, shipped_table_path, user_table_path
from support.caches import kernel_free_cache

EMULATOR = Target.emulator()
H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def _no_tables_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(settings.TUNED.name, str(tmp_path / "tuned"))
    forget_tables()
    yield
    forget_tables()


def build(*args: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["build", "--for-attention", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_attention_then_works_with_building_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test runs on the emulator, for one dtype and d_head, with every kind of shape."""
    cache = kernel_free_cache(tmp_path / "cache")
    monkeypatch.setenv(settings.CACHE_DIR.name, str(cache.root))
    monkeypatch.setattr("flashsmith.ops.launch._kernels", {})
    monkeypatch.setattr("flashsmith.ops.launch._choices", Choices())
    launch_cache.forget()
    monkeypatch.setattr("flashsmith.runtime.kernels._loaded", {})
    args = ("--target", "emulator", "--dtype", "fp16", "--d-head", 64)
    document = json.loads(build(*args, "--json").stdout)
    built = {row["kernel"] for row in document["kernels"]}
    # The kernels are for lengths that blocks of 128 divide, for other lengths, and for few queries
    # of 16, 32 and 64 rows; each is full and causal.
    assert len(built) == 2 * (2 + 3)
    monkeypatch.setenv(settings.BUILD.name, "0")
    for causal, (q_len, k_len), lse in product(
        (False, True), ((64, 64), (128, 128), (50, 70), (20, 520)), (False, True)
    ):
        q, k = (torch.randn(1, n, 1, 64).half() for n in (q_len, k_len))
        flashsmith.attention(q, k, k.clone(), causal=causal, return_lse=lse)
    with pytest.raises(KernelNotFoundError):
        other = torch.randn(1, 64, 1, 128).half()
        flashsmith.attention(other, other.clone(), other.clone())


@pytest.mark.parametrize("gpu", [H200, A100, None])
def test_whatever_is_chosen_is_among_the_served(gpu: str | None) -> None:
    served = set(served_instances(gpu))
    lengths = [n for bucket in LENGTH_BUCKETS for n in (bucket - 64, bucket, 2 * bucket)]
    taken = set()
    for dtype, d_head, seq_len in product(DType, D_HEADS, [*lengths, 1, 777, 5001]):
        problem = Problem.square(dtype, d_head, 1, 2, seq_len)
        few = replace(problem, seq_len_q=1 + seq_len // 40, heads=6)
        for each, variant in product((problem, replace(problem, heads_kv=1), few), VARIANTS):
            choice = choose(Workload(each, variant), gpu)
            taken.add(KernelId(choice.config, variant))
    assert taken <= served
    assert any(each.config.operation == "decode" for each in taken)


@pytest.mark.parametrize("gpu", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"])
def test_nothing_is_served_that_does_not_fit_the_gpu(gpu: str) -> None:
    assert [k.name for k in served_instances(gpu) if k.config.problems(gpu)] == []


def test_a_table_of_ones_own_is_served_with_its_best_alone() -> None:
    """A configuration after the best one never serves, since the best one accepts every length."""
    shipped = Table.read(shipped_table_path(H200))
    best, never = get_autotuning_kernel_configs([DType.FP16])[:2]
    entry = shipped.entries[TuningKey(DType.FP16, 128, "full", Bucket(1024, FILL_BUCKETS[-1]))]
    rows = [type(entry.ranked[0])(cfg, ms, ms, ms, 1.0) for ms, cfg in enumerate((best, never), 1)]
    changed = replace(entry, ranked=tuple(rows))
    chosen = {"dtypes": [DType.FP16], "d_heads": [128], "variants": [FULL]}
    before = {instance.config for instance in served_instances(A100, **chosen)}
    stamp = {**shipped.stamp, **kernel_source_stamp(), "gpu": A100}
    Table.of(FORWARD, stamp, [changed]).write(user_table_path(A100))
    forget_tables()
    after = {instance.config for instance in served_instances(A100, **chosen)}
    assert after - before == {best}
    assert gpus_with_tables("sm_80") == [A100]
    assert gpus_with_tables("sm_90") == [H200]


def test_what_serves_grids_of_few_tiles_is_built_too() -> None:
    shipped = Table.read(shipped_table_path(H200))
    full, few = get_autotuning_kernel_configs([DType.FP16])[:2]
    entry = shipped.entries[TuningKey(DType.FP16, 128, "full", Bucket(1024, FILL_BUCKETS[-1]))]
    rows = [(type(entry.ranked[0])(cfg, 1.0, 1.0, 1.0, 1.0),) for cfg in (full, few)]
    small = Workload(Problem.square(DType.FP16, 128, 1, 16, 1024))
    entries = [
        replace(entry, ranked=rows[0]),
        replace(entry, workload=small, ranked=rows[1]),
    ]
    stamp = {**shipped.stamp, **kernel_source_stamp(), "gpu": A100}
    Table.of(FORWARD, stamp, entries).write(user_table_path(A100))
    forget_tables()
    served = served_instances(A100, dtypes=[DType.FP16], d_heads=[128], variants=[FULL])
    assert {full, few} <= {instance.config for instance in served}


def test_files_that_are_no_table_of_a_known_gpu_are_passed_over() -> None:
    shipped = Table.read(shipped_table_path(H200))
    without = {name: value for name, value in shipped.stamp.items() if name != "gpu"}
    Table(FORWARD, without, shipped.entries).write(user_table_path("nameless"))
    Table(FORWARD, {**without, "gpu": "Voodoo 2"}, shipped.entries).write(
        user_table_path("Voodoo 2")
    )
    user_table_path("notes").write_text("{}")
    Table(FORWARD, {**without, "gpu": A100}, shipped.entries).write(user_table_path(A100))
    assert gpus_with_tables("sm_80") == [A100]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[Target, list[KernelId]]:
    """Returns what the command would build, per target; it finds no GPU."""
    calls: dict[Target, list[KernelId]] = {}

    def note_call(instances: Any, target: Target, **_: Any) -> list[Module]:
        calls[target] = list(instances)
        return []

    monkeypatch.setattr(build_command, "build_kernels", note_call)
    monkeypatch.setattr(lab_build, "find_gpus", lambda: ([], "none"))
    monkeypatch.delenv(settings.ARCH.name, raising=False)
    return calls


def test_each_architecture_has_the_kernels_that_run_there(built: Any) -> None:
    build("--arch", "sm_80,sm_90a")
    assert set(built) == {Target.cuda("sm_80"), Target.cuda("sm_90a")}
    for target, instances in built.items():
        (arch,) = target.archs
        assert instances and all(not each.config.problems(arch) for each in instances)
    sm90 = built[Target.cuda("sm_90a")]
    # Without a GPU, the command takes all tables of the architecture, and the heuristic for GPUs
    # that have no table.
    assert sm90 == sorted({*served_instances(H200), *served_instances("sm_90a")})
    assert {each.variant for each in sm90} == {FULL, CAUSAL}
    built.clear()
    build("--gpu", "h200", "--dtype", "bf16", "--d-head", "64,256", "--mask", "causal")
    (found,) = built.values()
    assert {each.config.dtype for each in found} == {DType.BF16}
    assert {each.config.d_head for each in found} == {64, 256}
    assert {each.variant for each in found} == {CAUSAL}
    assert set(found) < set(sm90)


def test_this_gpu_is_the_default(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Gpu("NVIDIA Engineering Sample", (9, 0), "1 MiB", "1")
    monkeypatch.setattr(lab_build, "find_gpus", lambda: ([here], ""))
    build("--target", "cuda")
    assert list(built) == [Target.cuda("sm_90a")]
    heuristic = built[Target.cuda("sm_90a")]
    assert heuristic == served_instances("sm_90a")  # no table has this GPU's name
    kinds = {type(each.config) for each in heuristic}
    assert kinds == {Sm90ForwardKernelConfig, FlashDecodeKernelConfig, Sm90DecodeKernelConfig}


def test_build_lists_what_was_asked_for_alone() -> None:
    """The cache may have more kernels; the list leaves them out."""
    plain, swizzled = (
        f"(FP16, 64, 64, 64, 4): async+{feature}load_0_0_0_tiles" for feature in ("", "swizzled+")
    )

    def listed(*names: str) -> list[str]:
        words = [word for name in names for word in ("-k", name)]
        result = CliRunner().invoke(app, ["build", "--target", "emulator", *words, "--json"])
        assert result.exit_code == 0, result.output
        return [row["kernel"] for row in json.loads(result.stdout)["kernels"]]

    assert listed(plain, swizzled) == [plain, swizzled]
    assert listed(swizzled) == [swizzled]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-k", "prog"), "leave out --kernels"),
        (("--gpu", "h200", "--arch", "sm_80"), "--gpu stands in place of --arch"),
        (("--gpu", "h200", "--target", "emulator"), "the emulator has none"),
        (("--gpu", "banana"), "gpu 'banana' is not known"),
        (("--gpu", "T4"), "need compute capability 8.0"),
        (("--d-head", "80"), "--d-head is 80"),
    ],
)
def test_refused(args: tuple[str, ...], message: str, built: Any) -> None:
    assert message in build(*args, code=2).stderr
    assert not built
