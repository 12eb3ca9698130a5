"""Which configuration is chosen when the caller names none, from which table, and what is said."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
)
from flashsmith.configs.families import SM80_FORWARD
from flashsmith.errors import TuningError
from flashsmith.ops.forward import attention
from flashsmith.problem import LENGTH_BUCKETS
from flashsmith.selection import select_config
from flashsmith.selection.choose import find_tables
from flashsmith.selection.tables import (
    Table,
    gpu_slug,
    user_table_path,
)
from support.tables import (
    A100,
    H200,
    LARGE,
    SM90,
    SMALL,
    STAMP,
    chosen,
    make_entry,
    write_user_table,
)

pytestmark = pytest.mark.usefixtures("tuned")


def test_users_table_comes_before_the_shipped_one() -> None:
    shipped = chosen()
    assert shipped.source.title == "shipped table"
    path = write_user_table(make_entry())
    own = chosen()
    assert (own.config, own.source.title, own.source.path) == (LARGE, "your table", path)
    assert own.config != shipped.config
    assert chosen(seq_len=2048).source.title == "shipped table"  # an entry that the user has not


def test_without_a_table_the_rule_decides() -> None:
    choice = chosen(gpu=A100)
    assert choice.source is None
    assert choice.config == SM80_FORWARD.rule(DType.FP16, 128, 1024)
    assert "shipped table: there is none" in choice.passed_over[1]


def test_an_entry_serves_every_length_of_its_bucket() -> None:
    write_user_table(make_entry())
    for seq_len in (513, 960, 1000, 1024):
        assert chosen(seq_len=seq_len, gpu=H200).config == LARGE


def test_an_entry_of_families_that_do_not_run_there_is_passed_over() -> None:
    write_user_table(make_entry([SM90]), gpu=A100)
    choice = chosen(gpu=A100)
    assert choice.config == SM80_FORWARD.rule(DType.FP16, 128, 1024)
    assert f"none of its kernels serves: the sm90 family does not run on {A100}" in " ".join(
        choice.passed_over
    )


def test_another_dtype_lends_its_tiles_after_both_tables_failed() -> None:
    write_user_table(make_entry([SMALL]), gpu=A100)  # no table is shipped for it
    assert chosen(dtype=DType.BF16, gpu=A100).config == replace(SMALL, dtype=DType.BF16)
    # Where the shipped table has the dtype, the user's of another dtype lends nothing.
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
    Table.of(STAMP | stamp, [make_entry()]).write(path)
    with pytest.warns(UserWarning, match=reason):
        choice = chosen()
    assert choice.source.title == "shipped table"
    assert reason in choice.passed_over[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"mask": "full"', '"mask": "half"'),
        lambda text: text.replace("(FP16, 128, 128", "(FP16, 64, 128"),
        lambda text: text.replace('"tried": 40,', ""),
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
    table = Table.of(STAMP, [make_entry(), make_entry([SMALL], 4096, "causal")])
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
        Table.of(STAMP, [make_entry([SMALL])]).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_gpu_names_are_normalised() -> None:
    assert gpu_slug("NVIDIA H200") == gpu_slug("nvidia  h200") == "h200"
    assert gpu_slug("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"


def test_cpu_tensors_get_the_rule_and_no_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "read", lambda path: pytest.fail("a table was read"))
    q = torch.empty(1, 1024, 1, 128, dtype=torch.float16)
    assert select_config(q) == SM80_FORWARD.rule(DType.FP16, 128, 1024)


def test_gpu_tensors_get_the_table_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = {"cuda:0": (A100, (8, 0)), "cuda:1": (H200, (9, 0))}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpus[str(device)][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpus[str(device)][1])
    write_user_table(make_entry([SMALL], mask="causal"))
    q = torch.empty(1, 1024, 1, 128, dtype=torch.float16)
    rule = SM80_FORWARD.rule(DType.FP16, 128, 1024)
    assert select_config(q, True, torch.device("cuda", 1)) == SMALL
    assert select_config(q, True, torch.device("cuda", 0)) == rule


def test_attention_selects_for_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(q: torch.Tensor, causal: bool, **_: object) -> FlashForwardKernelConfig:
        asked.append(causal)
        raise KeyboardInterrupt

    monkeypatch.setattr("flashsmith.ops.forward.select_config", spy)
    q = torch.empty(1, 64, 1, 64, dtype=torch.float16)
    for causal in (False, True):
        with pytest.raises(KeyboardInterrupt):
            attention(q, q, q, causal=causal)
    assert asked == [False, True]


def test_selection_is_cheap_after_the_first_call() -> None:
    q = torch.empty(1, 512, 1, 64, dtype=torch.float16)
    select_config(q, True)
    best = min(_seconds(q) for _ in range(20))
    assert best < 5e-6


def _seconds(q: torch.Tensor, calls: int = 200) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        select_config(q, True)
    return (time.perf_counter() - start) / calls


def test_tables_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = Table.read
    monkeypatch.setattr(Table, "read", lambda path: reads.append(path) or read(path))
    for seq_len in LENGTH_BUCKETS:
        chosen(seq_len)
    assert len(reads) == 1
    assert find_tables(H200) is find_tables(H200)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((64, 2, 64), torch.float16, ValueError, "3 dimensions"),
        ((1, 64, 2, 80), torch.float16, ValueError, "d_head 80; supported are 64, 96, 128"),
        ((1, 64, 2, 64), torch.float32, TypeError, "torch.float32"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    shape: tuple[int, ...], dtype: torch.dtype, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        select_config(torch.empty(shape, dtype=dtype))
