"""The input that forward and attention refuse: a typed error names the argument, what came and what
is supported; nothing is written to o."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import flashsmith
from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.errors import DeviceError, KernelNotFoundError
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
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
    repeated,
    zeros,
)
from support.sm80_kernels import BASE

SHAPE = (2, 64, 2, 128)  # batch, seq_len, n_heads, d_head
BACKWARD = parse_kernel_name_into_config("(FP16, 128, 64, 32, 4): backward+stages_1")
LARGE = replace(BASE, B_r=128, n_warps=8)
WIDE = replace(BASE, B_c=128)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    instances = [KernelId(cfg) for cfg in (BASE, LARGE, WIDE)]
    load_kernels(instances, Target.emulator())


def good() -> Arguments:
    """Returns arguments that forward accepts."""
    q, k, v = (torch.randn(SHAPE).half() for _ in range(3))
    return {"cfg": BASE, "q": q, "k": k, "v": v, "o": torch.full(SHAPE, MARK).half()}


def overlapping_elements(t: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in which each row of the sequence begins at the second head of the row
    before."""
    return torch.zeros(t.numel(), dtype=t.dtype).as_strided(t.shape, (64 * 256, 128, 128, 1))


def shifted(name: str, rows: int) -> Callable[[Arguments], Arguments]:
    """Returns a change that puts o into the memory of another tensor, ``rows`` rows later."""

    def change(a: Arguments) -> Arguments:
        memory = torch.zeros((2, 64 + rows, 2, 128), dtype=torch.float16)
        return {name: memory[:, :64], "o": memory[:, rows:]}

    return change


def other_strides(a: Arguments) -> Arguments:
    """Puts o into q's memory, as (batch, heads, seq_len, d_head)."""
    return {"o": a["q"].view(2, 2, 64, 128).transpose(1, 2)}


def next_row_and_head_before(a: Arguments) -> Arguments:
    memory = torch.zeros((2, 65, 3, 128), dtype=torch.float16)
    return {"q": memory[:, :64, 1:], "o": memory[:, 1:, :2]}


def in_gaps_and_beyond(a: Arguments) -> Arguments:
    """Leaves gaps between the rows of o; k begins in the first gap, and has no gaps."""
    memory = torch.zeros((2, 64, 4, 128), dtype=torch.float16)
    return {"k": memory.view(-1)[256:][: math.prod(SHAPE)].view(SHAPE), "o": memory[:, :, :2]}


TYPES = [
    *(
        case(f"cfg {kind}", lambda a, v=value: {"cfg": v}, TypeError, "cfg is a", kind, "Flash")
        for kind, value in {"NoneType": None, "str": str(BASE), "dict": {}, "int": 128}.items()
    ),
    *each("qkv", "None", lambda t: None, TypeError, "is a NoneType", "torch.Tensor"),
    *each("qkvo", "list", lambda t: t.tolist(), TypeError, "is a list", "torch.Tensor"),
    *each("qkvo", "numpy", lambda t: t.numpy(), TypeError, "is a ndarray", "torch.Tensor"),
    *each("qo", "str", lambda t: "q", TypeError, "is a str", "torch.Tensor"),
    case("causal str", lambda a: {"causal": "no"}, TypeError, "causal is 'no'", "True or False"),
    case("causal int", lambda a: {"causal": 1}, TypeError, "causal is 1", "True or False"),
    case("causal None", lambda a: {"causal": None}, TypeError, "causal is None", "True or False"),
    case("return_lse", lambda a: {"return_lse": 1}, TypeError, "return_lse is 1", "True or False"),
    case("benchmark", lambda a: {"benchmark": 3}, TypeError, "benchmark is 3", "True or False"),
    case("scale str", lambda a: {"softmax_scale": "1"}, TypeError, "softmax_scale is a str"),
    case("scale bool", lambda a: {"softmax_scale": True}, TypeError, "softmax_scale is a bool"),
    case("unknown argument", lambda a: {"dropout": 0.1}, TypeError, "dropout"),
]
DTYPES = [
    *(
        case(f"all {name}", all_tensors(lambda t, d=d: t.to(d)), TypeError,
             "q has dtype", name, "float16 and bfloat16")
        for name, d in {
            "float32": torch.float32, "float64": torch.float64, "int8": torch.int8,
            "bool": torch.bool, "float8": torch.float8_e4m3fn, "complex64": torch.complex64,
        }.items()
    ),
    *each("kvo", "bfloat16", lambda t: t.bfloat16(), TypeError,
          "has dtype bfloat16", "q has float16", "same dtype"),
    *each("kvo", "float32", lambda t: t.float(), TypeError, "has dtype float32", "float16"),
    case("q alone bfloat16", lambda a: {"q": a["q"].bfloat16()}, TypeError, "q has dtype bfloat16"),
    case("config for float16", all_tensors(torch.Tensor.bfloat16), TypeError,
         "q has dtype bfloat16", "configuration is for float16"),
]  # fmt: skip
SHAPES = [
    case("all 3 dimensions", all_tensors(lambda t: t[0]), ValueError,
         "q has 3 dimensions", "(64, 2, 128)", "(batch, seq_len, n_heads, d_head)"),
    case("all 5 dimensions", all_tensors(lambda t: t[None]), ValueError, "q has 5 dimensions"),
    case("d_head 136", zeros(2, 64, 2, 136), ValueError, "q has d_head 136", "for at most 128",
         "64, 96, 128, 192 or 256"),
    case("d_v 192", lambda a: {n: torch.zeros(2, 64, 2, 192).half() for n in "vo"}, ValueError,
         "v has d_v 192", "for at most 128"),
    *(
        case(f"d_head {d}", zeros(2, 64, 2, d), ValueError, f"q has d_head {d}",
             "multiples of 8 up to 256")
        for d in (0, 84, 264)
    ),
    *(
        case(f"d_v {d}", lambda a, d=d: {n: a[n][..., :d] for n in "vo"}, ValueError,
             f"v has d_v {d}", "multiples of 8 up to 256")
        for d in (0, 100)
    ),
    case("keys without values", lambda a: {"v": a["v"][:, :0]}, ValueError,
         "v has shape (2, 0, 2, 128)", "k has (2, 64, 2, 128)", "seq_len_k"),
    case("values without keys", lambda a: {"k": a["k"][:, :0]}, ValueError,
         "v has shape (2, 64, 2, 128)", "k has (2, 0, 2, 128)", "seq_len_k"),
    case("length above int", repeated(1, 1 << 31, 1, 128), ValueError,
         "q has sequence length 2147483648", "2^31 - 1"),
]  # fmt: skip
MEMORY = [
    *each("qkvo", "every other element", lambda t: torch.zeros(2, 64, 2, 256).half()[..., ::2],
          ValueError, "has stride 2 in its last dimension", ".contiguous()"),
    *(
        case(f"o expanded along {dim}",
             lambda a, d=dim: {"o": a["o"].narrow(d, 0, 1).expand(SHAPE)},
             ValueError, "o has", f"size {SHAPE[dim]} with stride 0", "share memory")
        for dim in range(3)
    ),
    *each("o", "overlaps itself", overlapping_elements, ValueError, "stride 128", "share memory"),
    *(
        case(f"o is {n}", lambda a, n=n: {"o": a[n]}, ValueError,
             f"o shares memory with {n}", "pass another o")
        for n in "qkv"
    ),
    *(
        case(f"o shares {rows} rows with {n}", shifted(n, 64 - rows), ValueError,
             f"o shares memory with {n}")
        for n in "qkv" for rows in (1, 63)
    ),
    case("o one row later and one head earlier", next_row_and_head_before, ValueError,
         "o shares memory with q"),
    case("o in k's memory, with gaps", in_gaps_and_beyond, ValueError, "o shares memory with k"),
    case("o in q's memory, transposed", other_strides, ValueError, "o shares memory with q"),
]  # fmt: skip
TORCH = [
    *each("qkvo", "sparse", lambda t: t.to_sparse(), TypeError, "torch.sparse_coo", "strided"),
    *each("qkvo", "meta", lambda t: t.to("meta"), ValueError, "on device meta", "cuda", "cpu"),
    *each("qkvo", "requires grad", lambda t: t.requires_grad_(), NotImplementedError,
          "requires a gradient", "torch.no_grad()"),
]  # fmt: skip
VALUES = [
    *(
        case(f"scale {value}", lambda a, v=value: {"softmax_scale": v}, ValueError,
             f"softmax_scale is {value}", "1e-37")
        for value in (math.nan, math.inf, -math.inf, 0, 0.0, -1.0, 1e39, 1e-46)
    ),
    *(
        case(f"illegal {field}", lambda a, f=field, v=value: {"cfg": replace(BASE, **{f: v})},
             ValueError, *words)
        for field, value, *words in [
            ("B_r", 96, "B_r", "96"), ("B_c", 16, "B_c", "16"), ("n_warps", 5, "n_warps", "5"),
            ("d_head", 80, "d_head", "80"), ("Q_mma_load_K_tiles", 3, "Q_mma_load_K_tiles", "3"),
        ]
    ),
]  # fmt: skip
CASES = [*TYPES, *DTYPES, *SHAPES, *MEMORY, *TORCH, *VALUES]


@pytest.mark.parametrize("bad", CASES, ids=lambda c: c.name)
def test_forward_refuses(bad: Case) -> None:
    assert_refused(flashsmith.forward, good(), bad)


def test_a_bad_call_writes_nothing_and_a_good_one_works_after_it() -> None:
    arguments = good()
    for wrong in (zeros(2, 100, 2, 128)(arguments)["v"], misaligned(arguments["v"])):
        with pytest.raises(ValueError, match=r"^v "):
            flashsmith.forward(**arguments | {"v": wrong})
        assert (arguments["o"] == MARK).all()
    expected = flashsmith.forward(**arguments | {"o": None})
    assert torch.equal(flashsmith.forward(**arguments), expected)
    assert not (arguments["o"] == MARK).all()


@pytest.mark.parametrize("shape", [(0, 64, 2, 128), (2, 0, 2, 128), (2, 64, 0, 128)], ids=str)
def test_nothing_to_compute_is_no_error(shape: tuple[int, ...]) -> None:
    q = torch.empty(shape, dtype=torch.float16)
    for given in (None, torch.empty_like(q)):
        o, milliseconds = flashsmith.forward(BASE, q, q, q, given, benchmark=True)
        assert o.shape == shape and milliseconds == 0
    assert flashsmith.attention(q, q, q, config=BASE).shape == shape


def test_nothing_to_compute_is_still_checked() -> None:
    q, k = (torch.empty(0, 64, heads, 128, dtype=torch.float16) for heads in (2, 3))
    with pytest.raises(ValueError, match="q has 2 heads and k has 3"):
        flashsmith.forward(BASE, q, k, k)


def test_gradients_may_be_off() -> None:
    arguments = good()
    arguments["q"].requires_grad_()
    with torch.no_grad():
        o = flashsmith.forward(**arguments)
    assert not o.requires_grad


def test_slices_of_one_tensor_do_not_overlap() -> None:
    """Each row of o follows one of q, k and v: address ranges overlap, elements do not."""
    packed = torch.randn(2, 64, 4, 2, 128).half()
    q, k, v, o = packed.unbind(2)
    expected = flashsmith.forward(BASE, q, k, v)
    assert flashsmith.forward(BASE, q, k, v, o) is o
    assert torch.equal(o, expected)


@pytest.mark.parametrize(
    ("rows_of_q", "rows_of_o"),
    [
        (slice(0, None, 2), slice(1, None, 2)),
        (slice(64), slice(64, None)),
        (slice(64, None), slice(64)),
    ],
    ids=["even and odd", "first and second half", "second and first half"],
)
def test_o_in_the_rows_beside_those_of_q(rows_of_q: slice, rows_of_o: slice) -> None:
    both = torch.randn(2, 128, 2, 128).half()
    q, o = both[:, rows_of_q], both[:, rows_of_o]
    expected = flashsmith.forward(BASE, q, q, q)
    assert torch.equal(flashsmith.forward(BASE, q, q, q, o), expected)


ATTENTION_CASES = [
    case("config str", lambda a: {"config": str(BASE)}, TypeError, "config is a str", "Flash"),
    case("q None", lambda a: {"q": None}, TypeError, "q is a NoneType", "torch.Tensor"),
    case("v list", lambda a: {"v": []}, TypeError, "v is a list", "torch.Tensor"),
    case("float32", all_tensors(torch.Tensor.float), TypeError, "q has dtype torch.float32"),
    case("3 dimensions", all_tensors(lambda t: t[0]), ValueError, "q has 3 dimensions"),
    case("d_head 84", zeros(2, 64, 2, 84), ValueError, "q has d_head 84", "up to 256"),
    case("causal None", lambda a: {"causal": None}, TypeError, "causal is None"),
    case("causal list", lambda a: {"causal": []}, TypeError, "causal is []"),
    case("scale", lambda a: {"softmax_scale": -1.0}, ValueError, "softmax_scale is -1.0"),
    case("k other length", lambda a: {"k": longer(1)(a["k"])}, ValueError, "v has shape"),
    case("return_lse int", lambda a: {"return_lse": 1}, TypeError, "return_lse is 1"),
    case("config of another dtype", lambda a: {"config": BASE, **all_tensors(
        torch.Tensor.bfloat16)(a)}, TypeError, "q has dtype bfloat16"),
    case("a list", lambda a: {"q": [1.0]}, TypeError, "q is a list"),
    case("slopes require grad", lambda a: {"alibi_slopes": torch.zeros(2, requires_grad=True)},
         NotImplementedError, "alibi_slopes requires", "torch.no_grad()"),
    case("out of a gradient", lambda a: {"k": a["k"].requires_grad_(), "out": a["o"]},
         ValueError, "out is a tensor", "gradient", "None"),
    case("a backward config", lambda a: {"config": BACKWARD}, TypeError,
         "config is a FlashBackwardKernelConfig", "FlashForwardKernelConfig"),
    case("unknown argument", lambda a: {"is_causal": True}, TypeError, "is_causal"),
]  # fmt: skip


@pytest.mark.parametrize("bad", ATTENTION_CASES, ids=lambda c: c.name)
def test_attention_refuses(bad: Case) -> None:
    arguments = {"config": BASE, **good()}
    changed = arguments | bad.change(arguments)
    if "config" not in bad.name:
        changed["config"] = None if bad.name in _WITHOUT_CONFIG else BASE
    with pytest.raises(bad.error) as caught:
        flashsmith.attention(**{n: v for n, v in changed.items() if n not in ("cfg", "o")})
    assert all(word in str(caught.value) for word in bad.words), caught.value


# select_config itself refuses these.
_WITHOUT_CONFIG = ("float32", "causal list", "3 dimensions", "d_head 84")


def test_without_building_the_closest_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    missing = replace(LARGE, V_mma_load_K_tiles=4)
    assert not missing.problems()
    with pytest.raises(KernelNotFoundError) as caught:
        flashsmith.forward(**good() | {"cfg": missing})
    message = str(caught.value)
    named, _, closest = message.partition("Closest that exist: ")
    assert missing.short_form() in named and "FLASHSMITH_BUILD=0" in named
    assert closest.startswith(LARGE.short_form()) and "flashsmith build" in closest


def test_without_building_a_new_process_names_what_the_cache_holds() -> None:
    missing = replace(LARGE, V_mma_load_K_tiles=4)
    code = (
        "import torch, flashsmith\n"
        "from flashsmith.configs import parse_kernel_name_into_config as parse\n"
        f"q = torch.zeros(1, 128, 1, {missing.d_head}, dtype=torch.float16)\n"
        f"flashsmith.forward(parse({missing.short_form()!r}), q, q, q)\n"
    )
    environment = os.environ | {"FLASHSMITH_BUILD": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "KernelNotFoundError" in run.stderr
    assert LARGE.short_form() in run.stderr.partition("Closest that exist: ")[2]


def test_a_gpu_before_sm80_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(DeviceError, match=r"GPU 61 \(Tesla T4\) .* 7\.5; .* need 8\.0"):
        target_of(torch.device("cuda", 61))


@pytest.mark.parametrize("device", ["meta", "xpu", "mps"])
def test_other_devices_have_no_target(device: str) -> None:
    with pytest.raises(ValueError, match=rf"device is {device}.*; supported are cuda .* and cpu"):
        target_of(torch.device(device))


def test_there_are_many() -> None:
    names = [c.name for c in CASES]
    assert len(names) == len(set(names)) >= 40
