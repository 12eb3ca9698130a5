"""The families that the report knows, by the class of their configurations."""

from __future__ import annotations

from typing import Any

from flashsmith.configs import (
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    Sm90ForwardKernelConfig,
)
from flashsmith.report.family import Family
from flashsmith.report.results import Time
from flashsmith.report.sm80 import Sm80
from flashsmith.report.sm90 import Sm90

FAMILIES: dict[type[ForwardKernelConfig], Family[Any]] = {
    FlashForwardKernelConfig: Sm80(),
    Sm90ForwardKernelConfig: Sm90(),
}


def family_of(config: ForwardKernelConfig) -> Family[Any]:
    return FAMILIES[type(config)]


def family_of_time(time: Time) -> Family[Any] | None:
    """None of a peer."""
    return None if isinstance(time.candidate, str) else family_of(time.candidate.config)
