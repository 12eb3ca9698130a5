"""`flashsmith configs`: which configurations exist, where they are legal, and which are built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from typing import Annotated, Any

import typer

from flashsmith.cli.built import built_rows, print_built
from flashsmith.cli.options import (
    KERNEL_SETS,
    DHeadOption,
    DtypeOption,
    JsonOption,
    make_request,
)
from flashsmith.cli.tables import note, print_json, print_table
from flashsmith.configs import VARIANTS, DType, ForwardKernelConfig, KernelConfig
from flashsmith.configs.registry import FORWARD, family_of
from flashsmith.jit import KernelCache, list_modules
from flashsmith.lab.commands.request import Request


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
    request = make_request(kernels=words, dtype=dtype, d_head=d_head)
    if built:  # regardless of KERNELS
        _list_built(replace(request, words=tuple(words or ()), variants=VARIANTS), as_json)
        return
    instances = request.instances(forward_only=all_blocks)
    found = list(dict.fromkeys(instance.config for instance in instances))
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
    able = [family for family in FORWARD.families if family.sets.block_values]
    if other := [cfg for cfg in configs if family_of(cfg) not in able]:
        names = " and ".join(family.name for family in able)
        raise ValueError(
            f"--all-blocks is for the {names} family, and {other[0]} is of the "
            f"{family_of(other[0]).name} family"
        )
    return list(dict.fromkeys(moved for cfg in configs for moved in _at_each_block(cfg)))


def _at_each_block(config: ForwardKernelConfig) -> Iterator[ForwardKernelConfig]:
    names, choices = zip(*family_of(config).sets.block_values, strict=True)
    for values in product(*choices):
        yield replace(config, **dict(zip(names, values, strict=True)))


def _as_dict(config: KernelConfig, problems: list[str]) -> dict[str, Any]:
    return {
        "name": str(config),
        **asdict(config),
        "dtype": str(config.dtype),
        "shared_memory_bytes": config.shared_memory_bytes,
        "legal": not problems,
        "problems": problems,
    }


def _list_built(request: Request, as_json: bool) -> None:
    rows = built_rows(list_modules())
    if request.words:
        chosen = {str(kernel) for kernel in request.instances(forward_only=False)}
        rows = [row for row in rows if row["kernel"] in chosen]
    rows = [row for row in rows if request.takes(DType.from_string(row["dtype"]), row["d_head"])]
    if as_json:
        print_json({"kernels": rows})
        return
    print_built(rows)
    note(f"{len(rows)} kernels in {KernelCache().root}")
