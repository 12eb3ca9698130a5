"""Says which kernel serves each shape of a model on a GPU, and tunes those shapes if asked to.

    python examples/which_kernel.py --tune --d-head 128 --lengths 1024,4096
    python examples/which_kernel.py --gpu h200 --d-head 128 --lengths 1024,4096

The look-up needs no GPU: it takes the GPU's name, reads your table and the shipped one, and falls
back on the heuristic. ``--tune`` runs `flashsmith tune` over the same shapes on this machine's GPU
first, which takes minutes, and keeps what it measured in the table that ``attention`` reads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

FLASHSMITH = (sys.executable, "-m", "flashsmith")


def shapes(options: argparse.Namespace) -> list[str]:
    """Returns the options that set the shapes in both commands."""
    return [
        f"--dtype={options.dtype}", f"--d-head={options.d_head}", f"--mask={options.mask}",
        f"--seq-len={options.lengths}", f"--batch={options.batch}", f"--heads={options.heads}",
    ]  # fmt: skip


def tune(options: argparse.Namespace) -> None:
    subprocess.run([*FLASHSMITH, "tune", *shapes(options)], check=True)


def look_up(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a record of each shape: its kernel, its source, why, and what was passed over."""
    gpu = [f"--gpu={options.gpu}"] if options.gpu else []
    command = [*FLASHSMITH, "tune", "--explain", "--json", *gpu, *shapes(options)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        # The table's shape may differ within the bucket, so its rate says more than its time.
        rate = f"{each['tflops']:.0f} TFLOP/s" if each["tflops"] else "not measured there"
        yield f"{each['shape']}: {rate}, from the {each['source']}\n  {each['kernel']}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", help="its name or an architecture; default: this machine's")
    parser.add_argument("--tune", action="store_true", help="measure first, on this machine's GPU")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--d-head", default="128", help="head dimensions, by commas")
    parser.add_argument("--mask", default="causal", help="full, causal or full,causal")
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="by commas")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=32)
    options = parser.parse_args(arguments)
    if options.tune and options.gpu:
        parser.error("--tune measures on this machine's GPU: leave --gpu out")
    return options


def main() -> None:
    options = parse()
    if options.tune:
        tune(options)
    print(*lines(look_up(options)), sep="\n")


if __name__ == "__main__":
    main()
