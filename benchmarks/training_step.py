"""Checks and measures a training step's attention on the GPU: packed and causal, with shared heads.

    python benchmarks/training_step.py --out benchmarks/results/h200/2026-01-01

One row a case, pass and candidate: milliseconds in turn with a flushed L2 and back to back, and the
ratio of the best peer's time to ours. Gradients are checked against the first peer's before they
are timed. FlashAttention-3 is upstream's C++ build, where it is installed or named by
FLASHSMITH_FA3_LIBRARY, called without autograd; FlashAttention-2 is torch's, likewise.
Writes training_step.csv and training_step_environment.json.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from variant_cases import SKEWED, randn, scores_of

import flashsmith
from flashsmith import settings
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.rows_file import write_stamp
from flashsmith.lab.bench.timer import time_back_to_back, time_interleaved

COLUMNS = (
    *("case", "d_head", "heads", "heads_kv", "tokens", "pass", "candidate"),
    *("in_turn_ms", "in_turn_of_best_peer", "back_to_back_ms", "back_to_back_of_best_peer"),
    *("tflops", "error"),
)
LENGTHS: Mapping[str, tuple[int, ...]] = {
    "one of 8192": (8192,),
    "two of 8192": (8192,) * 2,
    "sixteen of 512": (512,) * 16,
    "skewed": SKEWED,
}
HEADS = {"8B": (32, 8), "70B": (64, 8)}  # of Llama 3
_D_HEAD = 128
_PAUSE = 0.01  # seconds: candidates draw unlike power, and none is to pay for the one before
_HEAD_START = 1e-3  # seconds: autograd costs the host more than the flush takes
_TOLERANCE = 0.02  # of the largest element: all candidates round alike
OURS = "flashsmith"

Gradients = tuple[torch.Tensor, ...]
Run = Callable[[], object]


@dataclass(frozen=True)
class Step:
    """One candidate's passes: the forward alone, and both. Both gives dq, dk and dv."""

    forward: Run
    both: Callable[[], Gradients]


@dataclass(frozen=True)
class Packed:
    """Tensors of one case, (total, heads, d_head), and where its sequences begin."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    places: torch.Tensor
    longest: int

    @classmethod
    def random(cls, lengths: tuple[int, ...], heads: int, heads_kv: int) -> Packed:
        total = sum(lengths)
        q, do = randn(total, heads, _D_HEAD), randn(total, heads, _D_HEAD)
        k, v = randn(total, heads_kv, _D_HEAD), randn(total, heads_kv, _D_HEAD)
        places = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
        return cls(q, k, v, do, places, max(lengths))

    @property
    def lengths(self) -> dict[str, Any]:
        """As flashsmith and FlashAttention-3 both name them."""
        places = {"cu_seqlens_q": self.places, "cu_seqlens_k": self.places}
        return places | {"max_seqlen_q": self.longest, "max_seqlen_k": self.longest}


def ours(given: Packed, deterministic: bool) -> Step:
    leaves = [t.clone().requires_grad_() for t in (given.q, given.k, given.v)]
    keywords = given.lengths | {"causal": True, "deterministic": deterministic}

    def both() -> Gradients:
        o: Any = flashsmith.attention(*leaves, **keywords)
        return torch.autograd.grad(o, leaves, given.do)

    return Step(lambda: flashsmith.attention(given.q, given.k, given.v, **keywords), both)


def fa3_step(given: Packed, deterministic: bool) -> Step:
    operators = fa3.load_operators()
    tensors = given.q, given.k, given.v
    keywords = given.lengths | {"softmax_scale": _D_HEAD**-0.5, "is_causal": True}

    def both() -> Gradients:
        o, lse = operators.fwd(*tensors, **keywords)[:2]
        found = operators.bwd(given.do, *tensors, o, lse, **keywords, deterministic=deterministic)
        return tuple(found[:3])

    return Step(lambda: operators.fwd(*tensors, **keywords), both)


def fa2_step(given: Packed) -> Step:
    forward = torch.ops.aten._flash_attention_forward
    backward = torch.ops.aten._flash_attention_backward
    tensors, places, n = (given.q, given.k, given.v), given.places, given.longest

    def run() -> Any:
        return forward(*tensors, places, places, n, n, 0.0, True, False)

    def both() -> Gradients:
        o, lse, seed, offset, _ = run()
        found = backward(given.do, *tensors, o, lse, places, places, n, n, 0.0, True, seed, offset)
        return tuple(found)

    return Step(run, both)


def steps_of(given: Packed) -> dict[str, Step]:
    """Ours, then the peers."""
    steps = {OURS: ours(given, False), f"{OURS} deterministic": ours(given, True)}
    if not fa3.why_missing():
        steps["fa3"] = fa3_step(given, False)
        steps["fa3_deterministic"] = fa3_step(given, True)
    return steps | {"fa2": fa2_step(given)}


def errors_of(steps: Mapping[str, Step]) -> dict[str, float]:
    """How far each is off the first peer, of its largest element; the worst gradient's."""
    expected = next(step for name, step in steps.items() if not is_ours(name)).both()
    return {
        name: max(
            ((a - b).abs().max() / b.abs().max()).item()
            for a, b in zip(step.both(), expected, strict=True)
        )
        for name, step in steps.items()
    }


def is_ours(name: str) -> bool:
    return name.startswith(OURS)


def peers_of(name: str, names: Mapping[str, Any]) -> list[str]:
    """Whom a candidate is compared with: what is deterministic, with what is."""
    same = name.endswith("deterministic") and "fa3_deterministic" in names
    return ["fa3_deterministic"] if same else [n for n in names if not is_ours(n)]


def rows_of(case: str, model: str, repeats: int, milliseconds: float) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one case."""
    lengths, (heads, heads_kv) = LENGTHS[case], HEADS[model]
    steps = steps_of(Packed.random(lengths, heads, heads_kv))
    errors = errors_of(steps)
    if wrong := {name: e for name, e in errors.items() if not e < _TOLERANCE}:
        print(f"WRONG {model} {case}: {wrong}", flush=True)
    flop = 4 * _D_HEAD * heads * scores_of(lengths, causal=True)
    for which, runs, products in (
        ("forward", {name: step.forward for name, step in steps.items()}, 1.0),
        ("both", {name: step.both for name, step in steps.items()}, 3.5),
    ):
        in_turn = time_interleaved(runs, repeats=repeats, pause=_PAUSE, head_start=_HEAD_START)
        back_to_back = time_back_to_back(runs, milliseconds=milliseconds)
        for name in runs:
            row: dict[str, Any] = {
                "case": f"Llama {model}, {case}",
                "d_head": _D_HEAD,
                "heads": heads,
                "heads_kv": heads_kv,
                "tokens": sum(lengths),
                "pass": which,
                "candidate": name,
                "tflops": f"{products * flop / in_turn[name].ms / 1e9:.1f}",
                "error": f"{errors[name]:.2g}" if is_ours(name) and which == "both" else "",
            }
            for regime, found in (("in_turn", in_turn), ("back_to_back", back_to_back)):
                row[f"{regime}_ms"] = f"{found[name].ms:.4f}"
                best = min(found[peer].ms for peer in peers_of(name, found))
                ratio = f"{best / found[name].ms:.3f}" if is_ours(name) else ""
                row[f"{regime}_of_best_peer"] = ratio
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--milliseconds", type=float, default=200.0, help="back to back, each")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_stamp(arguments.out / "training_step.csv")
    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # what is measured is what was chosen
    torch.manual_seed(0)
    with (arguments.out / "training_step.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for model in HEADS:
            for case in LENGTHS:
                for row in rows_of(case, model, arguments.repeats, arguments.milliseconds):
                    writer.writerow(row)
                    if is_ours(row["candidate"]):
                        shown = ("pass", "candidate", "tflops", *COLUMNS[8:11:2], "error")
                        print(row["case"], *(row[name] for name in shown), flush=True)
                file.flush()


if __name__ == "__main__":
    main()
