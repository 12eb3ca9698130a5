"""Shared by the tests of benchmarks: problems, rows as if measured, fake peers and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from flashsmith.configs import DType, Workload
from flashsmith.lab.bench import runner
from flashsmith.lab.bench.ceilings import Ceilings
from flashsmith.lab.bench.operations.base import OperationPeer
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS, FORWARD_KERNELS_BENCH
from flashsmith.lab.bench.peers import PEERS, Peer
from flashsmith.lab.bench.results import KERNEL, PEER, TimeRow
from flashsmith.lab.bench.runner import Runner
from flashsmith.lab.bench.timer import Timing
from flashsmith.problem import Problem

PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
FITTING = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"
SMALL = Workload(Problem.square(DType.FP16, 64, batch=2, heads=2, seq_len=64))
CEILINGS = {"FP16": Ceilings("FP16", matmul_tflops=700.0, copy_gb_per_s=4000.0)}


def time_row(kernel: str, ms: float | None, workload: Workload = SMALL, **values: Any) -> TimeRow:
    """Returns a row as if it were measured; without numbers if ``ms`` is None."""
    numbers = {}
    if ms is not None:
        numbers = {"ms_p20": ms * 0.9, "ms_p80": ms * 1.1, "tflops": workload.tflops(ms)}
    return TimeRow(
        kernel=kernel,
        kind=PEER if kernel in PEERS else KERNEL,
        workload=workload,
        ms=ms,
        **{**numbers, **values},
    )


def fake_peer(name: str, run: Callable[[torch.Tensor], torch.Tensor], missing: str = "") -> Peer:
    return Peer(
        *(name, name, name, ""),
        make=lambda q, k, v, causal: lambda: run(q),
        why_missing=lambda: missing,
        build=lambda: "1.0",
    )


def play_peers(monkeypatch: pytest.MonkeyPatch, *peers: Peer) -> None:
    """These stand for the peers of forward kernels, and are timed as on a GPU."""
    of_operation = {
        peer.name: OperationPeer(peer, lambda checker, peer=peer: checker.prepare(peer))
        for peer in peers
    }
    operation = replace(FORWARD_KERNELS_BENCH, peers=of_operation)
    monkeypatch.setattr(runner, "BENCHES", {FORWARD_KERNELS: operation})
    monkeypatch.setattr(Runner, "times_anything", True)


def times_of(values: Mapping[str, float]) -> Callable[..., dict[str, Timing]]:
    """Returns a fake timer, which runs its candidates and reports these times."""

    def timer(runs: Mapping[str, Callable[[], object]], **_: object) -> dict[str, Timing]:
        for run in runs.values():
            run()
        return {name: Timing(values[name], values[name] / 2, values[name] * 2) for name in runs}

    return timer


def svg_texts(path: Path) -> str:
    root = ElementTree.parse(path).getroot()
    return "\n".join("".join(e.itertext()).strip() for e in root.iter() if e.tag.endswith("}text"))
