"""Which configuration is chosen when the caller names none, from which table, and what is said."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.configs import (
    CAUSAL,
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    Sm90ForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.families import SM80_FORWARD, SM90_FORWARD
from flashsmith.errors import DeviceError, TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import kernel_source_stamp
from flashsmith.ops.forward import attention
from flashsmith.selection import select_config, tables
from flashsmith.selection.choose import choose, find_tables, forget_tables
from flashsmith.selection.tables import (
    LENGTH_BUCKETS,
    Entry,
    Measured,
    Table,
    gpu_slug,
    length_bucket,
    shipped_table_path,
    user_table_path,
)

A100, H100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
LARGE, SMALL = (
    next(cfg for cfg in get_autotuning_kernel_configs([DType.FP16]) if (cfg.B_r, cfg.B_c) == tile)
    for tile in ((128, 32), (64, 32))
)
SM90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[0]
SM90_BF16 = next(
    cfg for cfg in get_sm90_autotuning_kernel_configs([DType.BF16], [128]) if cfg.stale_maximum
)
STAMP = {"gpu": H200, "driver_version": "580.1", "date": "d", **kernel_source_stamp()}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table for the H200 that has entries of every dtype, mask and length."""
    folder = tmp_path_factory.mktemp("shipped")
    sm90 = get_sm90_autotuning_kernel_configs(d_heads=(64, 128))
    firsts = {(cfg.dtype, cfg.d_head): cfg for cfg in reversed(sm90)}
    Table.of(
        STAMP,
        [
            make_entry([cfg], bucket, mask)
            for cfg in firsts.values()
            for bucket in LENGTH_BUCKETS
            for mask in ("full", "causal")
        ],
    ).write(folder / shipped_table_path(H200).name)
    return folder


@pytest.fixture(autouse=True)
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped: Path) -> Iterator[Path]:
    """Where the user's tables are: nobody's own, and none at first."""
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    monkeypatch.setattr(tables, "_SHIPPED", shipped)
    forget_tables()
    yield tmp_path
    forget_tables()


def make_entry(
    configs: Sequence[ForwardKernelConfig] = (LARGE, SMALL),
    seq_len: int = 1024,
    mask: str = "full",
) -> Entry:
    """An entry in which each configuration takes 1 ms longer than the one before."""
    cfg = configs[0]
    ranked = [Measured(c, ms, ms - 0.1, ms + 0.1, 100 / ms) for ms, c in enumerate(configs, 1)]
    return Entry(
        cfg.dtype, cfg.d_head, mask, 4, 16, seq_len,
        tried=40, excluded={}, rule_ratio=1.5, ranked=tuple(ranked),
    )  # fmt: skip


def write_user_table(*entries: Entry, gpu: str = H200, **stamp: str) -> Path:
    path = user_table_path(gpu)
    Table.of(STAMP | {"gpu": gpu} | stamp, entries).write(path)
    forget_tables()
    return path


def chosen(
    seq_len: int = 1024, dtype: DType = DType.FP16, gpu: str | None = H200, **more: Any
) -> Any:
    return choose(dtype, more.get("d_head", 128), seq_len, more.get("causal", False), gpu)


def explained(*args: object) -> str:
    result = CliRunner().invoke(app, ["tune", "--explain", *map(str, args)])
    assert result.exit_code == 0, result.output
    return re.sub(" +", " ", result.stdout)


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


def test_blocks_that_do_not_divide_are_passed_over() -> None:
    write_user_table(make_entry())
    assert chosen(seq_len=1024).config == LARGE
    assert chosen(seq_len=960).config == SMALL
    write_user_table(make_entry([LARGE]))
    other = chosen(seq_len=960)
    assert other.source.title == "shipped table"
    assert other.config.takes(960, plain=True)
    assert "no blocks in it divide 960" in other.passed_over[0]


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
    ("seq_len", "bucket"),
    [(64, 512), (512, 512), (576, 1024), (1024, 1024), (16384, 16384), (1 << 20, 16384)],
)
def test_length_bucket_is_the_power_of_two_above(seq_len: int, bucket: int) -> None:
    assert length_bucket(seq_len) == bucket


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
    with pytest.warns(UserWarning, match="--fresh"):
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


# ---- both families


def test_table_decides_between_families_on_sm90_alone() -> None:
    write_user_table(make_entry([SM90, SMALL]))
    assert chosen().config == SM90
    assert chosen(seq_len=1000).config == SM90
    write_user_table(make_entry([SMALL, SM90]))
    assert chosen().config == SMALL
    assert chosen(seq_len=1000).config == SM90  # blocks of the other do not divide it
    write_user_table(make_entry([SM90, SMALL]), gpu=A100)
    assert chosen(gpu=A100).config == SMALL


def test_only_the_sm90_family_serves_what_is_not_plain() -> None:
    write_user_table(make_entry([SMALL, SM90]))
    choice = choose(DType.FP16, 128, 1024, False, H200, plain=False)
    assert choice.config == SM90
    with pytest.raises(ValueError, match=f"{A100} is not of compute capability 9.0"):
        choose(DType.FP16, 128, 1024, False, A100, plain=False)


@pytest.mark.parametrize("d_head", [96, 192, 256])
def test_sm90_rule_takes_every_d_head(d_head: int) -> None:
    rule = SM90_FORWARD.rule(DType.BF16, d_head, 1000)
    choice = chosen(seq_len=1000, dtype=DType.BF16, d_head=d_head, gpu=H100)  # it has no table
    assert (choice.config, choice.source) == (rule, None)
    assert isinstance(rule, Sm90ForwardKernelConfig) and not rule.problems()
    with pytest.raises(ValueError, match=f"d_head {d_head}; .* compute capability 9.0 also"):
        chosen(d_head=d_head, gpu=A100)


def test_ragged_lengths_elsewhere_are_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"1000; it must be a multiple of 64 .*: pad it"):
        chosen(seq_len=1000, gpu=A100)


def test_tiles_of_bf16_serve_fp16_which_has_fewer_exponents() -> None:
    write_user_table(make_entry([SM90_BF16]), gpu=H100)
    lent = chosen(gpu=H100).config
    assert lent == replace(SM90_BF16, dtype=DType.FP16, lazy_rescale_log2=4)
    assert not lent.problems()


def test_table_holds_both_families(tmp_path: Path) -> None:
    table = Table.of(STAMP, [make_entry([SM90, SMALL]), make_entry([SM90_BF16], 4096)])
    table.write(tmp_path / "t.json")
    assert Table.read(tmp_path / "t.json") == table


@pytest.mark.parametrize(
    ("shape", "k_shape", "return_lse", "family"),
    [
        ((1, 128, 4, 128), (1, 128, 4, 128), False, "sm80"),
        ((1, 128, 4, 128), None, False, "sm80"),
        ((1, 128, 4, 128), (1, 128, 4, 128), True, "sm90"),
        ((1, 128, 4, 128), (1, 128, 2, 128), False, "sm90"),
        ((1, 128, 4, 128), (1, 256, 4, 128), False, "sm90"),
        ((1, 100, 4, 128), (1, 100, 4, 128), False, "sm90"),
        ((1, 128, 4, 96), (1, 128, 4, 96), False, "sm90"),
    ],
)
def test_cpu_tensors_get_the_plainest_family_that_takes_them(
    shape: tuple[int, ...], k_shape: tuple[int, ...] | None, return_lse: bool, family: str
) -> None:
    q = torch.empty(shape, dtype=torch.float16)
    k = None if k_shape is None else torch.empty(k_shape, dtype=torch.float16)
    assert select_config(q, k=k, return_lse=return_lse).family == family


def test_length_of_the_keys_chooses_the_bucket() -> None:
    write_user_table(make_entry([SM90], 4096), make_entry([SMALL], 512))
    q, k = (torch.empty(1, n, 1, 128, dtype=torch.float16) for n in (1, 4096))
    choice = choose(DType.FP16, 128, 4096, False, H200, plain=False)
    assert choice.config == SM90
    assert select_config(q, k=k) == SM90_FORWARD.rule(DType.FP16, 128, 4096)  # on a CPU


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("NVIDIA H200", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA H20", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA B200", False),
        ("h200", True),
        ("gh200-480gb", True),
        ("nvidia  h100", True),
        ("GeForce RTX4090", False),
        ("H20000", None),
        ("banana", None),
    ],
)
def test_sm90_by_name(gpu: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=f"gpu '{gpu}' is not known; .*sm_90, .*H200"):
            get_gpu_architecture(gpu)
    else:
        assert (get_gpu_architecture(gpu).compute_capability == (9, 0)) is expected


def test_explain_says_which_entry_and_what_was_measured() -> None:
    rule = SM80_FORWARD.rule(DType.FP16, 128, 1024)
    path = write_user_table(make_entry([LARGE, SMALL, rule]), gpu=A100)
    shape = ("--gpu", A100, "--seq-len", 1000 // 64 * 64, "--d-head", 128, "--mask", "full")
    text = explained(*shape, "--dtype", "fp16")
    assert f"kernel {SMALL}" in text
    assert f"your table {path}" in text
    assert "blocks divide 960" in text
    assert (
        "2 ms; in turn 20th to 80th percentile 1.9 to 2.1 ms and 50.0 TFLOP/s, at batch 4" in text
    )
    text = explained("--gpu", A100, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16",
                     "--mask", "full")  # fmt: skip
    assert "the fastest of 40, for lengths 513 to 1024" in text
    assert f"next best {SMALL}: 2 ms, 100.0 % slower" in text
    assert f"the rule would choose {rule}: 3 ms, 200.0 %" in text


def test_explain_compares_both_regimes_where_the_table_has_them() -> None:
    entry = make_entry([LARGE, SMALL])
    steady = [replace(row, ms_back_to_back=2.0) for row in entry.ranked]  # in turn 1 and 2 ms
    write_user_table(replace(entry, ranked=tuple(steady)), gpu=A100)
    text = explained("--gpu", A100, "--seq-len", 1024, "--d-head", 128, "--dtype", "fp16",
                     "--mask", "full")  # fmt: skip
    assert "measured 1 ms, back to back 2.0 ms; in turn" in text.replace("measured  ", "measured ")
    assert f"next best {SMALL}: 2 ms, back to back 2.0 ms, 41.4 % slower" in text


def test_explain_says_when_tiles_are_of_another_dtype_or_the_rule_decides() -> None:
    shape = ("--seq-len", 4096, "--d-head", 128, "--dtype", "bf16", "--mask", "causal")
    write_user_table(make_entry([SMALL], 4096, "causal"), gpu=A100)  # none is shipped for it
    text = explained("--gpu", A100, *shape)
    assert "measured for FP16, BF16 takes the same tiles" in text
    text = explained("--gpu", "NVIDIA A30", *shape)
    assert "because the rule: B_r 128 where it divides the length" in text
    assert "passed over your table: there is none" in text
    assert "measured" not in text


def test_explain_lists_many_shapes_and_speaks_json() -> None:
    shapes = ("--gpu", H200, "--seq-len", "1024,4096", "--dtype", "fp16", "--d-head", 128)
    table = explained(*shapes)
    assert table.count("shipped table") == 4
    document = json.loads(explained(*shapes, "--json"))
    assert [item["source"] for item in document] == ["shipped table"] * 4
    causal = choose(DType.FP16, 128, 4096, CAUSAL.causal, H200)
    assert document[-1]["kernel"] == str(causal.config)
    assert document[-1]["ms"] == causal.measured.ms  # type: ignore[union-attr]


def test_a_gpu_that_no_family_runs_on_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"Tesla T4 has compute capability 7\.5; the kernels"):
        choose(DType.FP16, 128, 1024, False, "Tesla T4", capability=(7, 5))
