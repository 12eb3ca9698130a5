"""The input that the kernels of both families refuse, and the unusual layouts that they accept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import flashsmith
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.runtime import Kernel, find_kernel, load_kernels
from support.bad_input import (
    MARK,
    Arguments,
    Case,
    all_tensors,
    assert_refused,
    case,
    each,
    longer,
    misaligned,
    odd_stride,
    repeated,
    zeros,
)

QUEUE = parse_kernel_name_into_config(
    "(FP16, 96, 64, 48, 1): wgmma+stages_2+q_regs_6+overlap+persistent+queue+lazy_8+tma_store"
)
PLAIN = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1")
SM80 = parse_kernel_name_into_config(
    "(FP16, 96, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
)
FAMILIES = {"sm80": SM80, "sm90": QUEUE}
EACH = pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES.keys())
Q_SHAPE = (2, 70, 4, 96)  # batch, seq_len_q, n_heads, d_head
K_SHAPE = (2, 50, 2, 96)
LSE_SHAPE = (2, 4, 70)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    instances = [KernelId(cfg) for cfg in (QUEUE, PLAIN, SM80)]
    load_kernels(instances, Target.emulator())


def kernel_of(cfg: Any) -> Kernel:
    return find_kernel(KernelId(cfg), Target.emulator())


def good(cfg: Any = QUEUE) -> Arguments:
    """Returns arguments that `launch` accepts."""
    q, k, v = (torch.randn(shape).half() for shape in (Q_SHAPE, K_SHAPE, K_SHAPE))
    return {
        "q": q,
        "k": k,
        "v": v,
        "o": torch.full(Q_SHAPE, MARK).half(),
        "lse": torch.full(LSE_SHAPE, MARK),
        "workspace": torch.zeros(2, dtype=torch.int32) if cfg is QUEUE else None,
        "cfg": cfg,
    }


def launch(
    q: Any, k: Any, v: Any, o: Any, lse: Any = None, workspace: Any = None, cfg: Any = QUEUE
) -> None:
    kernel_of(cfg)(q, k, v, o, 0.1, lse=lse, workspace=workspace)


def both(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arguments], Arguments]:
    return lambda a: {n: change(a[n]) for n in "kv"}


def of_shape(names: str, *shape: int) -> Callable[[Arguments], Arguments]:
    return lambda a: {n: torch.zeros(shape, dtype=torch.float16) for n in names}


def expanded(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.narrow(dim, 0, 1).expand(t.shape)


def huge_stride(t: torch.Tensor) -> torch.Tensor:
    """Puts the second sequence 2^40 bytes behind the first, where no memory is mapped."""
    strides = (1 << 40, *(s * t.element_size() for s in t.stride()[1:]))
    return torch.from_numpy(np.lib.stride_tricks.as_strided(t.numpy(), t.shape, strides))


def lse_in(name: str) -> Callable[[Arguments], Arguments]:
    """Returns a change that puts lse into the memory of another tensor."""

    def change(a: Arguments) -> Arguments:
        return {"lse": a[name].view(-1).view(torch.float32)[: math.prod(LSE_SHAPE)].view(LSE_SHAPE)}

    return change


DTYPES = [
    case("all float32", all_tensors(torch.Tensor.float), TypeError, "q has dtype float32"),
    case("config for float16", all_tensors(torch.Tensor.bfloat16), TypeError,
         "q has dtype bfloat16", "configuration is for float16"),
    *each("kvo", "bfloat16", torch.Tensor.bfloat16, TypeError,
          "has dtype bfloat16", "q has float16", "same dtype"),
]  # fmt: skip
SHAPES = [
    *each("qkvo", "3 dimensions", lambda t: t[0], ValueError, "has 3 dimensions", "expected 4"),
    *(
        case(f"v other {name}", lambda a, d=dim: {"v": longer(d)(a["v"])}, ValueError,
             "v has shape", f"k has {K_SHAPE}", "same batch size, seq_len_k and n_heads_kv")
        for dim, name in enumerate(("batch", "length", "heads"))
    ),
    *(
        case(f"o other {name}", lambda a, d=dim: {"o": longer(d)(a["o"])}, ValueError,
             "o has shape", f"q has {Q_SHAPE}", "same batch size, seq_len_q and n_heads")
        for dim, name in enumerate(("batch", "length", "heads"))
    ),
    case("o other d_v", lambda a: {"o": longer(3)(a["o"])}, ValueError,
         "o has shape (2, 70, 4, 192)", f"v has {K_SHAPE}", "same batch size and d_v"),
    case("v and o of another d_v", lambda a: {n: longer(3)(a[n]) for n in "vo"}, ValueError,
         "v has d_v 192", "for 96", "64, 96, 128, 192 or 256"),
    case("q and k of another d_head", lambda a: {n: a[n][..., :64] for n in "qk"}, ValueError,
         "q has d_head 64", "for 96"),
    case("other batch", both(longer(0)), ValueError, "k has shape (4, 50, 2, 96)",
         f"q has {Q_SHAPE}", "same batch size and d_head"),
    case("other d_head of k", both(longer(3)), ValueError, "k has shape (2, 50, 2, 192)",
         "same batch size and d_head"),
    case("d_head for another config", zeros(2, 64, 2, 64), ValueError, "q has d_head 64",
         "for 96", "64, 96, 128, 192 or 256"),
    case("3 heads of k", of_shape("kv", 2, 50, 3, 96), ValueError,
         "q has 4 heads and k has 3", "multiple"),
    case("more heads of k", of_shape("kv", 2, 50, 8, 96), ValueError, "q has 4 heads and k has 8"),
    case("no heads of k", of_shape("kv", 2, 50, 0, 96), ValueError, "q has 4 heads and k has 0"),
    case("no keys", of_shape("kv", 2, 0, 2, 96), ValueError, "k has sequence length 0",
         "at least 1"),
    case("q longer than int", repeated(1, 1 << 31, 1, 96), ValueError,
         "q has sequence length 2147483648", "2^31 - 1"),
    case("k longer than int", lambda a: {n: a[n][:, :1].expand(2, 1 << 31, 2, 96) for n in "kv"},
         ValueError, "k has sequence length 2147483648", "2^31 - 1"),
]  # fmt: skip
MEMORY = [
    *each("qkvo", "transposed", lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
          ValueError, "in its last dimension", ".contiguous()"),
    *each("qkvo", "misaligned", misaligned, ValueError, "multiple of 16 bytes", "remainder 2"),
    *(
        c
        for dim, name in enumerate(("batch", "sequence", "head"))
        for c in each("qkvo", f"odd {name} stride", odd_stride(dim), ValueError,
                      f"has {name} stride", "multiples of 8 elements")
    ),
    *each("o", "expanded", expanded(1), ValueError, "size 70 with stride 0", "share memory"),
    case("o is q", lambda a: {"o": a["q"]}, ValueError, "o shares memory with q", "another o"),
    *(
        case(f"o holds {n}", lambda a, n=n: {n: a["o"][:, :50, 2:]}, ValueError,
             f"o shares memory with {n}")
        for n in "kv"
    ),
]  # fmt: skip
LSE = [
    *(
        case(f"lse {name}", lambda a, d=d: {"lse": a["lse"].to(d)}, TypeError,
             f"lse has dtype {name}", "float32")
        for name, d in {"float16": torch.float16, "float64": torch.float64,
                        "int32": torch.int32}.items()
    ),
    case("lse transposed", lambda a: {"lse": torch.empty(2, 70, 4)}, ValueError,
         "lse has shape (2, 70, 4)", f"(batch, n_heads, seq_len_q) = {LSE_SHAPE}"),
    case("lse flat", lambda a: {"lse": torch.empty(math.prod(LSE_SHAPE))}, ValueError,
         "lse has shape (560)"),
    *(
        case(f"lse of {name}", lambda a, s=shape: {"lse": torch.empty(s)}, ValueError,
             f"lse has shape {shape}", f"(batch, n_heads, seq_len_q) = {LSE_SHAPE}")
        for name, shape in {"one sequence": (1, 4, 70), "n_heads_kv": (2, 2, 70),
                            "seq_len_k": (2, 4, 50), "4 dimensions": (2, 4, 70, 1)}.items()
    ),
    case("lse strided", lambda a: {"lse": torch.empty(2, 70, 4).transpose(1, 2)}, ValueError,
         "lse has shape (2, 4, 70)", "contiguous"),
    case("lse misaligned", lambda a: {"lse": torch.from_numpy(
        np.zeros(4 * math.prod(LSE_SHAPE) + 2, np.uint8)[2:].view(np.float32).reshape(LSE_SHAPE))},
        ValueError, "lse has shape", "4-byte aligned"),
    *(
        case(f"lse in {n}", lse_in(n), ValueError, f"lse shares memory with {n}",
             f"which is {use} while lse is written", "another lse")
        for n, use in {"q": "read", "k": "read", "v": "read", "o": "written"}.items()
    ),
]  # fmt: skip
WORKSPACE = [
    case("no workspace", lambda a: {"workspace": None}, ValueError,
         "workspace is None", "needs 8 bytes of zeroed memory"),
    case("workspace of 4 bytes", lambda a: {"workspace": a["workspace"][:1]}, ValueError,
         "workspace has 4 bytes", "at least 8"),
    case("workspace strided", lambda a: {"workspace": torch.zeros(4, dtype=torch.int32)[::2]},
         ValueError, "workspace has 8 bytes", "contiguous"),
    case("workspace misaligned", lambda a: {"workspace": torch.zeros(11, dtype=torch.uint8)[2:]},
         ValueError, "workspace has 9 bytes", "4-byte aligned"),
    *(
        case(f"workspace, {name}", lambda a, c=cfg: {
            "cfg": c, "lse": None, **zeros(2, 64, 2, c.d_head)(a)},
            ValueError, "workspace was passed", "needs none", "None")
        for name, cfg in {"no queue": PLAIN, "sm80": SM80}.items()
    ),
]  # fmt: skip
OF_SM90 = [
    case("last block beyond int", repeated(1, (1 << 31) - 1, 1, 96), ValueError,
         "q has sequence length 2147483647", "2^31 - 1 in whole blocks of 64"),
    case("tiles beyond int", repeated(1 << 15, 65, 1 << 15, 96), ValueError,
         "q has shape (32768, 65, 32768, 96)", "2^31 - 1 blocks of 64 rows", "split"),
    case("all tiles that int can count", lambda a: {"lse": None} | repeated(
        1, 128, (1 << 30) - 1, 96)(a), ValueError, "o has a dimension of size 128 with stride 0"),
    *(
        c
        for dim, name in enumerate(("batch", "sequence", "head"))
        for c in each("qkv", f"expanded {name}", expanded(dim), ValueError,
                      f"has {name} stride 0", "sm90 family", ".contiguous()")
    ),
    *each("qkvo", "stride beyond maps", huge_stride, ValueError,
          "has batch stride 549755813888", "2^39"),
]  # fmt: skip
OF_SM80 = [
    case("batch above the grid's limit", lambda a: {"lse": None} | repeated(65536, 64, 1, 96)(a),
         ValueError, "q has 65536 sequences", "sm80 family", "65535", "split"),
    case("heads above the grid's limit", lambda a: {"lse": None} | repeated(1, 64, 65536, 96)(a),
         ValueError, "q has 65536 heads", "sm80 family", "65535", "split"),
]  # fmt: skip
COMMON = [*DTYPES, *SHAPES, *MEMORY, *LSE]
CASES = {"sm80": [*COMMON, *OF_SM80], "sm90": [*COMMON, *OF_SM90, *WORKSPACE]}


@pytest.mark.parametrize(
    ("family", "bad"), [(family, bad) for family in CASES for bad in CASES[family]], ids=str
)
def test_kernel_refuses(family: str, bad: Case) -> None:
    assert_refused(launch, good(FAMILIES[family]), bad)


def test_names_are_unique() -> None:
    for cases in CASES.values():
        names = [c.name for c in cases]
        assert len(names) == len(set(names)) >= 40


@EACH
def test_a_good_call_works_after_a_bad_one(cfg: Any) -> None:
    arguments = good(cfg)
    with pytest.raises(ValueError, match=r"^v "):
        launch(**arguments | {"v": misaligned(arguments["v"])})
    launch(**arguments)
    assert not (arguments["o"] == MARK).any() and not (arguments["lse"] == MARK).any()
    assert cfg is SM80 or not arguments["workspace"].any()


def test_a_workspace_may_be_longer_than_int() -> None:
    """The kernel uses only the first bytes, so that the rest is never touched."""
    for dtype, length in ((np.uint8, 1 << 31), (np.int32, 1 << 30)):
        launch(**good() | {"workspace": torch.from_numpy(np.zeros(length, dtype))})


@EACH
@pytest.mark.parametrize(
    "shape", [(0, 70, 4, 96), (2, 0, 4, 96), (2, 70, 0, 96)], ids=["batch", "length", "heads"]
)
def test_nothing_to_compute_is_no_error(shape: tuple[int, ...], cfg: Any) -> None:
    q = torch.empty(shape, dtype=torch.float16)
    o, lse, milliseconds = flashsmith.forward(cfg, q, q, q, benchmark=True, return_lse=True)
    assert o.shape == shape and lse.numel() == 0 and milliseconds == 0


@EACH
def test_nothing_to_compute_is_still_checked(cfg: Any) -> None:
    q, k = torch.empty(2, 0, 4, 96).half(), torch.empty(2, 50, 3, 96).half()
    with pytest.raises(ValueError, match="q has 4 heads and k has 3"):
        launch(q, k, k, q, cfg=cfg)
    with pytest.raises(TypeError, match="lse has dtype float16"):
        launch(q, q, q, q, cfg=cfg, lse=torch.empty(2, 4, 0).half())


@EACH
def test_a_dimension_of_size_1_may_have_any_stride(cfg: Any) -> None:
    """A tensor map needs strides that are multiples of 16 bytes, except where they are never
    used."""
    q, k, v = (torch.randn(1, n, 1, 96).half() for n in (70, 50, 50))
    expected = flashsmith.forward(cfg, q, k, v)

    def strange(t: torch.Tensor) -> torch.Tensor:
        return t.as_strided(t.shape, (0, 96, 7, 1))

    o = strange(torch.empty_like(q))
    assert torch.equal(flashsmith.forward(cfg, *map(strange, (q, k, v)), o), expected)


@EACH
def test_one_query_and_one_key_with_strides_of_0(cfg: Any) -> None:
    q, k, v = (torch.randn(2, 1, 2, 96).half() for _ in range(3))

    def strange(t: torch.Tensor) -> torch.Tensor:
        return t.as_strided(t.shape, (192, 0, 96, 1))

    o = flashsmith.forward(cfg, *map(strange, (q, k, v)))
    assert torch.equal(o, v)


@EACH
def test_slices_of_one_tensor_do_not_overlap(cfg: Any) -> None:
    """Each row of o follows one of q, k and v: address ranges overlap, elements do not."""
    q, k, v, o = torch.randn(2, 70, 4, 3, 96).half().unbind(2)
    expected = flashsmith.forward(cfg, q, k, v)
    assert torch.equal(flashsmith.forward(cfg, q, k, v, o), expected)


@EACH
def test_rows_of_keys_may_overlap(cfg: Any) -> None:
    """The keys are a window that slides over one sequence."""
    memory = torch.randn(50 * 8 + 96).half()
    window = memory.as_strided((1, 50, 1, 96), (memory.numel() // 8 * 8, 8, 96, 1))
    q = torch.randn(1, 70, 1, 96).half()
    expected = flashsmith.forward(cfg, q, window.contiguous(), window.contiguous())
    assert torch.equal(flashsmith.forward(cfg, q, window, window), expected)
