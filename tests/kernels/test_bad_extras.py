"""The extras that a kernel refuses: those that its variant lacks or needs, and wrong shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith.configs import FULL, KernelId, Variant, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.runtime import find_kernel, load_kernels
from flashsmith.runtime.call_args import FULL_EXTRAS, CallArgs
from support.bad_input import MARK

CONFIG = parse_kernel_name_into_config("(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")
CHANGED = Variant(causal=True, window=True, softcap=True, alibi=True, bias=True, sinks=True)
VARLEN = Variant(varlen=True)
Q_SHAPE, K_SHAPE = (2, 40, 4, 64), (2, 50, 2, 64)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


EXTRAS = {
    FULL: FULL_EXTRAS,
    CHANGED: CallArgs(
        alibi_slopes=torch.rand(4),
        bias=torch.zeros(1, 4, 40, 50).half(),
        sinks=torch.zeros(4),
        softcap=30.0,
        window_left=7,
        window_right=3,
    ),
    VARLEN: CallArgs(seqused_q=ints(40, 0), seqused_k=ints(3, 50)),
}


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_kernels([KernelId(CONFIG, v) for v in EXTRAS], Target.emulator())


def launch(variant: Variant, extras: CallArgs, **changes: torch.Tensor) -> torch.Tensor:
    """Returns o; k serves as v."""
    kernel = find_kernel(KernelId(CONFIG, variant), Target.emulator())
    tensors = {"q": torch.randn(Q_SHAPE).half(), "k": torch.randn(K_SHAPE).half()} | changes
    q, k = tensors["q"], tensors["k"]
    o = torch.full(q.shape, MARK).half()
    # A workspace may be larger than the plan requests, and is None if the plan requests none.
    needed = kernel.plan(q, k, k, o, extras=extras).workspace_bytes
    workspace = torch.zeros(needed + 1024, dtype=torch.uint8) if needed else None
    kernel(q, k, k, o, 0.1, extras=extras, workspace=workspace)
    return o


@pytest.mark.parametrize("variant", EXTRAS, ids=lambda variant: variant.name)
def test_a_kernel_takes_what_its_variant_has(variant: Variant) -> None:
    assert not (launch(variant, EXTRAS[variant])[0] == MARK).any()


GIVEN: dict[str, Any] = {
    "alibi_slopes": torch.rand(4),
    "bias": torch.zeros(1, 1, 40, 50).half(),
    "sinks": torch.zeros(4),
    "softcap": 2.5,
    "window_left": 7,
    "window_right": 0,
}


@pytest.mark.parametrize("name", GIVEN)
def test_nothing_is_given_that_a_variant_has_not(name: str) -> None:
    is_number = not isinstance(GIVEN[name], torch.Tensor)
    words = f"{name} is {GIVEN[name]}, but .* takes none" if is_number else f"{name} was passed, "
    with pytest.raises(ValueError, match=words) as caught:
        launch(FULL, FULL_EXTRAS._replace(**{name: GIVEN[name]}))
    assert str(CONFIG) in str(caught.value)


@pytest.mark.parametrize("name", GIVEN)
def test_all_is_given_that_a_variant_has(name: str) -> None:
    is_number = not isinstance(GIVEN[name], torch.Tensor)
    words = f"{name} is .*, but .* needs one" if is_number else f"{name} is None, but .* needs it"
    with pytest.raises(ValueError, match=words):
        launch(CHANGED, EXTRAS[CHANGED]._replace(**{name: CallArgs._field_defaults[name]}))


def test_lengths_are_given_to_kernels_that_have_them_alone() -> None:
    with pytest.raises(ValueError, match="cu_seqlens or seqused was passed, but"):
        launch(FULL, FULL_EXTRAS._replace(seqused_k=ints(1, 2)))
    with pytest.raises(ValueError, match="cu_seqlens or seqused is None, but"):
        launch(VARLEN, FULL_EXTRAS)


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("alibi_slopes", torch.rand(4).half(), TypeError, "dtype float16; it must be float32"),
        ("alibi_slopes", torch.rand(2), ValueError, r"\(n_heads\) = \(4\) or \(batch, n_heads\)"),
        ("alibi_slopes", torch.rand(4, 2).T, ValueError, r"shape \(2, 4\); it must be contiguous"),
        ("sinks", torch.rand(4).half(), TypeError, "has dtype float16; it must be float32"),
        ("sinks", torch.rand(2), ValueError, r"shape \(2\); .* of shape \(n_heads\) = \(4\)"),
        ("sinks", torch.rand(8)[::2], ValueError, "must be contiguous"),
        ("bias", torch.zeros(1, 1, 40, 50), TypeError, "has dtype float32; supported are float16"),
        (
            "bias",
            torch.zeros(1, 1, 40, 50).bfloat16(),
            TypeError,
            "has dtype bfloat16, but q has float16; it needs the same dtype",
        ),
        ("bias", torch.zeros(40, 50).half(), ValueError, r"must broadcast to \(batch, n_heads,"),
        ("bias", torch.zeros(1, 2, 40, 50).half(), ValueError, r"= \(2, 4, 40, 50\): each size"),
        ("bias", torch.zeros(1, 1, 40, 1).half(), ValueError, "or 1 but for the last"),
        ("bias", torch.zeros(1, 1, 50, 40).half().mT, ValueError, "stride 40 in its last"),
    ],
)
def test_what_changes_scores_has_its_shape(
    name: str, value: torch.Tensor, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"{name} .*{words}"):
        launch(CHANGED, EXTRAS[CHANGED]._replace(**{name: value}))


PACKED = torch.randn(90, 2, 64).half()


@pytest.mark.parametrize(
    ("changes", "lengths", "error", "words"),
    [
        ({}, {"seqused_k": ints(1, 2).long()}, TypeError, "has dtype int64; it must be int32"),
        ({}, {"seqused_k": ints(1, 2, 3)}, ValueError, r"shape \(3\); .* \(batch\) = \(2\)"),
        ({}, {"seqused_q": ints(1, 9, 2, 9)[::2]}, ValueError, "seqused_q .* must be contiguous"),
        ({"q": PACKED, "k": PACKED},
         {"cu_seqlens_q": ints(0, 9, 90), "cu_seqlens_k": ints(0, 9)}, ValueError,
         r"cu_seqlens_k has shape \(2\); .* \(batch \+ 1\) = \(3\)"),
        ({}, {"cu_seqlens_q": ints(0, 9, 40)}, ValueError,
         r"q has 4 dimensions, .*; expected 3 with cu_seqlens_q: \(total, n_heads, d_head\)"),
        ({"k": PACKED}, {"cu_seqlens_q": ints(0, 9, 40), "cu_seqlens_k": ints(0, 9)}, ValueError,
         "q has 4 dimensions"),
        ({"q": PACKED}, {"cu_seqlens_k": ints(0, 9)}, ValueError,
         "k has 4 dimensions, .*; expected 3 with cu_seqlens_k"),
        ({"q": PACKED}, {"seqused_q": ints(9)}, ValueError, "q has 3 dimensions, .*; expected 4"),
        ({"q": PACKED}, {"cu_seqlens_q": ints(0, 9, 40, 90)}, ValueError,
         "k has batch size 2, but there are 3 sequences"),
        ({}, {"seqused_k": ints(1, 2), "bias": torch.zeros(1, 1, 40, 50).half()}, ValueError,
         "bias was passed"),
    ],
)  # fmt: skip
def test_lengths_fit_each_other_and_the_tensors(
    changes: dict[str, torch.Tensor],
    lengths: dict[str, torch.Tensor],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        launch(VARLEN, FULL_EXTRAS._replace(**lengths), **changes)


def test_o_is_apart_from_what_is_read_beside_k_and_v() -> None:
    kernel = find_kernel(KernelId(CONFIG, CHANGED), Target.emulator())
    q, k = torch.randn(1, 40, 4, 64).half(), torch.randn(1, 40, 4, 64).half()
    bias = q.view(-1)[: 4 * 40 * 40].view(1, 4, 40, 40)
    with pytest.raises(ValueError, match="o shares memory with bias"):
        kernel(k, k, k, q, 0.1, extras=EXTRAS[CHANGED]._replace(bias=bias))


def test_numbers_are_looked_at_in_every_call() -> None:
    """The numbers of a repeated call may differ from those of the call before."""
    extras = EXTRAS[CHANGED]
    launch(CHANGED, extras)
    with pytest.raises(ValueError, match="softcap is 0"):
        launch(CHANGED, extras._replace(softcap=0.0))
    wide, narrow = (launch(CHANGED, extras._replace(window_left=n)) for n in (40, 0))
    assert not torch.equal(wide, narrow)


@pytest.mark.parametrize(("batch", "n_q"), [(2, 0), (0, 40)])
def test_a_bias_of_no_elements_may_have_any_strides(batch: int, n_q: int) -> None:
    """``expand(...).contiguous()`` of an empty tensor stays expanded."""
    bias = torch.zeros(batch, 4, n_q, 1).half().expand(-1, -1, -1, 50).contiguous()
    assert bias.stride(-1) == 0
    q, k = torch.zeros(batch, n_q, 4, 64).half(), torch.zeros(batch, 50, 2, 64).half()
    assert launch(CHANGED, EXTRAS[CHANGED]._replace(bias=bias), q=q, k=k).shape == q.shape
