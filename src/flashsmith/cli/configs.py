"""`flashsmith configs`: what can be built, where, and what has been."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Annotated, Any

import typer

from flashsmith.cli.built import built_rows, print_built
from flashsmith.cli.selection import check_d_head, kernel_words, parse_dtype, select_instances
from flashsmith.cli.tables import (
    KERNEL_SETS,
    DHeadOption,
    DtypeOption,
    JsonOption,
    note,
    print_json,
    print_table,
)
from flashsmith.configs import (
    FORWARD_VARIANTS,
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
)
from flashsmith.configs.sm80.forward import SUPPORTED_VALUES
from flashsmith.jit import KernelCache, list_libraries

_BLOCK_FIELDS = ("B_r", "B_c", "n_warps")


def configs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY|NAME]...",
            help=f"Sets ({KERNEL_SETS}) and short forms; default: KERNELS, else all.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="The GPU that legality is for, like sm_86. Default: sm_80; for the sm90 family "
            "sm_90a."
        ),
    ] = None,
    legal: Annotated[
        bool | None, typer.Option("--legal/--illegal", help="Only those that can (not) run there.")
    ] = None,
    all_blocks: Annotated[
        bool, typer.Option("--all-blocks", help="Each at every B_r, B_c and n_warps, legal or not.")
    ] = False,
    built: Annotated[
        bool, typer.Option("--built", help="List the kernels in the cache instead, as compiled.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List configurations, whether a GPU can run them, and why not."""
    if built and (all_blocks or legal is not None):
        raise ValueError("--built lists what was compiled; leave out --legal and --all-blocks")
    chosen_dtype, chosen_d_head = parse_dtype(dtype), check_d_head(d_head)
    if built:
        _list_built(words or [], chosen_dtype, chosen_d_head, as_json)
        return
    selected = select_instances(
        kernel_words(words, "all"), dtype=chosen_dtype, d_head=chosen_d_head
    )
    found = list(dict.fromkeys(instance.config for instance in selected))
    if all_blocks:
        found = _at_all_blocks(found)
    rows = [(cfg, cfg.problems(gpu or cfg.minimum_gpu)) for cfg in found]
    judged_for = gpu or ", ".join(sorted({cfg.minimum_gpu for cfg in found}))
    if legal is not None:
        rows = [(cfg, problems) for cfg, problems in rows if (not problems) == legal]
    if as_json:
        print_json({"gpu": judged_for, "configs": [_as_dict(*row) for row in rows]})
        return
    print_table(
        ("config", "smem (B)", f"legal on {judged_for}"),
        [
            (str(cfg), cfg.shared_memory_bytes, f"no: {' '.join(problems)}" if problems else "yes")
            for cfg, problems in rows
        ],
    )
    n_legal = sum(not problems for _, problems in rows)
    note(f"{len(rows)} configurations, {n_legal} of them legal on {judged_for}")


def _at_all_blocks(configs: list[ForwardKernelConfig]) -> list[ForwardKernelConfig]:
    of_sm80 = [cfg for cfg in configs if isinstance(cfg, FlashForwardKernelConfig)]
    if other := [cfg for cfg in configs if cfg not in of_sm80]:
        raise ValueError(
            f"--all-blocks is for the sm80 family, and {other[0]} is of the sm90 family"
        )
    blocks = list(product(*(SUPPORTED_VALUES[field] for field in _BLOCK_FIELDS)))
    moved = (
        replace(cfg, B_r=B_r, B_c=B_c, n_warps=n_warps)
        for B_r, B_c, n_warps in blocks
        for cfg in of_sm80
    )
    return list(dict.fromkeys(moved))


def _as_dict(config: ForwardKernelConfig, problems: list[str]) -> dict[str, Any]:
    return {
        "name": str(config),
        **asdict(config),
        "dtype": str(config.dtype),
        "shared_memory_bytes": config.shared_memory_bytes,
        "legal": not problems,
        "problems": problems,
    }


def _list_built(words: list[str], dtype: DType | None, d_head: int | None, as_json: bool) -> None:
    rows = [row for library in list_libraries() for row in built_rows(library)]
    if words:
        chosen = {
            str(kernel) for kernel in select_instances(words, FORWARD_VARIANTS, dtype, d_head)
        }
        rows = [row for row in rows if row["kernel"] in chosen]
    rows = [
        row
        for row in rows
        if (dtype is None or str(dtype) == row["dtype"]) and d_head in (None, row["d_head"])
    ]
    if as_json:
        print_json({"kernels": rows})
        return
    print_built(rows)
    note(f"{len(rows)} kernels in {KernelCache().root}")
