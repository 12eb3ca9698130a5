"""Measures the host's cost of a call, beside torch.add: it bounds a loop over tiny problems.

    python benchmarks/call_overhead.py --out build/gpu

Calls of each kind run in turn, a hundred at a time after a synchronisation, so that the driver's
queue never fills and the host never waits for the GPU. Prints microseconds a call (the median and
the minimum of the turns) with the versions that ran, and writes call_overhead.csv.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import flashsmith
from flashsmith import settings
from flashsmith.configs import ForwardKernelConfig, parse_kernel_name_into_config
from flashsmith.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flashsmith.lab.bench.rows_file import make_parser, write_rows
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.selection.select import select_config

SHAPE = (1, 128, 2, 128)  # batch, seq_len, n_heads, d_head: less work than a launch costs
CALLS_AT_ONCE = 100
LAYERS = 8  # consecutive layers of attention in a step that is compiled as a whole
PACKED_BATCHES = 16  # batches of varlen sequences
WARMUP_TURNS = 3
SM80 = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+buffer+opt_softmax"
FILE_NAME = "call_overhead.csv"

Run = Callable[[], object]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k and v


@dataclass(frozen=True)
class Cost:
    """Microseconds a call: the median and the minimum over the turns."""

    median: float
    minimum: float


def calls(device: torch.device) -> dict[str, Run]:
    """Returns the measured calls by name, torch.add first."""
    operand = torch.randn(SHAPE, device=device)
    add: dict[str, Run] = {"torch.add": lambda: torch.add(operand, operand)}
    rows = dense_rows(device)
    compilers = ("inductor",) if device.type == "cuda" else ()  # on a CPU, C++ takes minutes
    return (
        add
        | attentions(rows)
        | forwards(rows)
        | packed_calls(device, compilers)
        | cache_calls(device)
        | training_steps(rows)
    )


def dense_rows(device: torch.device) -> Rows:
    q, k, v = (torch.randn(SHAPE, device=device).bfloat16() for _ in range(3))
    return q, k, v


def attentions(rows: Rows) -> dict[str, Run]:
    """Returns calls of ``attention``, plain and with one argument more each, and of peers."""
    q, k, v = rows
    batch, seq_len, n_heads, _ = SHAPE
    of_heads = torch.rand(n_heads, device=q.device)
    arguments: dict[str, dict[str, Any]] = {
        "": {},
        "causal": {"causal": True},
        "with lse": {"return_lse": True},
        "window": {"window_size": (32, 32)},
        "softcap": {"softcap": 20.0},
        "alibi": {"alibi_slopes": of_heads},
        "sinks": {"sinks": of_heads},
        "bias": {"bias": torch.zeros(1, 1, seq_len, seq_len, dtype=q.dtype, device=q.device)},
        "out": {"out": torch.empty_like(q)},
        "seqused": {"seqused_k": torch.full((batch,), 100, dtype=torch.int32, device=q.device)},
    }
    runs: dict[str, Run] = {
        f"attention {name}".rstrip(): partial(flashsmith.attention, q, k, v, **given)
        for name, given in arguments.items()
    }
    runs["flash_attn_func"] = partial(flash_attn_func, q, k, v)
    runs["sdpa"] = partial(F.scaled_dot_product_attention, *heads_first(rows))
    return runs


def heads_first(rows: Rows) -> Rows:
    """Returns q, k and v with their heads before their rows, as torch's attention takes them."""
    q, k, v = (t.transpose(1, 2) for t in rows)
    return q, k, v


def forwards(rows: Rows) -> dict[str, Run]:
    """Returns calls of ``forward``, with one configuration of each family that the device runs."""
    q, k, v = rows
    o = torch.empty_like(q)
    configs: tuple[ForwardKernelConfig, ...] = (
        parse_kernel_name_into_config(SM80),
        select_config(q),
    )
    runs: dict[str, Run] = {}
    for config in configs:
        runs[f"forward {config.family}"] = partial(flashsmith.forward, config, q, k, v)
        runs[f"forward {config.family} into o"] = partial(flashsmith.forward, config, q, k, v, o)
    return runs


def packed_calls(device: torch.device, compilers: Sequence[str]) -> dict[str, Run]:
    """Returns calls over packed sequences: with the same lengths each time, with other lengths each
    time, with gradients, and compiled. A compiled call runs alone, beside a compiled function of
    one addition, and in a step of several layers."""
    batches = [packed_batch(device, seed) for seed in range(PACKED_BATCHES)]

    def step(q: torch.Tensor, *rest: Any) -> Any:
        return flash_attn_varlen_func(q, *rest, causal=True)

    def training_step(q: torch.Tensor, *rest: Any) -> Any:
        o = step(q, *rest)
        return torch.autograd.grad(o, (q, *rest[:2]), o)

    def in_turn(call: Callable[..., object], batches: Sequence[tuple[Any, ...]]) -> Run:
        turns = itertools.cycle(batches)
        return lambda: call(*next(turns))

    trained = [(*(t.detach().requires_grad_() for t in batch[:3]), *batch[3:]) for batch in batches]
    runs = {
        "packed": in_turn(step, batches[:1]),
        "packed, other lengths": in_turn(step, batches),
        "packed, with gradients": in_turn(training_step, trained[:1]),
        "packed, other lengths, with gradients": in_turn(training_step, trained),
    }
    q, _, _, *lengths = trained[0]

    def model(q: torch.Tensor) -> torch.Tensor:
        for _ in range(LAYERS):
            q = step(q, q, q, *lengths)
        return q

    def model_step(model: Callable[[torch.Tensor], torch.Tensor]) -> object:
        o = model(q)
        return torch.autograd.grad(o, q, o)

    layers = f"packed, {LAYERS} layers, with gradients"
    runs[layers] = partial(model_step, model)
    for name in compilers:
        compiled = torch.compile(step, backend=name, fullgraph=True)
        runs["packed, compiled"] = in_turn(compiled, batches[:1])
        nothing_else = torch.compile(lambda q: q + 1, backend=name, fullgraph=True)
        runs["torch.add, compiled"] = partial(nothing_else, batches[0][0])
        compiled_model = torch.compile(model, backend=name, fullgraph=True)
        runs[f"{layers}, compiled"] = partial(model_step, compiled_model)
    return runs


def packed_batch(device: torch.device, seed: int) -> tuple[Any, ...]:
    """Returns q, k, v, the offsets of q and of k, and their maximum lengths."""
    lengths = torch.randint(1, SHAPE[1] + 1, (8,), generator=torch.Generator().manual_seed(seed))
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32)
    shape = int(lengths.sum()), *SHAPE[2:]
    rows = [torch.randn(shape, device=device).bfloat16() for _ in range(3)]
    greatest = int(lengths.max())
    return *rows, offsets, offsets, greatest, greatest


def cache_calls(device: torch.device) -> dict[str, Run]:
    """Returns calls with one query for each of four requests over a KV cache."""
    requests, pages, page = 4, 8, 256
    _, _, n_heads, d_head = SHAPE
    q = torch.randn(requests, 1, n_heads, d_head, device=device).bfloat16()
    k, v = (torch.randn(pages, page, n_heads, d_head, device=device).bfloat16() for _ in range(2))
    lengths = torch.full((requests,), 200, dtype=torch.int32, device=device)
    table = torch.arange(pages, dtype=torch.int32, device=device).view(requests, -1)
    entries = (t.view(requests, -1, n_heads, d_head) for t in (k, v))
    return {
        "decode": partial(flashsmith.decode, None, q, *entries, cache_seqlens=lengths),
        "flash_attn_with_kvcache, paged": partial(
            flash_attn_with_kvcache, q, k, v, cache_seqlens=lengths, block_table=table
        ),
    }


def training_steps(rows: Rows) -> dict[str, Run]:
    """Returns calls with their gradients, of ``attention`` and of torch's attention."""
    q, k, v = (t.detach().requires_grad_() for t in rows)

    def step(attend: Callable[..., torch.Tensor], q: Any, k: Any, v: Any) -> Any:
        o = attend(q, k, v)
        return torch.autograd.grad(o, (q, k, v), o)

    return {
        "attention with gradients": partial(step, flashsmith.attention, q, k, v),
        "sdpa with gradients": partial(
            step, F.scaled_dot_product_attention, *heads_first((q, k, v))
        ),
    }


def build(runs: Mapping[str, Run]) -> None:
    """Makes each call once, in parallel, because a first call mostly waits for a compiler."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda run: run(), runs.values()))


def measure(
    runs: Mapping[str, Run],
    turns: int,
    synchronize: Run,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Cost]:
    """Times each of ``runs`` in every turn, after a few turns that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(WARMUP_TURNS + turns):
        for name, run in runs.items():
            synchronize()
            start = clock()
            for _ in range(CALLS_AT_ONCE):
                run()
            elapsed = clock() - start
            if turn >= WARMUP_TURNS:
                seconds[name].append(elapsed)
    microseconds = 1e6 / CALLS_AT_ONCE
    return {
        name: Cost(statistics.median(each) * microseconds, min(each) * microseconds)
        for name, each in seconds.items()
    }


def rows(costs: Mapping[str, Cost], stamp: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the rows of the table, with ratios to the first call, which is torch.add."""
    first = next(iter(costs.values()))
    return [
        {
            "call": name,
            "us": f"{cost.median:.2f}",
            "min_us": f"{cost.minimum:.2f}",
            "times_torch_add": f"{cost.median / first.median:.2f}",
            **stamp,
        }
        for name, cost in costs.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args(arguments)

    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # stand-ins must not be measured
    runs = calls(torch.device("cuda"))
    build(runs)
    costs = measure(runs, options.turns, torch.cuda.synchronize)
    stamp = environment_stamp()
    table = rows(costs, stamp)
    print(", ".join(f"{name} {value}" for name, value in stamp.items()))
    for row in table:
        print(f"{row['call']:38} {row['us']:>7} us, least {row['min_us']:>7} us")
    write_rows(options.out / FILE_NAME, table)


if __name__ == "__main__":
    main()
