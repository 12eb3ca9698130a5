"""Checks kernels on drawn cases, and describes the failures."""

from __future__ import annotations

from collections.abc import Iterable

from flashsmith.configs import ForwardKernelConfig
from flashsmith.lab.soak import SoakCase, check, prepare, reproduce


def failures(cfg: ForwardKernelConfig, cases: Iterable[SoakCase], reruns: int) -> str:
    """Returns the failures in words, with the commands that reproduce them."""
    verdicts = [check(case.kernel(cfg), prepare(case, "cpu"), reruns=reruns) for case in cases]
    return "\n".join(
        f"{verdict.sentence}\n  {reproduce(cfg.short_form(), verdict.case)}"
        for verdict in verdicts
        if not verdict.ok
    )
