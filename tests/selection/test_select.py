"""The configuration that is chosen when the caller names none, its table, and the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    FlashForwardKernelConfig,
    Workload,
    get_sm90_autotuning_kernel_configs,
    operation,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.errors import TuningError
from flashsmith.ops.attention import attention
from flashsmith.ops.choices import Choices
from flashsmith.problem import LENGTH_BUCKETS, Problem
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.selection.choose import choose, find_tables
from flashsmith.selection.select import select_config
from flashsmith.selection.tables import (
    Table,
    gpu_slug,
    user_table_path,
)
from support.executed import executed
from support.tables import (
    A100,
    H200,
    LARGE,
    SM90,
    SM90_BF16,
    SMALL,
    STAMP,
    chosen,
    explained,
    make_entry,
    write_user_table,
)
from support.workloads import square

pytestmark = pytest.mark.usefixtures("tuned")


def test_users_table_comes_before_the_shipped_one() -> None:
    shipped = chosen()
    assert shipped.source.title == "shipped table"
    path = write_user_table(make_entry())
    own = chosen()
    assert (own.config, own.source.title, own.source.path) == (LARGE, "your table", path)
    assert own.config != shipped.config
    assert chosen(seq_len=2048).source.title == "shipped table"  # the user's table lacks this row


def test_without_a_table_the_heuristic_decides() -> None:
    choice = chosen(gpu=A100)
    assert choice.source is None
    assert choice.config == SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 1024))
    assert "shipped table: there is none" in choice.passed_over[1]


def test_an_entry_serves_every_length_of_its_bucket() -> None:
    write_user_table(make_entry())
    for seq_len in (513, 960, 1000, 1024):
        assert chosen(seq_len=seq_len, gpu=H200).config == LARGE


def test_a_grid_that_fills_the_gpu_otherwise_has_an_entry_of_its_own() -> None:
    full, few = make_entry([LARGE]), make_entry([SMALL])
    few = replace(few, workload=square(DType.FP16, 128, "full", 1, 16, 1024))
    write_user_table(full, few)
    assert [choose(each, H200).config for each in (full.workload, few.workload)] == [LARGE, SMALL]


def test_the_heuristic_serves_where_its_tiles_are_clearly_fewer_waves() -> None:
    """The table's tiles have 192 rows at full fill; it has no row for a quarter of the GPU."""
    space = get_sm90_autotuning_kernel_configs([DType.FP16], [128])
    tall = next(config for config in space if config.B_r == 192)
    entry = make_entry([tall])
    write_user_table(entry)
    many, few = (square(DType.FP16, 128, "full", batch, 16, 1024) for batch in (4, 1))
    assert choose(many, H200).config == tall
    rather = choose(few, H200)
    assert rather.source is None and rather.config.B_r < 192
    assert "measured on a fuller GPU; the heuristic's tiles save" in rather.passed_over[-1]
    write_user_table(entry, replace(entry, workload=few))
    assert choose(few, H200).config == tall


def test_the_nearest_measured_fill_serves_where_none_is_of_the_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operation, "_MAX_COST_RATIO", 0.0)
    full, few = make_entry([LARGE]), make_entry([SM90_BF16])
    few = replace(few, workload=square(DType.BF16, 128, "full", 1, 16, 1024))
    write_user_table(full, few, gpu=A100)
    lone = square(DType.FP16, 128, "full", 1, 16, 1024)
    assert choose(lone, A100).config == LARGE, "no sm90 kernel runs there"
    near = replace(few, workload=square(DType.FP16, 128, "full", 2, 16, 1024))
    write_user_table(full, replace(near, ranked=make_entry([SMALL]).ranked), gpu=A100)
    assert choose(lone, A100).config == SMALL
    text = explained(
        "--gpu", A100, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16", "--mask", "full",
        "--batch", 1, "--heads", 16,
    )  # fmt: skip
    assert "257 to 512 rows an SM; the nearest that was measured to lengths" in text
    assert "measured to lengths 513 to 1024, 129 to 256 rows an SM" in text


def test_the_other_dtype_at_this_fill_comes_before_another_fill() -> None:
    other = make_entry([SMALL.for_dtype(DType.BF16)])
    lone = square(DType.FP16, 128, "full", 1, 16, 1024)
    other = replace(other, workload=square(DType.BF16, 128, "full", 1, 16, 1024))
    write_user_table(make_entry([LARGE]), other, gpu=A100)
    assert choose(lone, A100).config == SMALL
    write_user_table(make_entry([LARGE]), gpu=A100)
    own, far = choose(make_entry().workload, A100), choose(lone, A100)
    assert [any("no entry for BF16" in why for why in each.passed_over) for each in (own, far)] == [
        False,
        True,
    ], "a table is passed over when its entry is asked for"


def test_the_shipped_entry_of_the_same_fill_comes_before_the_users_of_another() -> None:
    entry = replace(make_entry(), workload=square(DType.FP16, 128, "full", 1, 1, 1024))
    write_user_table(entry)
    assert chosen().source.title == "shipped table"
    assert choose(entry.workload, H200).config == LARGE


def test_kernels_outside_the_portfolio_serve_nothing() -> None:
    entry = make_entry([LARGE, SMALL])
    outside, inside = (replace(row, in_portfolio=False) for row in entry.ranked[:1]), entry.ranked
    write_user_table(replace(entry, ranked=(*outside, *inside[1:])))
    assert chosen().config == SMALL
    text = explained("--gpu", H200, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16",
                     "--mask", "full", "--batch", 4, "--heads", 16)  # fmt: skip
    assert f"100.0 % slower than {LARGE}, the fastest of 40, which is not in it" in text
    none = [replace(row, in_portfolio=False) for row in entry.ranked]
    write_user_table(replace(entry, ranked=tuple(none)), gpu=A100)
    choice = chosen(gpu=A100)
    assert choice.source is None
    assert "none of its kernels serves: none is in the portfolio" in " ".join(choice.passed_over)


def test_an_entry_of_families_that_do_not_run_there_is_passed_over() -> None:
    write_user_table(make_entry([SM90]), gpu=A100)
    choice = chosen(gpu=A100)
    assert choice.config == SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 1024))
    assert f"none of its kernels serves: the sm90 family does not run on {A100}" in " ".join(
        choice.passed_over
    )


def test_another_dtype_lends_its_tiles_after_both_tables_failed() -> None:
    write_user_table(make_entry([SMALL]), gpu=A100)  # no table is shipped for it
    assert chosen(dtype=DType.BF16, gpu=A100).config == replace(SMALL, dtype=DType.BF16)
    # If the shipped table has the dtype, the user's table of another dtype is not used.
    write_user_table(make_entry([SMALL]))
    assert chosen(dtype=DType.BF16).source.title == "shipped table"


def test_mask_and_head_dimension_have_entries_of_their_own() -> None:
    write_user_table(make_entry([SMALL], mask="causal"))
    assert chosen(causal=True).config == SMALL
    assert chosen(causal=False).config != SMALL
    assert chosen(causal=True, d_head=64).config.d_head == 64


@pytest.mark.parametrize(
    ("gpu", "stamp", "reason"),
    [
        (H200, {"kernels_sm80": "0123"}, "kernels of sm_80: 0123 there"),
        (H200, {"gpu": "NVIDIA H100"}, "GPU: NVIDIA H100 there, NVIDIA H200 here"),
    ],
)
def test_users_table_from_elsewhere_is_refused_with_a_warning(
    gpu: str, stamp: dict[str, str], reason: str
) -> None:
    path = user_table_path(gpu)
    Table.of(FORWARD, STAMP | stamp, [make_entry()]).write(path)
    with pytest.warns(UserWarning, match=reason):
        choice = chosen()
    assert choice.source.title == "shipped table"
    assert reason in choice.passed_over[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: "",
        lambda text: text.replace("format 2", "format 1"),
        lambda text: text.replace(",full,", ",half,"),
        lambda text: text.replace("(FP16, 128, 128", "(FP16, 64, 128"),
        lambda text: text.replace(",tried,", ","),
        lambda text: text.replace(",40,", ",many,"),
        lambda text: text.replace(",yes,", ",perhaps,"),
        lambda text: text.replace("# date: d", "# date"),
        lambda text: text.rstrip("\n"),
        lambda text: text[: text.rindex("FP16,128")],  # the last row is gone
    ],
)
def test_damaged_table_is_refused_and_never_crashes_a_call(damage: Any) -> None:
    path = write_user_table(make_entry())
    path.write_text(damage(path.read_text()))
    with pytest.raises(TuningError, match=str(path)):
        Table.read(path)
    with pytest.warns(UserWarning, match="--force"):
        assert chosen().source.title == "shipped table"


def test_table_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    entry = make_entry([LARGE, SMALL], 4096, "causal")
    rest = replace(entry.ranked[0], in_portfolio=False, ms_back_to_back=0.123456789)
    excluded = {"(FP16, 128, 64, 64, 4): async": "wrong: 1, 2", "b": "x"}
    other = replace(
        entry, excluded=excluded, heuristic_ratio=None, ranked=(rest, *entry.ranked[1:])
    )
    decode = replace(make_entry(), workload=Workload(Problem(DType.FP16, 128, 3, 8, 2, 1, 9000)))
    table = Table.of(FORWARD, STAMP, [make_entry(), other, decode])
    assert len(table.entries) == 3
    table.write(tmp_path / "deep" / "t.json")
    assert Table.read(tmp_path / "deep" / "t.json") == table


def test_table_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_user_table(make_entry())
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Table.of(FORWARD, STAMP, [make_entry([SMALL])]).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_gpu_names_are_normalised() -> None:
    assert gpu_slug("NVIDIA H200") == gpu_slug("nvidia  h200") == "h200"
    assert gpu_slug("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"


def test_cpu_tensors_get_the_heuristic_and_no_table_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Table, "read", lambda path: pytest.fail("a table was read"))
    q = torch.empty(1, 1024, 1, 128, dtype=torch.float16)
    assert select_config(q) == SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 1024))


def test_gpu_tensors_get_the_table_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {"cuda:0": (A100, (8, 0)), "cuda:1": (H200, (9, 0))}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpus[str(device)][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpus[str(device)][1])
    write_user_table(make_entry([SMALL], mask="causal"))
    q = torch.empty(4, 1024, 32, 128, dtype=torch.float16)
    heuristic = SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 1024))
    assert select_config(q, True, torch.device("cuda", 1)) == SMALL
    assert select_config(q, True, torch.device("cuda", 0)) == heuristic


def test_attention_selects_for_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(workload: Workload, *_: object) -> FlashForwardKernelConfig:
        asked.append(workload.variant)
        raise KeyboardInterrupt

    monkeypatch.setattr("flashsmith.ops.launch.select_for", spy)
    monkeypatch.setattr("flashsmith.ops.launch._choices", Choices())
    launch_cache.forget()
    q = torch.empty(1, 64, 1, 64, dtype=torch.float16)
    for causal in (False, True):
        with pytest.raises(KeyboardInterrupt):
            attention(q, q, q, causal=causal)
    assert asked == [FULL, CAUSAL]


def test_selection_is_cheap_after_the_first_call() -> None:
    q = torch.empty(1, 512, 1, 64, dtype=torch.float16)
    assert 0 < executed(lambda: select_config(q, True)).instructions < 40


def test_tables_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = Table.read
    monkeypatch.setattr(Table, "read", lambda path: reads.append(path) or read(path))
    for seq_len in LENGTH_BUCKETS:
        chosen(seq_len)
    assert len(reads) == 1
    assert find_tables(FORWARD, H200) is find_tables(FORWARD, H200)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((64, 2, 64), torch.float16, ValueError, "3 dimensions"),
        ((1, 64, 2, 84), torch.float16, ValueError, "d_head 84; supported are multiples of 8"),
        ((1, 64, 2, 264), torch.float16, ValueError, "d_head 264; .* up to 256"),
        ((1, 64, 2, 64), torch.float32, TypeError, "torch.float32"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    shape: tuple[int, ...], dtype: torch.dtype, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        select_config(torch.empty(shape, dtype=dtype))
