"""docs/seeds.md: where each part of the design documents is now."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from flashsmith.configs import FlashForwardKernelConfig, get_kernel_configs
from support.paths import ROOT

PAGE = (ROOT / "docs" / "seeds.md").read_text()
ROWS = re.findall(r"^\| (.*?) ?\| (.+) \| `([\w/.]+)` \|$", PAGE, re.MULTILINE)
DESIGN = {
    *("setup.py", "py/setup.py", "py/flash_helpers/kernel_configs.py", "README.md"),
    *("py/flash_helpers/test/test.py", "py/flash_helpers/test/utils.py", "profiles/autotune.csv"),
    *("src/flash_attention.cu", "src/include/flash_attention.cuh", "src/include/flash_kernels.cuh"),
    *("src/include/static_kernel_configuration.cuh", "src/include/forward_kernel.cuh"),
    *("common.h", "utils.h", "gemm.cuh", "layout.cuh", "load_store.cuh", "tensor.cuh"),
    *(f"tools/benchmark/{name}.py" for name in ("run_kernels", "ncu_bench", "pt_bench")),
    *("tools/benchmark/benchmark_autotune.sh", "tools/build/generate_kernel_instantiations.py"),
    *("get_kernels_to_build", "get_kernel_configs", "should_autotune_config"),
    *("get_autotuning_kernel_configs", "get_kernel_progression_configs", "DType", "to_cpp_str"),
    *("to_torch_dtype", "from_string", "FlashForwardKernelConfig", "short_form", "to_cpp_struct"),
    *("kernel_name", "total_flop", "attn_flop", "parse_kernel_name_into_config"),
    *("ForwardKernelArgs", "forward_kernel_fn", "forward_kernels", "flash_forward_kernel"),
    *("StaticForwardKernelConfig", "ForwardKernelTileShapes", "value_t", "N", "GEMM_QK"),
    *("GEMM_PV", "Q_t", "K_t", "V_t", "P_t", "O_t", "S_accum_t", "O_accum_t", "operator<"),
    *("batch_stride", "seq_stride", "head_stride", "seq_len", "n_heads", "n_Q_blocks"),
    *("n_KV_blocks", "Q_mma_load_K_fragments", "flash_attention.forward"),
    *("_parse_flash_forward_demangled_name", "_parse_short_form_flash_forward_kernel_config"),
}


@pytest.mark.parametrize(("there", "here", "file"), ROWS)
def test_each_row_names_what_is_in_its_file(there: str, here: str, file: str) -> None:
    path = ROOT / file
    text = path.read_text()
    for name in re.findall(r"`([\w.-]+)`", here):
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", text), (there, name)


def test_every_row_of_a_table_with_files_is_read() -> None:
    lines = re.findall(r"^\| .*`[\w/]+\.\w+` \|$", PAGE, re.MULTILINE)
    assert len(ROWS) == len(lines) > 60


def test_every_part_of_the_design_has_its_row() -> None:
    named = {name for there, _, _ in ROWS for name in re.findall(r"`([^`]+)`", there)}
    assert DESIGN - named == set()


def test_keys_and_fields_are_those_of_the_design() -> None:
    section = PAGE.partition("## Keys of `KERNELS`")[2].partition("\n## ")[0]
    keys = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert keys == ["prog", "progall", "all", "tune", "64,32"]
    assert all(get_kernel_configs(key) for key in keys)
    assert get_kernel_configs("prog-all") == get_kernel_configs("progall")
    assert len(fields(FlashForwardKernelConfig)) == 13
    assert len(get_kernel_configs("prog")) == 7
