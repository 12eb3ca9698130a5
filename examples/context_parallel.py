"""Trains one step of causal attention over a sequence that is split among GPUs.

    torchrun --nproc-per-node 2 examples/context_parallel.py --seq-len 131072
    torchrun --nproc-per-node 2 examples/context_parallel.py --device cpu --seq-len 128

torch's context_parallel distributes the sequence so that every GPU has equally many pairs of
queries and keys, and rotates keys and values. flashsmith computes the attention of each part,
forward and backward, and the parts are combined by their LSEs. The results are compared with the
same step on each GPU alone. The script prints the largest differences, and the time and the extra
memory of a step. On the CPU, flashsmith's emulator computes short sequences.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsmith.integrations import torch_sdpa

NAMES = ("o", "dq", "dk", "dv")
SEQUENCE = 2  # the dimension of (batch, heads, seq_len, d_head) that is split
MIB = 2**20

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Step:
    """Holds the results and the costs of one way to compute the step.

    Attributes:
        results: o, dq, dk and dv of the whole sequence.
        milliseconds: The median over the steps, on the slowest rank.
        mebibytes: The peak memory of a step without its inputs, on the fullest GPU; 0 on the CPU.
    """

    results: Tensors
    milliseconds: float
    mebibytes: float


@contextmanager
def flash_attention_of_flashsmith(device: str) -> Iterator[None]:
    """Makes F.scaled_dot_product_attention call flashsmith."""
    if device == "cpu":
        with _on_cpu():
            yield
        return
    torch_sdpa.register()
    torch.nn.attention.activate_flash_attention_impl(torch_sdpa.NAME)
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield
    finally:
        torch.nn.attention.restore_flash_attention_impl()


@contextmanager
def _on_cpu() -> Iterator[None]:
    """Routes CPU tensors through the operators for CUDA tensors, because context_parallel does not
    know torch's operators for CPU tensors."""

    # context_parallel replaces the function that has this name.
    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False
    ) -> torch.Tensor:
        operator = torch.ops.aten._scaled_dot_product_flash_attention
        return operator(query, key, value, is_causal=is_causal)[0]

    override, own = torch_sdpa.override("CPU"), F.scaled_dot_product_attention
    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own
        override.remove()


def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor) -> Tensors:
    """Returns o, dq, dk and dv."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o = F.scaled_dot_product_attention(*leaves, is_causal=True)
    return [o.detach(), *torch.autograd.grad(o, leaves, do)]


def alone(tensors: Tensors, times: int) -> Step:
    return measured(lambda: step(*tensors), times)


def shared(mesh: DeviceMesh, tensors: Tensors, method: str, times: int) -> Step:
    """Measures a step of all ranks. ``method`` says how keys and values go round, "allgather" or
    "alltoall"."""
    set_rotate_method(method)
    parts, dims = [t.clone() for t in tensors], [SEQUENCE] * len(tensors)
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=dims):  # shards parts in place
        own = measured(lambda: step(*parts), times)
        whole = context_parallel_unshard(mesh, own.results, dims)
    return Step(whole, own.milliseconds, own.mebibytes)


def measured(run: Callable[[], Tensors], times: int) -> Step:
    on_gpu = torch.cuda.is_available() and dist.get_backend() == "nccl"
    results, milliseconds, mebibytes = run(), [], 0.0  # the first run builds missing kernels
    for _ in range(times):
        del results
        before = torch.cuda.memory_allocated() if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        results = run()
        if on_gpu:
            torch.cuda.synchronize()
            mebibytes = max(mebibytes, (torch.cuda.max_memory_allocated() - before) / MIB)
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    device = results[0].device
    maximum = torch.tensor([statistics.median(milliseconds), mebibytes], device=device)
    dist.all_reduce(maximum, dist.ReduceOp.MAX)
    return Step(results, *maximum.tolist())


def run(options: argparse.Namespace, mesh: DeviceMesh) -> dict[str, Step]:
    """Measures a step of one rank alone, and of all ranks by each way round."""
    torch.manual_seed(0)  # the same on every rank
    shape = (options.batch, options.heads, options.seq_len, options.d_head)
    dtype = getattr(torch, options.dtype)
    tensors = [torch.randn(shape, device=mesh.device_type, dtype=dtype) for _ in range(4)]
    with flash_attention_of_flashsmith(mesh.device_type):
        steps = {"alone": alone(tensors, options.times)}
        for method in ("allgather", "alltoall"):
            steps[method] = shared(mesh, tensors, method, options.times)
    return steps


def lines(steps: dict[str, Step]) -> Iterator[str]:
    yield f"{'':10}{'ms':>12}{'MiB':>12}" + "".join(f"{name:>12}" for name in NAMES)
    whole = steps["alone"].results
    for way, each in steps.items():
        differences = (
            (own.float() - right.float()).abs().max() / right.float().abs().max()
            for own, right in zip(each.results, whole, strict=True)
        )
        shown = "".join(f"{difference:12.2e}" for difference in differences)
        yield f"{way:10}{each.milliseconds:12.2f}{each.mebibytes:12.0f}{shown}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=32768)
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--times", type=int, default=5, help="steps that are timed")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    try:
        if options.device == "cuda":
            torch.cuda.set_device(dist.get_node_local_rank())
        mesh = init_device_mesh(options.device, (dist.get_world_size(),))
        steps = run(options, mesh)
        if dist.get_rank() == 0:
            print(*lines(steps), sep="\n")
            print("differences: the largest, of the largest element of one rank's result")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
