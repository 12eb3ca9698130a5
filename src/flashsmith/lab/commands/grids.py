"""The workloads that tables are tuned on: one for each bucket of a tuned table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from flashsmith.configs import Workload
from flashsmith.configs.base import Capability
from flashsmith.configs.decode import KINDS_OF_CACHE, as_tuned, rows_of_kernels
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload, WorkTiles
from flashsmith.gpus import count_sms
from flashsmith.lab.commands.request import ON_A_GPU, Request
from flashsmith.problem import Problem


class Sizes(NamedTuple):
    batch: int
    seq_len_q: int
    seq_len_k: int


_HEADS = 16
_FULL = "full"
# If two grids have a workload in the same bucket, the earlier grid's is tuned.
GRIDS: Mapping[str, Sequence[Sizes]] = {
    _FULL: (),  # the same number of tokens at each length: ON_A_GPU
    "small": tuple(Sizes(batch, n, n) for n in ON_A_GPU.seq_lens for batch in (1, 2, 4)),
    "chunk": (Sizes(1, 128, 8192), Sizes(1, 1024, 8192)),  # chunks of a long prompt
    "decode": (Sizes(4, 1, 16384),),
}


def tuning_workloads(request: Request, gpu: str | None) -> list[Workload]:
    """Returns the workloads to tune. If the request names no sizes, they come from its grids, or
    from all grids, one for each bucket on the GPU of this name.

    Raises:
        ValueError: A grid is unknown, or the request names both a grid and sizes.
    """
    if unknown := [name for name in request.grids if name not in GRIDS]:
        raise ValueError(f"--grid is {unknown[0]!r}; supported: {', '.join(GRIDS)}")
    if request.names_sizes:
        if request.grids:
            raise ValueError("--grid sets all sizes; leave out --seq-len, --batch and others")
        return request.workloads(ON_A_GPU)
    num_sms = count_sms(gpu or "")
    found: dict[tuple[object, ...], Workload] = {}
    for dtype, d_head, variant in product(request.dtypes, request.d_heads, request.variants):
        of_kind = replace(request, dtypes=(dtype,), d_heads=(d_head,), variants=(variant,))
        for name in request.grids or GRIDS:
            for workload in _workloads_of(name, of_kind):
                found.setdefault(workload.tuning_key(num_sms), workload)
    return list(found.values())


def _workloads_of(name: str, request: Request) -> list[Workload]:
    """Returns the workloads of a grid, for a request of one dtype, d_head and variant."""
    if name == _FULL:
        return request.workloads(ON_A_GPU)
    (dtype,), (d_head,), (variant,) = request.dtypes, request.d_heads, request.variants
    return [
        Workload(Problem(dtype, d_head, batch, _HEADS, _HEADS, seq_len_q, seq_len_k), variant)
        for batch, seq_len_q, seq_len_k in GRIDS[name]
    ]


def workloads_to_tune(
    operation: Operation[Any, Any],
    request: Request,
    gpu: str | None,
    capability: Capability | None,
) -> list[Any]:
    """Lists the workloads to tune of an operation on the GPU of this name; None: on the emulator.

    For decode these are all that tables distinguish, for the request's dtypes and d_heads. The
    backward is tuned on each shape twice: deterministic, and not.

    Raises: as ``tuning_workloads``.
    """
    if operation is DECODE:
        return decode_workloads(request, capability)
    workloads = tuning_workloads(request, gpu)
    if operation is BACKWARD:
        both = product(workloads, (False, True))
        return [BackwardWorkload(w.problem, w.variant, same_bits) for w, same_bits in both]
    return workloads


def decode_workloads(request: Request, capability: Capability | None) -> list[DecodeWorkload]:
    """Lists all workloads that tables distinguish on a GPU."""
    families = DECODE.families_on(capability)
    asked = (
        DecodeWorkload(dtype, d_head, rows, *kind, tiles, in_boxes)
        for dtype, d_head, kind, rows, tiles, in_boxes in product(
            request.dtypes,
            request.d_heads,
            KINDS_OF_CACHE,
            rows_of_kernels(families),
            WorkTiles,
            (False, True),
        )
    )
    return list(dict.fromkeys(as_tuned(workload, families) for workload in asked))
