"""What tools/benchmark/run_kernels.py does: run chosen kernels, and say how far off each is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from flashsmith import settings
from flashsmith.bench import PEERS, first_available
from flashsmith.bench.grid import Problem
from flashsmith.bench.peers import Peer
from flashsmith.cli.job import check_fit, choose_device, load_kernels
from flashsmith.cli.selection import check_d_head, parse_dtype, select_instances
from flashsmith.cli.tables import KERNEL_SETS, build_progress, note, print_table
from flashsmith.configs import ForwardKernelInstance, ForwardVariant
from flashsmith.errors import DeviceError, FlashsmithError
from flashsmith.ops.forward import forward
from flashsmith.reference import compare, reference_by_head

_WRONG = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130
_KERNELS_OPTIONS = ("--kernels", "-kernels")

Run = Callable[[], torch.Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code: 1 for a wrong result, 2 for what cannot be run."""
    args = _parser().parse_args(_one_by_one(sys.argv[1:] if arguments is None else arguments))
    try:
        return _run(args)
    except (ValueError, TypeError, DeviceError) as error:
        note(f"error: {error}")
        return _WRONG_USAGE
    except (FlashsmithError, OSError) as error:
        note(f"error: {error}")
        return _WRONG
    except KeyboardInterrupt:
        return _INTERRUPTED


def _one_by_one(arguments: Sequence[str]) -> list[str]:
    """`--kernels A B 256 128` -> `--kernels=A --kernels=B 256 128`: no kernel is called 256."""
    words: list[str] = []
    in_kernels = False
    for word in arguments:
        if word in _KERNELS_OPTIONS:
            in_kernels = True
            continue
        in_kernels = in_kernels and not (word.startswith("-") or word.isdigit())
        words.append(f"--kernels={word}" if in_kernels else word)
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run kernels on random input, between cudaProfilerStart and cudaProfilerStop, "
        "and print each one's error against plain torch in float32 and in its own dtype."
    )
    add = parser.add_argument
    add("seq_len", metavar="SEQ_LEN", type=int)
    add("d_head", metavar="D_HEAD", type=int, help="64, 96, 128, 192 or 256")
    add("--n_runs", type=int, default=1, help="of each kernel (default: 1)")
    add(
        *_KERNELS_OPTIONS,
        action="append",
        metavar="KEY|NAME",
        help="one or more: "
        f"sets ({KERNEL_SETS}) and short forms; default, and what all "
        "stands for: KERNELS, else all that are built by default",
    )
    add("--ref", action="store_true", help="also FlashAttention-2 (torch's SDPA)")
    add("--ref_v3", action="store_true", help="also FlashAttention-3, or else -4")
    add("--dtype", help="fp16 or bf16; default: all that the kernels have")
    add("--batch", type=int, help="default: 4, emulator 1")
    add("--heads", type=int, help="default: 16, emulator 1")
    add("--mask", choices=("full", "causal"), default="full", help="causal: hide what lies ahead")
    add("--device", help="cuda (default where there is a GPU) or cpu, the emulator")
    return parser


def _run(args: argparse.Namespace) -> int:
    for name in ("seq_len", "n_runs", "batch", "heads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    check_d_head(args.d_head)
    instances = _choose_kernels(args)
    check_fit(instances, args.seq_len)
    device, why = choose_device(args.device)
    references = [PEERS["fa2"]] if args.ref else []
    if args.ref_v3:
        references.append(first_available("fa3", "fa4"))
    note(f"on {'the GPU' if device == 'cuda' else 'the emulator'} ({why}), {args.n_runs} runs")
    with build_progress() as progress:
        load_kernels(instances, device, progress)
    rows = []
    for problem, of_dtype in _problems(args, instances, on_gpu=device == "cuda"):
        note(str(problem))
        rows += _measure(problem, [*references, *of_dtype], args.n_runs, device)
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    return 0 if all(row["result"] == "ok" for row in rows) else _WRONG


def _problems(
    args: argparse.Namespace, instances: Sequence[ForwardKernelInstance], *, on_gpu: bool
) -> Iterator[tuple[Problem, list[ForwardKernelInstance]]]:
    """One for each dtype, as tensors have one, with its kernels."""
    for dtype in dict.fromkeys(instance.config.dtype for instance in instances):
        problem = Problem(
            dtype=dtype,
            d_head=args.d_head,
            mask=args.mask,
            batch=args.batch or (4 if on_gpu else 1),
            heads=args.heads or (16 if on_gpu else 1),
            seq_len=args.seq_len,
        )
        yield problem, [each for each in instances if each.config.dtype == dtype]


def _choose_kernels(args: argparse.Namespace) -> list[ForwardKernelInstance]:
    """All of one d_head and variant."""
    everything = settings.KERNELS.get() or "all"
    words = [everything if word == "all" else word for word in args.kernels or ["all"]]
    variant = ForwardVariant.from_name(args.mask)
    instances = select_instances(words, [variant], parse_dtype(args.dtype), args.d_head)
    for instance in instances:
        if instance.variant != variant:
            raise ValueError(f"kernel {instance} is causal; add --mask causal")
    return instances


def _measure(
    problem: Problem,
    candidates: Sequence[Peer | ForwardKernelInstance],
    n_runs: int,
    device: str,
) -> list[dict[str, Any]]:
    q, k, v = problem.make_qkv(device)
    reference = partial(reference_by_head, q, k, v, causal=problem.variant.causal)
    exact, low_precision = reference(compute=torch.float32), reference(compute=q.dtype)
    profiled = _profiled if device == "cuda" else nullcontext
    rows = []
    for candidate in candidates:
        row: dict[str, Any] = {"kernel": candidate.name, "dtype": str(problem.dtype)}
        row["runs"] = n_runs
        rows.append(row)
        try:
            if isinstance(candidate, Peer):
                run = candidate.make(q, k, v, problem.variant.causal)
            else:
                # NaN where the kernel does not write.
                o = torch.full_like(q, torch.nan)
                run = _run_of(candidate, q, k, v, o)
            with profiled():
                for _ in range(n_runs):
                    o = run()
            found = compare(o, exact, low_precision)
        except Exception as error:  # the others are run all the same
            row |= _errors(None, None, None) | {"result": f"{type(error).__name__}: {error}"}
            continue
        apart = (o.float() - low_precision.float()).abs().max().item()
        row |= _errors(found.error, found.tolerance, apart)
        row["result"] = "ok" if found.ok else f"WRONG {found.worst}"
    return rows


def _run_of(
    instance: ForwardKernelInstance,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
) -> Run:
    def run() -> torch.Tensor:
        forward(instance.config, q, k, v, o, causal=instance.variant.causal)
        return o

    return run


def _errors(
    exact: float | None, allowed: float | None, low_precision: float | None
) -> dict[str, float | None]:
    """Largest differences from plain torch, in float32 and in the kernel's own dtype."""
    return {"error vs FP32": exact, "allowed": allowed, "error vs dtype": low_precision}


@contextmanager
def _profiled() -> Iterator[None]:
    """`ncu --profile-from-start off` sees what is launched inside, not the references."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main())
