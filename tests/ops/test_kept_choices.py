"""Choices that are kept are dropped when the tables they came from are forgotten."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import flashsmith
from flashsmith.configs import Variant, parse_kernel_name_into_config
from flashsmith.ops import dispatch
from flashsmith.selection import choose


def test_choices_over_a_cache_are_made_anew_when_tables_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The choices are those of ``decode`` for many queries, and of pages."""
    sizes = torch.float16, (1, 300, 2, 64), (1, 300, 2, 64), 64, Variant(), torch.device("cpu")
    assert dispatch._is_forward_faster(*sizes)
    decode_config = parse_kernel_name_into_config("(FP16, 64, 16, 32, 2): decode+stages_3+blocks_4")
    monkeypatch.setattr(dispatch, "select_for", lambda *_, **__: decode_config)
    choose.forget_tables()
    assert not dispatch._is_forward_faster(*sizes)
    monkeypatch.undo()
    choose.forget_tables()
    assert dispatch._is_forward_faster(*sizes)


# The cached functions of these packages, by what may change their results.
FORGOTTEN_WITH_TABLES = {
    "ops.dispatch.chosen_over_cache", "selection.select._select", "selection.choose.find_tables",
    "selection.select.select_for", }  # fmt: skip
OF_ITS_ARGUMENTS_ALONE = {
    "ops.backward._kernel_for", "ops.decode_calls._kernel_for",
    "ops.few_queries.few_queries_kernel_for", "ops.operators.parsed_config",
    "ops.lengths.asked_to_look", "runtime.device._cuda_target",
    "selection.select.reads_pages", "selection.table_text._config_of",
    "selection.table_text._is_buildable",
}  # fmt: skip


def test_whatever_is_kept_is_known_to_depend_on_tables_or_not() -> None:
    kept = set()
    for package in ("ops", "mods", "selection", "runtime", "integrations"):
        folder = Path(flashsmith.__file__).parent / package
        for path in folder.glob("*.py"):
            if path.stem.startswith(("vllm", "transformers")):
                continue  # their imports may be missing
            module = importlib.import_module(f"flashsmith.{package}.{path.stem}")
            kept |= {
                f"{package}.{path.stem}.{name}"
                for name, value in vars(module).items()
                if hasattr(value, "cache_clear") and value.__module__ == module.__name__
            }
    assert kept == FORGOTTEN_WITH_TABLES | OF_ITS_ARGUMENTS_ALONE
