"""Writes flash_kernels.cuh and one translation unit a kernel, and prints their short forms.

python tools/build/generate_kernel_instantiations.py --out build/generated --kernels prog 64,32
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from flashsmith import codegen, settings
from flashsmith.configs import (
    KernelId,
    Variant,
    select_kernel_configs,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the C++ text of a set of kernels.")
    parser.add_argument(
        "--out", type=Path, default=Path("build/generated"), help="directory (default: %(default)s)"
    )
    parser.add_argument(
        "--kernels",
        nargs="+",
        default=(),
        metavar="KEY|NAME",
        help=f"keys ({', '.join(settings.KERNEL_SETS)}) and short forms; default: $KERNELS or all",
    )
    parser.add_argument(
        "--mask", default="full", help="full, causal or full,causal (default: %(default)s)"
    )
    args = parser.parse_args()
    try:
        configs = select_kernel_configs(args.kernels)
        variants = [Variant.from_name(name) for name in args.mask.split(",")]
        instances = [KernelId(cfg, variant) for cfg in configs for variant in variants]
        paths = codegen.write(instances, args.out)
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print(*sorted(set(instances)), sep="\n")
    print(f"{paths[0]}: {len(paths) - 1} kernels")


if __name__ == "__main__":
    main()
