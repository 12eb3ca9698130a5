"""The first use of a kernel: errors before anything is built, and the log."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

import flashsmith
from flashsmith import settings
from flashsmith.configs import DType, parse_kernel_name_into_config
from flashsmith.flash_attn import flash_attn_func
from flashsmith.ops import launch
from flashsmith.ops.choices import Choices
from flashsmith.runtime import kernels
from flashsmith.selection.choose import choose, forget_tables
from flashsmith.selection.select import select_config
from support.workloads import square

CONFIG = parse_kernel_name_into_config("(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")


@pytest.fixture(autouse=True)
def _nothing_used_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "_kernels", {})
    monkeypatch.setattr(launch, "_choices", Choices())
    monkeypatch.delenv(settings.LOG.name, raising=False)
    forget_tables()
    logger = logging.getLogger("flashsmith")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_kernel", lambda *_: pytest.fail("a kernel was looked for"))


def half(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: torch.randn(1, 64, 1, 64).half() for name in "qkv"} | changes


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("k", torch.bfloat16, "k has dtype bfloat16, but q has float16; q, k, v and o need the"),
        ("v", torch.bfloat16, "v has dtype bfloat16, but q has float16"),
        ("o", torch.bfloat16, "o has dtype bfloat16, but q has float16"),
        ("k", torch.float32, "k has dtype float32; supported are float16 and bfloat16"),
        ("q", torch.bfloat16, "q has dtype bfloat16, but the configuration is for float16"),
    ],
)
def test_a_wrong_dtype_is_told_before_a_kernel_is_built(
    name: str, dtype: torch.dtype, message: str
) -> None:
    tensors = half(**{name: torch.randn(1, 64, 1, 64).to(dtype)})
    with pytest.raises(TypeError, match=message):
        flashsmith.forward(CONFIG, **tensors)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_build")
def test_attention_tells_a_wrong_dtype_of_k_before_it_builds() -> None:
    tensors = half()
    with pytest.raises(TypeError, match="k has dtype bfloat16, but q has float16"):
        flashsmith.attention(tensors["q"], tensors["k"].bfloat16(), tensors["v"])


@pytest.mark.usefixtures("no_build")
def test_float32_under_autocast_is_refused_with_what_to_do() -> None:
    q = torch.randn(1, 64, 1, 64)
    advice = "; autocast is on, but it does not cast the arguments of this function: pass q, k and "
    calls: list[Callable[[], object]] = [
        lambda: flashsmith.attention(q, q, q),
        lambda: flashsmith.forward(CONFIG, q, q, q),
        lambda: flashsmith.decode(None, q[:, :1], q, q),
        lambda: flash_attn_func(q, q, q),
    ]
    for call in calls:
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError) as refused:
            call()
        assert f"{advice}v as torch.bfloat16, or call flashsmith.scaled_dot" in str(refused.value)
        with torch.autocast("cpu", enabled=False), pytest.raises(TypeError) as refused:
            call()
        assert "autocast" not in str(refused.value)


@pytest.mark.usefixtures("no_build")
def test_heads_that_do_not_fit_are_named_by_their_tensors_before_a_build() -> None:
    q = torch.randn(1, 64, 3, 64).half()
    words = "q has 3 heads and k has 2; the heads of q must be a multiple of those of k"
    with pytest.raises(ValueError, match=words):
        flashsmith.attention(q, q[:, :, :2], q[:, :, :2])


def test_vmap_is_refused_in_words() -> None:
    """The call is refused before a kernel is built, and by a kernel that exists."""
    q = torch.randn(3, 1, 64, 1, 64).half()

    def mapped() -> None:
        torch.vmap(lambda q: flashsmith.forward(CONFIG, q, q, q))(q)

    message = "q is inside torch.vmap or another function transform"
    with pytest.raises(TypeError, match=message):
        mapped()
    assert not launch._kernels
    flashsmith.forward(CONFIG, q[0], q[1], q[2])
    with pytest.raises(TypeError, match=message):
        mapped()


def test_each_kernel_is_logged_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flashsmith")
    q, k, v = half().values()
    for _ in range(2):
        flashsmith.attention(q, k, v)
        flashsmith.forward(CONFIG, q, k, v, causal=True)
    assert [record.message for record in caplog.records] == [
        f"kernel {select_config(q)} on emulator: the heuristic: one configuration for each "
        "d_head, and one of half the rows where queries see few keys or large tiles would leave "
        "SMs idle",
        f"kernel {CONFIG} causal on emulator: named by the caller",
    ]


def test_the_reason_names_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(square(DType.BF16, 128, "causal", 4, 16, 4096), "h200")
    assert "shipped table" in choice.reason
    assert choice.reason.endswith(
        "h200.csv, BF16 d 128 causal, lengths 2049 to 4096, above 512 rows an SM"
    )


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_setting_puts_the_log_on_stderr(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import torch, flashsmith\n"
        "from flashsmith.configs import parse_kernel_name_into_config\n"
        "q, k, v = (torch.randn(1, 64, 1, 64).half() for _ in range(3))\n"
        f"config = parse_kernel_name_into_config({str(CONFIG)!r})\n"
        "for _ in range(2): flashsmith.forward(config, q, k, v)\n"
    )
    flashsmith.forward(CONFIG, *half().values())  # builds the kernel
    monkeypatch.setenv(settings.LOG.name, value)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = f"flashsmith: kernel {CONFIG} on emulator: named by the caller\n"
    assert done.stderr == (line if value == "1" else "")


def test_a_kernel_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = half()
    flashsmith.forward(CONFIG, **tensors)  # type: ignore[arg-type]
    monkeypatch.setattr(kernels, "load_kernels", lambda *_: pytest.fail("looked up again"))
    monkeypatch.setattr(launch, "find_kernel", lambda *_: pytest.fail("found again"))
    flashsmith.forward(CONFIG, **tensors)  # type: ignore[arg-type]
