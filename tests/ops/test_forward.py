"""flashsmith.forward and flashsmith.attention on CPU tensors, which the emulator serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
import torch

import flashsmith
from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    KernelId,
)
from flashsmith.jit import KernelCache, Target
from flashsmith.runtime import load_kernels
from flashsmith.selection.select import select_config
from support.caches import kernel_free_cache
from support.problems import TORCH_DTYPES, assert_correct, assert_lse, random_qkv
from support.sm80_kernels import BASE, DECLARED, HEURISTIC
from support.sm90_kernels import LAST

SELECTED = [
    select_config(torch.empty(1, seq_len, 1, 128, dtype=torch.float16)) for seq_len in (64, 128)
]
BF16_64 = replace(BASE, dtype=DType.BF16, d_head=64)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    configs = [BASE, LAST, *SELECTED, *HEURISTIC, BF16_64]
    instances = [KernelId(c, variant) for c in configs for variant in (FULL, CAUSAL)]
    load_kernels(instances, Target.emulator())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("cfg", [BASE, BF16_64], ids=str)
def test_forward_returns_a_new_contiguous_tensor(
    cfg: FlashForwardKernelConfig, causal: bool
) -> None:
    qkv = random_qkv(cfg, seq_len=128, batch=2, heads=2)
    before = [t.clone() for t in qkv]
    o = flashsmith.forward(cfg, *qkv, causal=causal)
    assert_correct(o, qkv, KernelId(cfg, CAUSAL if causal else FULL))
    assert o.is_contiguous() and o.dtype == qkv[0].dtype and o.shape == qkv[0].shape
    assert all(torch.equal(t, b) for t, b in zip(qkv, before, strict=True))


def test_forward_writes_into_a_given_tensor() -> None:
    qkv = random_qkv(BASE, seq_len=128)
    outer = torch.full((1, 128, 3, 128), torch.nan).half()
    o = outer[:, :, 1:2]
    assert flashsmith.forward(BASE, *qkv, o) is o
    assert torch.equal(o, flashsmith.forward(BASE, *qkv))
    assert outer[:, :, ::2].isnan().all()


def test_forward_returns_the_milliseconds() -> None:
    qkv = random_qkv(BASE, seq_len=128)
    for given in (None, torch.empty_like(qkv[0])):
        o, milliseconds = flashsmith.forward(BASE, *qkv, given, benchmark=True)
        assert given is None or o is given
        assert torch.equal(o, flashsmith.forward(BASE, *qkv))
        assert 0 < milliseconds < 60_000


@pytest.mark.parametrize("cfg", [BASE, LAST], ids=["sm80", "sm90"])
def test_forward_returns_what_is_asked(cfg: ForwardKernelConfig) -> None:
    qkv = random_qkv(cfg, 100, heads=2)
    o = flashsmith.forward(cfg, *qkv)
    assert isinstance(o, torch.Tensor)
    with_lse, lse = flashsmith.forward(cfg, *qkv, return_lse=True)
    everything = flashsmith.forward(cfg, *qkv, return_lse=True, benchmark=True)
    assert torch.equal(with_lse, o) and torch.equal(everything[0], o)
    assert torch.equal(everything[1], lse) and everything[2] > 0
    assert (lse.shape, lse.dtype) == ((1, 2, 100), torch.float32)
    assert_lse(lse, qkv, KernelId(cfg))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_attention_takes_every_d_head_and_length(d_head: int, causal: bool) -> None:
    q, k, v = random_qkv(replace(BF16_64, d_head=d_head), 70, 1, 4, 90, 2)
    config = select_config(q, causal, k=k)
    o, lse = flashsmith.attention(q, k, v, causal=causal, return_lse=True)
    instance = KernelId(config, CAUSAL if causal else FULL)
    assert_correct(o, (q, k, v), instance)
    assert_lse(lse, (q, k, v), instance)
    assert torch.equal(flashsmith.attention(q, k, v, causal=causal), o)


@pytest.mark.parametrize("scale", [0.02, 1, 0.5])
def test_softmax_scale(scale: float) -> None:
    qkv = random_qkv(BASE, seq_len=128)
    for causal in (False, True):
        instance = KernelId(BASE, CAUSAL if causal else FULL)
        o = flashsmith.forward(BASE, *qkv, causal=causal, softmax_scale=scale)
        assert_correct(o, qkv, instance, scale)
        o = flashsmith.attention(*qkv, causal=causal, softmax_scale=scale, config=BASE)
        assert_correct(o, qkv, instance, scale)


def test_the_default_scale_is_that_of_d_head() -> None:
    for cfg in (BASE, BF16_64):
        qkv = random_qkv(cfg, seq_len=64)
        o = flashsmith.forward(cfg, *qkv)
        assert torch.equal(o, flashsmith.forward(cfg, *qkv, softmax_scale=cfg.d_head**-0.5))


def test_packed_and_transposed_input() -> None:
    packed = torch.randn(2, 128, 3, 2, 128).half().unbind(2)
    heads_first = tuple(torch.randn(2, 2, 128, 128).half().transpose(1, 2) for _ in range(3))
    for qkv in (packed, heads_first):
        o = flashsmith.attention(*qkv, causal=True)
        assert o.is_contiguous()
        assert_correct(o, qkv, KernelId(SELECTED[1], CAUSAL))


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batch", "sequence", "head"])
def test_offsets_beyond_32_bits(dim: int) -> None:
    """The last index along ``dim`` lies 2^32 bytes behind the first; the memory between is never
    touched."""
    shape = [2, 64, 2, 128]
    size, far = 64 * 2 * 128 * 2, 1 << 31
    memory = torch.empty(far + 8 * size, dtype=torch.float16)
    strides = [64 * 2 * 128, 2 * 128, 128, 1]
    strides[dim] = far // (shape[dim] - 1) // 8 * 8
    # Each of q, k, v, o lies in the gaps of the others.
    q, k, v, o = (memory[i * size :].as_strided(shape, strides) for i in range(4))
    for t in (q, k, v):
        t.copy_(torch.randn(shape))
    flashsmith.forward(BASE, q, k, v, o)
    near = [t.contiguous() for t in (q, k, v)]
    assert torch.equal(o, flashsmith.forward(BASE, *near))


@pytest.mark.parametrize(("seq_len", "B_r"), [(64, 64), (256, 64), (257, 128)])
def test_attention_follows_the_heuristic(seq_len: int, B_r: int) -> None:
    qkv = random_qkv(BASE, seq_len=seq_len)
    config = select_config(qkv[0])
    assert (config.B_r, config.B_c, config.n_warps) == (B_r, 64, 4)
    o = flashsmith.attention(*qkv)
    assert torch.equal(o, flashsmith.forward(config, *qkv))
    assert_correct(o, qkv, KernelId(config))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("seq_len", [64, 128, 192, 4096])
def test_the_heuristic_selects_from_the_default_set(
    seq_len: int, d_head: int, dtype: DType
) -> None:
    config = select_config(torch.empty(1, seq_len, 1, d_head, dtype=TORCH_DTYPES[dtype]))
    assert (config.dtype, config.d_head) == (dtype, d_head)
    assert config in DECLARED and not config.problems()


def test_a_given_config_overrides_the_heuristic() -> None:
    """The result tells which kernel ran, because BASE rounds differently from the heuristic's
    choice."""
    qkv = random_qkv(BASE, seq_len=256)
    given = flashsmith.attention(*qkv, config=BASE)
    assert torch.equal(given, flashsmith.forward(BASE, *qkv))
    assert not torch.equal(given, flashsmith.attention(*qkv))


def test_threads_do_not_disturb_each_other() -> None:
    """Each of 4 threads has its own kernel and input, and all begin every call together."""
    cases = [
        (BASE, False, random_qkv(BASE, seq_len=64)),
        (BASE, True, random_qkv(BASE, seq_len=128)),
        (SELECTED[1], True, random_qkv(BASE, seq_len=128, heads=2)),
        (BF16_64, False, random_qkv(BF16_64, seq_len=192)),
    ]
    alone = [flashsmith.forward(cfg, *qkv, causal=causal) for cfg, causal, qkv in cases]
    together = Barrier(len(cases), timeout=60)

    def work(index: int) -> bool:
        cfg, causal, qkv = cases[index]
        same = []
        for _ in range(5):
            together.wait()
            same.append(torch.equal(flashsmith.forward(cfg, *qkv, causal=causal), alone[index]))
        return all(same)

    with ThreadPoolExecutor(len(cases)) as pool:
        assert all(pool.map(work, range(len(cases))))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelCache:
    cache = kernel_free_cache(tmp_path / "cache")
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(cache.root))
    return cache


UNBUILT = replace(BASE, V_mma_load_K_tiles=4, async_copy=False)  # in no set that the tests build


def test_a_kernel_is_built_when_it_is_first_called(
    own_cache: KernelCache, capfd: pytest.CaptureFixture[str]
) -> None:
    """The build is announced once, with the time; later calls and other processes are silent."""
    qkv = random_qkv(UNBUILT, seq_len=64)
    assert_correct(flashsmith.forward(UNBUILT, *qkv), qkv, KernelId(UNBUILT))
    out, err = capfd.readouterr()
    first, *lines, last = err.splitlines()
    assert first == (
        f"flashsmith: building {UNBUILT.short_form()}; this happens once on this machine, because "
        f"the kernel is kept in {own_cache.root}"
    )
    assert re.fullmatch(r"\[(\d+)/\1\] .+", lines[-1]), "all units"
    assert last.startswith("flashsmith: built in ") and last.endswith(" s")
    assert 0.1 < float(last.split()[-2]) < 600
    assert out == ""

    built = list(own_cache.kernels.iterdir())
    flashsmith.forward(UNBUILT, *qkv)
    assert capfd.readouterr() == ("", "")

    other = _forward_in_another_process(UNBUILT)
    assert (other.stdout, other.stderr) == ("(1, 64, 1, 128)\n", "")
    assert list(own_cache.kernels.iterdir()) == built


def _forward_in_another_process(
    cfg: FlashForwardKernelConfig,
) -> subprocess.CompletedProcess[str]:
    """Calls forward in another process, without a compiler and with builds forbidden."""
    code = (
        "import sys, torch, flashsmith\n"
        "from flashsmith.configs import parse_kernel_name_into_config as parse\n"
        "q, k, v = torch.randn(3, 1, 64, 1, 128).half()\n"
        "print(tuple(flashsmith.forward(parse(sys.argv[1]), q, k, v).shape))"
    )
    forbidden = {"FLASHSMITH_BUILD": "0", "FLASHSMITH_CXX": "/nonexistent/c++"}
    return subprocess.run(
        [sys.executable, "-c", code, str(cfg)],
        env=os.environ | forbidden,
        capture_output=True,
        text=True,
        check=True,
    )
