"""Where a number comes from."""

from __future__ import annotations

import datetime
import subprocess

import torch

import flashsmith


def environment_stamp() -> dict[str, str]:
    """GPU, its clocks, power and driver, and the versions of what ran.

    Raises:
        RuntimeError: There is no GPU.
    """
    stamp = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "flashsmith": flashsmith.__version__,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }
    fields = ["driver_version", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit"]
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        stamp |= dict(zip(fields, map(str.strip, answer.stdout.split(",")), strict=False))
    return stamp
