"""The command tools/benchmark/run_kernels.py: runs chosen kernels and prints each one's error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from flashsmith import settings
from flashsmith.cli.options import KERNEL_SETS, make_request
from flashsmith.cli.tables import ON_STDERR, note, print_table
from flashsmith.configs import FULL
from flashsmith.configs.workload import D_HEADS
from flashsmith.errors import DeviceError, FlashsmithError
from flashsmith.lab.commands.compare import Comparisons, compare_kernels
from flashsmith.lab.commands.request import Request

_WRONG = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130
_SHARED = ("kernels", "seq_len", "d_head", "dtype", "batch", "heads", "mask", "device")
_KERNELS_OPTIONS = ("--kernels", "-kernels")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 1 for a wrong result, 2 for what cannot be
    run."""
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
    """Turns `--kernels A B 256 128` into `--kernels=A --kernels=B 256 128`: 256 is no kernel's
    name."""
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
    add(
        "d_head",
        metavar="D_HEAD",
        type=int,
        help=f"one of {', '.join(map(str, D_HEADS))}",
    )
    add("--n_runs", type=int, default=1, help="of each kernel (default: 1)")
    add(
        *_KERNELS_OPTIONS,
        action="append",
        metavar="KEY|NAME",
        help="one or more: "
        f"sets ({KERNEL_SETS}) and short forms; default, and what all "
        "stands for: KERNELS, else all that are built by default",
    )
    add(
        "--ref",
        action="store_true",
        help="also torch's SDPA: FlashAttention-2, on a CPU torch's own",
    )
    add("--ref_v3", action="store_true", help="also FlashAttention-3, or else -4")
    add("--dtype", help="fp16 or bf16; default: all that the kernels have")
    add("--batch", type=int, help="default: 4, emulator 1")
    add("--heads", type=int, help="default: 16, emulator 1")
    add("--mask", default=FULL.name, help="full, or causal: hide what lies ahead")
    add("--device", help="cuda (default where there is a GPU) or cpu, the emulator")
    return parser


def _run(args: argparse.Namespace) -> int:
    for name in ("seq_len", "n_runs", "batch", "heads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    request = _request_of(args)
    asked = Comparisons(request, args.n_runs, with_fa2=args.ref, with_fa3=args.ref_v3)
    rows = [row.as_dict() for row in compare_kernels(asked, ON_STDERR)]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    return 0 if all(row["result"] == "ok" for row in rows) else _WRONG


def _request_of(args: argparse.Namespace) -> Request:
    options = {name: getattr(args, name) for name in _SHARED}
    request = make_request(**options)
    everything = settings.KERNELS.get() or settings.DEFAULT_SET
    words = request.words or (everything,)
    named = (everything if word == settings.DEFAULT_SET else word for word in words)
    return replace(request, words=tuple(named))


if __name__ == "__main__":
    sys.exit(main())
