"""attention's score_mod, mask_mod and block_mask: what is refused, and what a call passes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith
from flashsmith import codegen
from flashsmith.configs import (
    DType,
    KernelId,
    Variant,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.errors import TracingError
from flashsmith.mods import registry
from flashsmith.mods.block_mask import create_block_mask
from flashsmith.mods.trace import trace
from flashsmith.ops.spec import resolve, spec_of

Q = torch.randn(2, 20, 4, 64).half()
CAUSAL = create_block_mask(lambda b, h, q, k: q >= k, None, None, 20, 20, device="cpu")


def branches(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score if q_idx >= kv_idx else -score


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"score_mod": branches}, TracingError, r"score_mod, .*test_mods.py:\d+: its value is"),
        ({"mask_mod": lambda b, h, q, k: q - k}, TracingError, "it returns int; expected bool"),
        ({"score_mod": 1}, TypeError, "score_mod is a int; expected a function of"),
        (
            {"score_mod": lambda s, b, h, q, k: s + torch.zeros(20, dtype=torch.int64)[q]},
            TracingError,
            r"dtype int64; supported are .*; pass it as .to\(torch.int32\)",
        ),
        (
            {"score_mod": lambda s, b, h, q, k: s + torch.zeros(20, device="meta")[q]},
            TracingError,
            r"shape \(20,\) is on device meta, but it is read on cpu; move it there",
        ),
        ({"block_mask": torch.ones(20, 20)}, TypeError, "block_mask is a Tensor; expected a fla"),
        (
            {"block_mask": create_block_mask(lambda b, h, q, k: q >= k, 3, 1, 20, 20, "cpu")},
            ValueError,
            r"block_mask is for .* = \(3, 1, 20, 20\), but q and k have \(2, 4, 20, 20\)",
        ),
        (
            {"block_mask": create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 20, 24, "cpu")},
            ValueError,
            r"block_mask is for .* = \(1, 1, 20, 24\), but q and k have \(2, 4, 20, 20\)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        flashsmith.attention(Q, Q, Q, **arguments)


def test_a_block_mask_is_not_for_packed_rows() -> None:
    offsets = torch.tensor([0, 20], dtype=torch.int32)
    packed = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
    with pytest.raises(ValueError, match=r"block_mask was passed with .* pass mask_mod"):
        flashsmith.attention(Q[0], Q[0], Q[0], block_mask=CAUSAL, **packed)


def test_a_call_passes_on_what_the_functions_read_now() -> None:
    """A captured tensor is read at every call; a captured number needs another kernel."""
    table = torch.randn(20)
    width = 4

    def extras() -> Any:
        functions = {
            "score_mod": lambda s, b, h, q, k: s + table[q],
            "mask_mod": lambda b, h, q, k: q - k < width,
        }
        return resolve(spec_of(Q, Q, functions), Q, Q).extras

    first = extras()
    assert first.mod_tensors[0] is table
    assert first.score == first.variant.score > 0
    table = torch.randn(30)
    second = extras()
    assert second.mod_tensors[0] is table
    assert second.score == first.score
    width = 5
    assert extras().score != first.score


def test_a_call_passes_on_the_ranges_of_a_block_mask() -> None:
    wide = create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < 3) & (q != 8), None, None, 20, 20, "cpu", (4, 8)
    )
    extras = resolve(spec_of(Q, Q, {"block_mask": wide}), Q, Q).extras
    assert extras.rows_per_range == 4
    ranges = [[0, 8], [0, 8], [0, 16], [8, 16], [8, 24]]
    assert extras.key_ranges.tolist() == [[ranges]]
    nothing = create_block_mask(lambda b, h, q, k: q < 0, 1, 1, 20, 20, "cpu")
    extras = resolve(spec_of(Q, Q, {"block_mask": nothing}), Q, Q).extras
    ((begin, end),) = extras.key_ranges.view(-1, 2)
    assert begin > end == 0


# ---- names and text ----


def test_names_say_the_number_and_read_back() -> None:
    expression = trace(lambda s, b, h, q, k: s * 3).expression
    variant = Variant(causal=True, score=expression.number)
    assert variant.name == f"causal+score_{expression.hash}"
    assert Variant.from_name(variant.name) == variant
    for family in (SM80_FORWARD, SM90_FORWARD):
        instance = KernelId(family.heuristic(Workload.square(DType.FP16, 128, 4096)), variant)
        for name in (
            instance.name,
            instance.kernel_name(),
            instance.kernel_name(with_types=True),
        ):
            assert parse_kernel_name_into_instance(name) == instance
    mangled = (
        "_ZN10flashsmith4sm8020flash_forward_kernelINS0_25StaticForwardKernelConfigI"
        "XtlNS_24FlashForwardKernelConfigELNS_10ScalarTypeE15ELi128ELi128ELi64ELi4ELb1ELb1ELb1"
        "ELi2ELi2ELi2ELb1ELb1EEEXtlNS_7VariantELb1ELb0ELb0ELb0ELb0ELb0ELb0ELb0ELl177646829445321"
        "EEEEEEEvNS_17ForwardKernelArgsE"
    )
    found = parse_kernel_name_into_instance(mangled).variant
    assert found == Variant(causal=True, score=177646829445321)
    with pytest.raises(ValueError, match="score_HASH"):
        Variant.from_name("score_12")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Returns the cache of an empty registry, as in a new process."""
    monkeypatch.setattr(registry, "_known", {})
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_text_of_a_unit_has_the_policy(empty: Any) -> None:
    number = registry.remember(trace(lambda s, b, h, q, k: s * 0.25 + q).expression)
    config = SM80_FORWARD.heuristic(Workload.square(DType.FP16, 64, 4096))
    text = codegen.generate([KernelId(config, Variant(score=number))])
    unit = next(value for name, value in text.items() if name.endswith(".cu"))
    assert f"struct UserScore<{number:#x}>" in unit
    assert f".score = {number}" in unit
    assert "score * 0x1p-2f" in unit
    plain = codegen.generate([KernelId(config)])
    assert not any("mods/arithmetic" in value for value in plain.values())


def test_another_process_finds_what_was_traced(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expression = trace(None, lambda b, h, q, k: q >= k).expression
    number = registry.remember(expression)
    monkeypatch.setattr(registry, "_known", {})
    assert registry.expression_of(number) == expression
    assert (empty / "mods").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", [None, "nonsense", "buffers\n"])
def test_a_number_that_nobody_knows_is_refused_with_words(empty: Any, text: str | None) -> None:
    if text is not None:
        (empty / "mods").mkdir(parents=True)
        (empty / "mods" / "00000000abcd.txt").write_text(text)
    with pytest.raises(ValueError, match=r"score_00000000abcd is not known: .* call attention"):
        registry.expression_of(0xABCD)


def test_two_expressions_with_one_hash_are_refused(empty: Any) -> None:
    first, second = (trace(lambda s, b, h, q, k, n=n: s + n).expression for n in (1, 2))
    registry._known[first.number] = second
    with pytest.raises(ValueError, match="two expressions have the hash"):
        registry.remember(first)


def test_a_cache_that_cannot_be_written_is_no_error(
    empty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.write_text("not a folder")
    expression = trace(lambda s, b, h, q, k: s + 9).expression
    assert registry.expression_of(registry.remember(expression)) == expression
