"""Every configuration's names parse back into the configuration."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    KernelId,
    Sm90ForwardKernelConfig,
    Variant,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)

_VALUES = {"DType": st.sampled_from(DType), "bool": st.booleans()}


def _configs_of(family: type[ForwardKernelConfig]) -> st.SearchStrategy[ForwardKernelConfig]:
    """Draws from more values than are legal, so that no two fields always agree."""
    drawn = {
        field.name: _VALUES.get(
            str(field.type), st.integers(field.name not in family.may_be_zero, 300)
        )
        for field in fields(family)
    }
    return st.builds(family, **drawn)


_FAMILIES = [_configs_of(FlashForwardKernelConfig), _configs_of(Sm90ForwardKernelConfig)]
CONFIGS = st.one_of(_FAMILIES)
PAIRS = st.one_of([st.tuples(configs, configs) for configs in _FAMILIES])
_MEANINGS = {"bool": st.booleans(), "int": st.sampled_from((0, 1, 0xABCDEF012345))}
VARIANTS = st.builds(Variant, **{f.name: _MEANINGS[str(f.type)] for f in fields(Variant)})
INSTANCES = st.builds(KernelId, CONFIGS, VARIANTS)

CONFIG = parse_kernel_name_into_config(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)
PLAIN = FlashForwardKernelConfig(
    DType.BF16, 64, 128, 32, 8, False, False, False, 0, 0, 0, False, False
)


@given(CONFIGS)
def test_config_round_trips(cfg: ForwardKernelConfig) -> None:
    assert parse_kernel_name_into_config(cfg.short_form()) == cfg
    assert parse_kernel_name_into_config(cfg.short_form(include_d_head=False), cfg.d_head) == cfg
    assert parse_kernel_name_into_config(f"| 3 | {cfg.short_form()} | 77.6% |") == cfg
    assert parse_kernel_name_into_config(cfg.kernel_name()) == cfg
    assert parse_kernel_name_into_config(cfg.kernel_name(with_types=True)) == cfg
    assert parse_kernel_name_into_config(cfg.to_cpp_struct()) == cfg


@given(INSTANCES)
def test_instance_round_trips(instance: KernelId) -> None:
    assert parse_kernel_name_into_instance(instance.name) == instance
    assert parse_kernel_name_into_instance(f"`{instance.name}` | 1.0") == instance
    assert parse_kernel_name_into_instance(instance.kernel_name()) == instance
    assert parse_kernel_name_into_instance(instance.kernel_name(with_types=True)) == instance
    assert parse_kernel_name_into_config(instance.name) == instance.config


@given(PAIRS, st.data())
def test_one_changed_field_changes_every_name(
    pair: tuple[ForwardKernelConfig, ForwardKernelConfig], data: st.DataObject
) -> None:
    cfg, other = pair
    field = data.draw(st.sampled_from([field.name for field in fields(cfg)]))
    assume(getattr(cfg, field) != getattr(other, field))
    changed = replace(cfg, **{field: getattr(other, field)})
    a, b = KernelId(cfg), KernelId(changed)
    assert a.slug != b.slug
    assert cfg.short_form() != changed.short_form()
    assert cfg.to_cpp_struct() != changed.to_cpp_struct()
    assert cfg.kernel_name() != changed.kernel_name()


@given(INSTANCES)
def test_slug_is_an_identifier_and_says_the_variant(instance: KernelId) -> None:
    assert instance.slug.isidentifier()
    assert instance.slug.isascii()
    plain = KernelId(instance.config).slug
    features = "" if instance.variant == FULL else f"_{instance.variant.name.replace('+', '_')}"
    assert instance.slug == plain + features


def test_every_kernel_to_build_round_trips() -> None:
    for cfg in {*get_kernels_to_build(), *get_kernel_progression_configs(all_block_sizes=True)}:
        for name in (cfg.short_form(), cfg.kernel_name(), cfg.kernel_name(with_types=True)):
            assert parse_kernel_name_into_config(name) == cfg


def test_spellings_are_exact() -> None:
    cfg = replace(CONFIG, Q_mma_load_K_tiles=2, mma_double_buffer_loads=True)
    features = "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    assert cfg.short_form() == str(cfg) == f"(FP16, 128, 64, 64, 4): {features}"
    assert cfg.short_form(include_d_head=False) == f"(FP16, 64, 64, 4): {features}"
    assert cfg.short_form(include_tup=False) == features
    assert PLAIN.short_form() == "(BF16, 64, 128, 32, 8): load_0_0_0_tiles"
    assert CONFIG.to_cpp_struct() == (
        "FlashForwardKernelConfig{ScalarType::Half, 128, 64, 64, 4, "
        "true, true, true, 0, 2, 2, false, true}"
    )
    assert KernelId(cfg).slug == (
        "fp16_d128_r64_c64_w4_async_eager_swizzled_load_2_2_2_buffer_opt_softmax"
    )
    assert KernelId(PLAIN, CAUSAL).slug == "bf16_d64_r128_c32_w8_load_0_0_0_causal"
    assert KernelId(PLAIN, FULL).name == PLAIN.short_form()
    assert KernelId(PLAIN, CAUSAL).name == f"{PLAIN.short_form()} causal"


# nvcc 13.0 and g++ 12 give these names to the kernels of CONFIG (full) and PLAIN (causal).
_MANGLED = (
    "_ZN10flashsmith4sm8020flash_forward_kernelINS0_25StaticForwardKernelConfigIXtl"
    "NS_24FlashForwardKernelConfigE{config}EXtlNS_7VariantE{variant}EEEEEEvNS_17ForwardKernelArgsE"
)
_DEMANGLED = (
    "void flashsmith::sm80::flash_forward_kernel<flashsmith::sm80::StaticForwardKernelConfig<"
    "flashsmith::FlashForwardKernelConfig{{{config}}}, flashsmith::Variant{{{variant}}}> >"
    "(flashsmith::ForwardKernelArgs)"
)
_CONFIG_LITERALS = "LNS_10ScalarTypeE5ELi128ELi64ELi64ELi4ELb1ELb1ELb1ELi0ELi2ELi2ELb0ELb1EE"
_PLAIN_LITERALS = "LNS_10ScalarTypeE15ELi64ELi128ELi32ELi8ELb0ELb0ELb0ELi0ELi0ELi0ELb0ELb0EE"
_CONFIG_VALUES = "(flashsmith::ScalarType)5, 128, 64, 64, 4, true, true, true, 0, 2, 2, false, true"
_FULL_VALUES = "false, false, false, false, false, false, false, false, 0l, false, false"
_WINDOW = Variant(causal=True, window=True, padded=True, score=77)
_WINDOW_VALUES = "true, true, false, false, false, false, false, true, 77l, false, false"


def test_kernel_name_is_what_nvcc_and_cxxfilt_print() -> None:
    for variant, values in ((FULL, _FULL_VALUES), (_WINDOW, _WINDOW_VALUES)):
        demangled = _DEMANGLED.format(config=_CONFIG_VALUES, variant=values)
        assert CONFIG.kernel_name(variant=variant) == demangled


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # nvcc, device code
        (_DEMANGLED.format(config=_CONFIG_VALUES, variant=_FULL_VALUES), (CONFIG, FULL)),
        (_DEMANGLED.format(config=_CONFIG_VALUES, variant=_WINDOW_VALUES), (CONFIG, _WINDOW)),
        (_MANGLED.format(config=_CONFIG_LITERALS, variant="Lb0E" * 8 + "Ll0EE"), (CONFIG, FULL)),
        (
            _MANGLED.format(config=_PLAIN_LITERALS, variant="Lb1E" + "Lb0E" * 7 + "Ll0EE"),
            (PLAIN, CAUSAL),
        ),
        (
            _MANGLED.format(config=_PLAIN_LITERALS, variant="Lb1E" * 2 + "Lb0E" * 5 + "Lb1ELl77EE"),
            (PLAIN, _WINDOW),
        ),
        # g++ omits trailing zeros
        (_DEMANGLED.format(config=_CONFIG_VALUES, variant=""), (CONFIG, FULL)),
        (
            _DEMANGLED.format(config="(flashsmith::ScalarType)15, 64, 128, 32, 8", variant="true"),
            (PLAIN, CAUSAL),
        ),
        (
            _MANGLED.format(config="LNS_10ScalarTypeE15ELi64ELi128ELi32ELi8EE", variant="Lb1EE"),
            (PLAIN, CAUSAL),
        ),
        (_MANGLED.format(config=_CONFIG_LITERALS, variant="E"), (CONFIG, FULL)),
        # with types, without a variant
        (
            "void flash_forward_kernel<StaticForwardKernelConfig<FlashForwardKernelConfig"
            "{(c10::ScalarType)5, (int)128, (int)64, (int)64, (int)4, (bool)1, (bool)1, (bool)1, "
            "(int)0, (int)2, (int)2, (bool)0, (bool)1}>>(ForwardKernelArgs)",
            (CONFIG, FULL),
        ),
        (
            "flash_forward_kernel<StaticForwardKernelConfig<FlashForwardKernelConfig"
            "{(c10::ScalarType)15,64,128,32,8,false,false,false,0,0,0,false,false}>>",
            (PLAIN, FULL),
        ),
        # written by hand
        (
            "( fp16 ,128,64, 64,4 ) : load_0_2_2_tiles+opt_softmax+swizzled+eager+async",
            (CONFIG, FULL),
        ),
        (f"| 7 | **{CONFIG.short_form()}** | 80.3 |", (CONFIG, FULL)),
    ],
)
def test_spellings_from_outside(
    name: str, expected: tuple[FlashForwardKernelConfig, Variant]
) -> None:
    assert parse_kernel_name_into_instance(name) == KernelId(*expected)


_STRUCT = "FlashForwardKernelConfig{{(c10::ScalarType){}}}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "contains no configuration"),
        ("void cutlass::Kernel<float>(Params)", "contains no configuration"),
        ("async+load_0_0_0_tiles", "contains no configuration"),
        ("(FP16, 128, 64, 64): load_0_0_0_tiles", "d_head"),
        ("(FP16, 64, 64, 4): load_0_0_0_tiles", "pass d_head"),
        ("(FP16, 128, 64, 64, 4, 2): load_0_0_0_tiles", "contains no configuration"),
        ("(FP32, 128, 64, 64, 4): load_0_0_0_tiles", "'FP32' is not known; supported: fp16, bf16"),
        ("(FP16, 128, 64, 0, 4): load_0_0_0_tiles", "B_c: expected at least 1"),
        ("(FP16, 128, 64, 64, 4): async", "no load_Q_K_V_tiles"),
        ("(FP16, 128, 64, 64, 4): async+load_0_0_tiles", "'load_0_0_tiles' is unknown"),
        ("(FP16, 128, 64, 64, 4): asynch+load_0_0_0_tiles", "features are async, eager"),
        ("(FP16, 128, 64, 64, 4): async+async+load_0_0_0_tiles", "unknown or repeated"),
        ("(FP16, 128, 64, 64, 4): load_0_0_0_tiles+load_2_2_2_tiles", "unknown or repeated"),
        ("(FP16, 128, 64, 64, 4): load_0_0_0_tiles windowed", "contains no configuration"),
        (f"{CONFIG} | {PLAIN}", "names 2 kernels"),
        ("FlashForwardKernelConfig", "contains no configuration"),
        ("FlashForwardKernelConfig{(c10::ScalarType)5, 128, 64", "contains no configuration"),
        ("FlashForwardKernelConfig{}", "dtype '0' is not known"),
        (_STRUCT.format("5, 128"), "B_r: expected at least 1"),
        (_STRUCT.format("7, 128, 64, 64, 4"), "dtype '7' is not known"),
        (_STRUCT.format("5, 128, 64, 64, 4, 2"), "async_copy is 2, which is no bool"),
        (_STRUCT.format("5, true, 64, 64, 4"), "d_head is true, which is no int"),
        (_STRUCT.format("5, (bool)1, 64, 64, 4"), "d_head is (bool)1, which is no int"),
        (_STRUCT.format("5, 128, 64, 64, 4, (int)1"), "async_copy is (int)1, which is no bool"),
        (_STRUCT.format("5, 128, 64, 64, -4"), "'-4' is not a value"),
        (_STRUCT.format("5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"), "14 values for the 13 fields"),
        (CONFIG.kernel_name() + PLAIN.kernel_name(), "names 2 kernels"),
    ],
)
def test_bad_name_says_what_is_wrong_and_what_is_valid(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match="valid are a short form like") as error:
        parse_kernel_name_into_config(name)
    assert reason in str(error.value)
    assert repr(name) in str(error.value)


def test_d_head_beside_a_form_that_has_one_must_agree() -> None:
    assert parse_kernel_name_into_config(str(CONFIG), d_head=128) == CONFIG
    with pytest.raises(ValueError, match="says d_head 128, the argument d_head 64"):
        parse_kernel_name_into_config(str(CONFIG), d_head=64)


@pytest.mark.parametrize("name", [None, 7, b"(FP16, 64, 64, 4): async", ["async"], DType.FP16])
def test_what_is_no_text_is_no_name(name: Any) -> None:
    for parse in (parse_kernel_name_into_config, parse_kernel_name_into_instance):
        with pytest.raises(TypeError, match=rf"name is a {type(name).__name__}, .*expected a"):
            parse(name)


@pytest.mark.parametrize("d_head", ["64", 64.0, True])
def test_a_d_head_that_is_no_whole_number_is_refused(d_head: Any) -> None:
    with pytest.raises(TypeError, match=rf"d_head is a {type(d_head).__name__}, .*expected an int"):
        parse_kernel_name_into_config("(FP16, 64, 64, 4): async+load_0_0_0_tiles", d_head)
